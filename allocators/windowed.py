"""Windowed: paged memory for a model with sliding windows, in groups of layers (vLLM's hybrid manager).

    block 16, window 32, a full group and two windowed ones, in the step that feeds token 112: 11 blocks
    full     |################|################|################|   ...   |################|
    window 1 |..... freed ....|..... freed ....|..... freed ....|   ...   |################|
    window 2 |..... freed ....|..... freed ....|..... freed ....|   ...   |################|

A sequence has a block table in every group; all groups take their blocks from one pool. A block holds
`block_size` slots, a slot one token of one group. A new token takes `groups.each` slots and gives up
`groups.windowed` of them when its block lies behind the window: such slots are *expired*.

    waste per sequence = groups.each * (-tokens % block_size)        less than one block in each group

Blocks are freed when the sequence grows, before it takes new ones: with `computed` tokens written, the next
one sees tokens `computed - window + 1` and later, counted from 0, so that each windowed group frees its first

    (computed - window + 1) // block_size        blocks, the last of them first

A chunk of a prompt takes blocks for all its tokens in every group; those behind the window are freed at the
next growth. A decoding sequence grows when its blocks are full, by a block in every group; this is promised
while blocks are free. It also grows in between, at `leaves_at` tokens, to free what is then behind the
window.

vLLM 0.11 frees even if the new blocks then do not fit; here a refused `grow` changes nothing, but counts what
it would free as room. The numbers are equal at every step, as a refused sequence evicts others and then
grows, or is evicted itself; only the order of free blocks may differ. Ignored: fork, prefixes, swapping.

A sequence holds a row of blocks for each stretch of its tokens:

    blocks    f0 w0 v0 | f1 w1 v1 | f2 w2 v2 | f3 w3 v3       groups f (full), w and v (windowed)
              '- behind = 2 -------'                          w0 v0 w1 v1 were freed; length = 4
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.arena import Slots, Table, layout_of_tables
from kvsim.allocators.base import Holdings, InvariantError, Layout
from kvsim.allocators.blocks import Blocks
from kvsim.allocators.options import Groups, Order, kinds_of
from kvsim.allocators.pool import FreeList


class Holding:
    """The blocks of a sequence.

    Attributes
    ----------
    blocks : list of int
        Block i of group g is `blocks[i * groups + g]`; freed blocks remain listed.
    length : int
        Blocks per group, including freed ones.
    behind : int
        Blocks that each windowed group has freed.
    start, tokens : int
        Tokens before and after its last chunk, or its last step that changed anything.
    expired : int
        Slots that the sequence has freed.
    """

    __slots__ = ("behind", "blocks", "expired", "length", "retired", "start", "tokens")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = self.behind = self.start = self.tokens = self.expired = 0
        self.retired = False

    def __repr__(self) -> str:
        return f"{self.length} blocks in each group, {self.behind} behind the window"


@mypyc_attr(allow_interpreted_subclasses=True)
class Windowed(Blocks):
    """Blocks of `block_size` slots in a table per group of layers; those behind the window are freed.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block per group; a remainder below one block is left out.
    groups : Groups
        How the layers are kept.
    block_size : int
        Slots of a block.
    order : which free block to allocate
    """

    windows: ClassVar[bool] = True

    def __init__(
        self, capacity_slots: int, groups: Groups, block_size: int = 16, order: Order = Order.STACK
    ) -> None:
        if groups.windowed < 1 or groups.full < 0 or groups.window < 1:
            raise ValueError(f"groups must have a windowed one, of at least 1 token, got {groups}")
        if capacity_slots < groups.each * block_size:
            raise ValueError(
                f"capacity_slots must hold {groups.each} blocks of {block_size}, got {capacity_slots}"
            )
        super().__init__(capacity_slots, block_size)
        self.growth_unit = block_size
        self.slots_per_token = groups.each
        self.groups = groups
        self.order = order
        self._leaving = [at >= groups.full for at in range(groups.each)]  # whether each group is windowed
        self._layers = groups.names
        self._name_kinds()
        self._left_by_retired = 0
        self._pool = FreeList(self.num_blocks, order)
        self._held: Holdings[Holding] = Holdings()

    def block_tables(self, seq: int) -> tuple[tuple[int | None, ...], ...]:
        """The blocks of a sequence in each group, in token order; None if one was freed."""
        held = self._held[seq]
        return tuple(
            (*[None] * (held.length - len(table)), *table)
            for table in (self._table(held, at) for at in range(self.groups.each))
        )

    def _table(self, held: Holding, group: int) -> list[int]:
        """The blocks that a group has not freed."""
        each = self.groups.each
        return held.blocks[held.behind * each * self._leaving[group] + group :: each]

    # -- placing ------------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.groups.each * -(-tokens // self.block_size) * self.block_size

    def peak_slots(self, tokens: int, bound: int) -> int:
        """Every table whole; for a windowed one, at most what the largest chunk sees and adds, as in vLLM.

        This part may begin and end inside a block, hence one more block.
        """
        full, windowed, window, chunk = self.groups
        whole = seen = -(-tokens // self.block_size)
        if chunk is not None:
            seen = min(whole, -(-(window - 1 + chunk) // self.block_size) + 1)
        return (full * whole + windowed * seen) * self.block_size

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self.groups.each * -(-tokens // self.block_size) <= self._pool.free

    def can_hold(self, tokens: int, bound: int) -> bool:
        return self.peak_slots(tokens, bound) <= self.free_slots

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._held.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        held = self._held[seq] = Holding()
        self._extend(held, -(-tokens // self.block_size))
        held.tokens = tokens
        return True

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return self._held[seq].length * self.block_size

    def surplus(self, seq: int, tokens: int) -> int:
        return self.slots_per_token * (self._held[seq].length * self.block_size - tokens)

    def leaves_at(self, seq: int) -> int:
        held = self._held[seq]
        return max(held.tokens, self._written_before(held.behind + 1)) + 1

    def _written_before(self, behind: int) -> int:
        """Tokens that must be written before `behind` blocks of a group are behind the window."""
        return self.groups.window - 1 + behind * self.block_size

    def _behind(self, written: int) -> int:
        """Blocks of a group that are behind the window once `written` tokens are written."""
        return max(0, written - self.groups.window + 1) // self.block_size

    def grow(self, seq: int, tokens: int) -> bool:
        held = self._held[seq]
        return self._grow(held, min(tokens - 1, held.length * self.block_size), tokens)

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        held = self._held[seq]
        if computed > held.length * self.block_size:
            room = held.length * self.block_size
            raise InvariantError(f"sequence {seq} has room for {room} tokens, not {computed}")
        return self._grow(held, computed, tokens)

    def _grow(self, held: Holding, computed: int, tokens: int) -> bool:
        groups, size = self.groups, self.block_size
        if tokens <= held.tokens:
            return True
        gone = self._behind(computed) - held.behind
        missing = -(-tokens // size) - held.length
        room = self._pool.free + groups.windowed * gone if gone > 0 else self._pool.free
        if missing > 0 and self.slots_per_token * missing > room:
            return False
        if gone > 0:
            self._expire(held, gone)
        if missing > 0:
            self._extend(held, missing)
        held.start, held.tokens = computed, tokens
        return True

    def growth_budget(self) -> int:
        return self._pool.free // self.slots_per_token

    def grow_many(self, seqs: Sequence[int]) -> None:
        each = self.slots_per_token
        taken = each * len(seqs)
        if taken > self._pool.free:
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.growth_budget()} promised")
        blocks, at = self._pool.allocate(taken), 0
        for held in map(self._held.__getitem__, seqs):
            held.blocks += blocks[at : at + each]
            held.length += 1
            at += each
        self.used_slots += taken * self.block_size

    def _expire(self, held: Holding, count: int) -> None:
        """Free the first `count` blocks of each windowed group's table."""
        each, first = self.groups.each, held.behind * self.groups.each
        last = first + count * each
        gone = [held.blocks[first + at : last : each] for at, leaves in enumerate(self._leaving) if leaves]
        self._pool.give_back_each(gone)
        slots = self.groups.windowed * count * self.block_size
        held.behind += count
        held.expired += slots
        self.used_slots -= slots
        self.expired_slots += slots

    def _extend(self, held: Holding, count: int) -> None:
        """Add `count` blocks to every table, one table after another."""
        each = self.slots_per_token
        blocks = self._pool.allocate(each * count)
        if count > 1:
            tables, blocks = blocks, blocks[:]
            for at in range(each):
                blocks[at::each] = tables[at * count : (at + 1) * count]
        held.blocks += blocks
        held.length += count
        self.used_slots += each * count * self.block_size

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        held = self._held.pop(seq, None)
        if held is None:
            raise self._held.holds_nothing(seq)
        self._forget(held)
        self._pool.give_back_each([self._table(held, group) for group in range(self.groups.each)])
        self.used_slots -= self._slots(held)

    def retire(self, seq: int) -> int:
        held = self._held[seq]
        self._left_by_retired += held.expired
        self.expired_slots -= held.expired  # they no longer belong to a living sequence
        held.retired = True
        return self._slots(held)

    def _forget(self, held: Holding) -> None:
        """A sequence leaves: stop counting what it left behind."""
        if held.retired:
            self._left_by_retired -= held.expired
        else:
            self.expired_slots -= held.expired

    def _slots(self, held: Holding) -> int:
        return (self.groups.each * held.length - self.groups.windowed * held.behind) * self.block_size

    # -- counting -----------------------------------------------------------------------------

    def _name_kinds(self, *states: str) -> None:
        """Record the groups of each kind of layers; states come last, and no token counts in their groups."""
        layers = self._layers
        leaving = {name for name, leaves in zip(layers, self._leaving, strict=True) if leaves}
        self.kinds = [(name, layers.count(name)) for name in kinds_of(layers)]
        self.kinds += [(name, 0) for name in states]
        self._groups_of_kinds = [(groups, groups if name in leaving else 0) for name, groups in self.kinds]

    def kind_counts(
        self, internal: Callable[[], int], finals: Callable[[], Mapping[int, int]]
    ) -> Callable[[], Sequence[int]]:
        """Slots left behind by living and by retired sequences; slots of states."""
        return lambda: (self.expired_slots, self._left_by_retired, self.state_slots)

    def held_by_kind(self, used: int, internal: int, counts: Sequence[int]) -> Sequence[Slots]:
        """All tables are equally long; what retired sequences hold will never be written."""
        expired, gone, states = counts
        each, leaving, left = self.groups.each, self.groups.windowed, expired + gone
        table, never = (used - states + left) // each, (internal + gone) // each
        found: list[Slots] = []
        for groups, leaves in self._groups_of_kinds:
            less = leaves * gone // leaving
            held = groups * table - leaves * left // leaving
            found.append((held, groups * table - less, groups * never - less, 0, 0))
        if states:
            found[-1] = (states, 0, 0, 0, 0)
        return found

    # -- looking ------------------------------------------------------------------------------

    def free_queue(self) -> tuple[int, ...]:
        """The free blocks in allocation order."""
        return tuple(self._pool.queue())

    def layout(self) -> Layout:
        return layout_of_tables(range(self.num_blocks), self.block_size, self._all_tables())

    def _all_tables(self) -> list[Table]:
        return [
            Table(
                seq,
                held.behind * self.block_size * leaves,
                self._table(held, group),
                layers=self._layers[group],
            )
            for seq, held in self._held.items()
            for group, leaves in enumerate(self._leaving)
        ]
