"""Hybrid without prefixes: the number of tokens of a sequence determines what its groups hold.

    block 16, window 32, one full and one windowed group; a decoding sequence

    token                       80      81      ...     96      97
    takes                               2                       2       a block in each group: all are full
    leaves                      1                       1               a block in each windowed group: unseen
    leaves, decided late                1                       1

So growth can be promised, and the engine knows when a sequence leaves slots. A state of recurrent layers is a
page for the lifetime of the sequence. This takes blocks of one size, and groups of at most one kind besides
full attention and states; groups.py serves the rest with the same counts. If a step is decided before the
last one has ended (`late`), slots are unseen one step later; they are freed even by a growth that is then
refused.

`jenga` and `split` are the same if all layers keep every token: a large page is then a small one, nothing is
idle, and there is one pool.
"""

from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.arena import Table
from kvsim.allocators.options import Groups, layers_named
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
    def serves(cls, layers: Layers, max_model_len: int) -> bool:
        """Whether groups have blocks of one size, and at most one kind besides full attention and states."""
        attention = [group for group in layers.groups if group.kind != "state"]
        sizes = {group.block_size for group in attention}
        others = {(group.kind, group.reach) for group in attention if group.kind != "full"}
        whole = all(group.block_size >= max_model_len for group in layers.groups if group.kind == "state")
        return len(sizes) == 1 and len(others) <= 1 and whole

    def __init__(self, capacity_slots: int, layers: Layers, max_model_len: int) -> None:
        attention = [group for group in layers.groups if group.kind != "state"]
        size, each = attention[0].block_size, len(attention)
        if capacity_slots < len(layers.groups) * size:
            raise ValueError(
                f"capacity_slots must hold a page of {size} for each of {len(layers.groups)} groups, "
                f"got {capacity_slots}"
            )
        leaving = [group.kind != "full" for group in attention]
        reach, windowed = NEVER_REACHED, sum(leaving)
        self._chunks = False
        for group in attention:
            if group.reach is not None:
                reach, self._chunks = group.reach, group.kind == "chunk"
        super().__init__(capacity_slots, Groups(each - (windowed or each), windowed or each, reach), size)
        if windowed:
            self._leaving = leaving
        self._layers = [layers_named(group.kind, group.reach) for group in attention]
        self._name_kinds(*[layers_named("state")] * (len(attention) < len(layers.groups)))
        at_once = min(reach - (not self._chunks) + layers.in_flight_tokens, max_model_len)
        self._most_blocks = -(-at_once // size) + (not self._chunks) if windowed else NEVER_REACHED
        self._late = layers.late
        self._of_state = [group.kind == "state" for group in layers.groups]
        self._states = sum(self._of_state)
        self._state_blocks: dict[int, list[int]] = {}

    def block_tables(self, seq: int) -> tuple[tuple[int | None, ...], ...]:
        tables, states = iter(super().block_tables(seq)), iter(self._state_blocks.get(seq, ()))
        return tuple((next(states),) if of_state else next(tables) for of_state in self._of_state)

    # -- placing ------------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return super().slots_needed(tokens, bound) + self._states * self.block_size

    def peak_slots(self, tokens: int, bound: int) -> int:
        """Full tables whole, and the states; of a window or chunk, at most what is seen or in flight."""
        full, windowed, *_ = self.groups
        whole = -(-tokens // self.block_size)
        blocks = full * whole + windowed * min(whole, self._most_blocks) + self._states
        return blocks * self.block_size

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self.groups.each * -(-tokens // self.block_size) + self._states <= self._pool.free

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        if not self._states:
            return super().admit(seq, tokens, bound)
        self._held.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        held, length, at = Holding(), -(-tokens // self.block_size), 0
        blocks = self._pool.allocate(self.groups.each * length + self._states)
        tables: list[list[int]] = []
        states: list[int] = []
        for of_state in self._of_state:
            if of_state:
                states.append(blocks[at])
            else:
                tables.append(blocks[at : at + length])
            at += 1 if of_state else length
        held.blocks = [block for row in zip(*tables, strict=True) for block in row]
        held.length, held.tokens = length, tokens
        self._held[seq], self._state_blocks[seq] = held, states
        self.used_slots += len(blocks) * self.block_size
        self.state_slots += self._states * self.block_size
        return True

    def release(self, seq: int) -> None:
        """As in `Windowed`, group by group, including states in order."""
        if not self._states or seq not in self._held:
            super().release(seq)
            return
        held, states, group = self._held.pop(seq), self._state_blocks.pop(seq), 0
        for of_state in self._of_state:
            if of_state:
                self._pool.give_back([states.pop(0)])
            else:
                self._pool.give_back(self._table(held, group))
                group += 1
        self._forget(held)
        self.used_slots -= self._slots(held) + self._states * self.block_size
        self.state_slots -= self._states * self.block_size

    # -- growing ------------------------------------------------------------------------------

    def leaves_at(self, seq: int) -> int:
        """As in `Windowed`; if steps are decided late, frees what the chunk before the last one wrote."""
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

    # -- looking ------------------------------------------------------------------------------

    def _all_tables(self) -> list[Table]:
        """As in `Windowed`, plus states, each of which counts as one token."""
        size, states = self.block_size, self._state_blocks
        name = layers_named("state")
        return super()._all_tables() + [
            Table(seq, 0, [each], size, name) for seq in states for each in states[seq]
        ]


def is_one_kind(layers: Layers) -> bool:
    """Whether all layers keep every token."""
    return [group.kind for group in layers.groups] == ["full"]


@mypyc_attr(allow_interpreted_subclasses=True)
class OneKindOfLargePages(Uncached):
    """Large pages of one small page each: the first page of a finished sequence is reused first."""

    idles: ClassVar[bool] = True

    def release(self, seq: int) -> None:
        """As in `Uncached`, with pages in the order in which the arena of large pages lists them."""
        held = self._held.get(seq)
        if held is not None:
            held.blocks.reverse()
        super().release(seq)
