"""Hybrid without prefixes: what the groups hold follows from how many tokens a sequence has.

    block 16, window 32, one full group and a windowed one; a sequence that decodes

    token                       80      81      ...     96      97
    takes                               2                       2       a block in each group: all are full
    leaves                      1                       1               a block in each windowed group: unseen
    leaves, decided late                1                       1

So growth can be promised, and the engine knows when a sequence leaves what. This takes blocks of one size,
and groups of at most one kind besides full attention; groups.py serves the rest, and its books are the same:
where a step is decided before the last one has ended (`late`), what is unseen is what was a step ago; and it
is freed also by a growth that is refused then.
"""

from array import array
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Layout
from kvsim.allocators.options import Groups
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.windowed import Holding, Windowed

NEVER_REACHED = 1 << 40
"""The window of groups that keep every token."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Uncached(Windowed):
    """Groups of layers with blocks of one size over one pool, without prefixes.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena: pages of a block; what does not fill a page is left out.
    layers : Layers
        The groups, and whether steps are decided before the last one has ended: `serves` says which.
    max_model_len : int
        Tokens of the longest sequence.
    """

    frees_when_refused: ClassVar[bool] = True

    @classmethod
    def serves(cls, layers: Layers) -> bool:
        """Whether the groups have blocks of one size, and are full or of one kind of window or chunk."""
        sizes = {group.block_size for group in layers.groups}
        others = {(group.kind, group.reach) for group in layers.groups if group.kind != "full"}
        return len(sizes) == 1 and len(others) <= 1 and "state" not in {kind for kind, _ in others}

    def __init__(self, capacity_slots: int, layers: Layers, max_model_len: int) -> None:
        size, each = layers.groups[0].block_size, len(layers.groups)
        if capacity_slots < each * size:
            raise ValueError(
                f"capacity_slots must hold a page of {size} for each of {each} groups, got {capacity_slots}"
            )
        leaving = [group.kind != "full" for group in layers.groups]
        reach, windowed = NEVER_REACHED, sum(leaving)
        self._chunks = False
        for group in layers.groups:
            if group.reach is not None:
                reach, self._chunks = group.reach, group.kind == "chunk"
        super().__init__(capacity_slots, Groups(each - (windowed or each), windowed or each, reach), size)
        if windowed:
            self._leaving = leaving
        at_once = min(reach - (not self._chunks) + layers.in_flight_tokens, max_model_len)
        self._most_blocks = -(-at_once // size) + (not self._chunks) if windowed else NEVER_REACHED
        self._late = layers.late

    def peak_slots(self, tokens: int, bound: int) -> int:
        """Every table whole; of a window or chunk, at most what it sees and what is under way."""
        full, windowed, *_ = self.groups
        whole = -(-tokens // self.block_size)
        return (full * whole + windowed * min(whole, self._most_blocks)) * self.block_size

    def leaves_at(self, seq: int) -> int:
        """As in `Windowed`; decided late, a step leaves what the piece before the last one wrote."""
        held = self._held[seq]
        written = self._written_before(held.behind + 1)
        if not self._late:
            return max(held.tokens, written) + 1
        if held.start >= written:
            return held.tokens + 1
        return max(held.tokens, written) + 2

    def _written_before(self, behind: int) -> int:
        tokens, reach = behind * self.block_size, self.groups.window
        return -(-tokens // reach) * reach if self._chunks else reach - 1 + tokens

    def _behind(self, written: int) -> int:
        reach = self.groups.window
        unseen = written // reach * reach if self._chunks else max(0, written - reach + 1)
        return unseen // self.block_size

    def _grow(self, held: Holding, computed: int, tokens: int) -> bool:
        if tokens <= held.tokens:
            return True
        settled = computed
        if self._late:
            settled = held.start if held.tokens == computed else computed - 1
        gone = self._behind(settled) - held.behind
        if gone > 0:
            self._expire(held, gone)
        missing = -(-tokens // self.block_size) - held.length
        if missing > 0:
            if self.slots_per_token * missing > self._pool.free:
                return False
            self._extend(held, missing)
        held.start, held.tokens = computed, tokens
        return True

    def layout(self) -> Layout:
        """As in `Windowed`, the owners in the order of their first addresses."""
        found = super().layout()
        order = list(dict.fromkeys([0, *found.which]))
        place = {number: at for at, number in enumerate(order)}
        which = array("q", map(place.__getitem__, found.which))
        return found._replace(which=which, owners=[found.owners[number] for number in order])
