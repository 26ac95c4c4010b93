"""Windowed: paged memory of a model with sliding windows, its layers in groups (vLLM's hybrid manager).

    block 16, window 32, a full group and two windowed ones, in the step that feeds token 112: 11 blocks
    full     |################|################|################|   ...   |################|
    window 1 |..... freed ....|..... freed ....|..... freed ....|   ...   |################|
    window 2 |..... freed ....|..... freed ....|..... freed ....|   ...   |################|

A sequence has a block table in every group; all groups take their blocks from one pool. A block holds
`block_size` slots, a slot one token of one group. A token takes `groups.each` slots when it comes, and
leaves `groups.windowed` of them when the block around it lies behind the window: such slots are *expired*.

    waste of a sequence = groups.each * (-tokens % block_size)       less than one block in each group

Blocks go when the sequence grows, before it takes new ones: with `computed` tokens written, the next one
sees tokens `computed - window + 1` and later, counted from 0, so that each windowed group frees its first

    (computed - window + 1) // block_size        blocks, the last of them first

A piece of a prompt takes blocks for all its tokens in every group; those behind the window go at the next
growth. As freeing is a growth too, `capacity` ends where blocks must be taken or can be freed, and nothing
is promised.

vLLM 0.11 frees even if the new blocks do not fit then; here a refused `grow` changes nothing, but counts what
it would free as room. The numbers are equal at every step, as whoever is refused evicts others, then grows,
or goes itself; only the order of the free blocks may differ. Ignored: fork, prefixes, swapping.
"""

from array import array
from collections.abc import Iterator
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator, Holdings, InvariantError, Layout, Region
from kvsim.allocators.options import Groups, Order
from kvsim.allocators.pool import Pool


class Holding:
    """The block tables of a sequence.

    Attributes
    ----------
    tables : list of list of int
        The blocks of each group that are not freed, the full groups first.
    length : int
        Blocks of a table, freed ones included: the same in every group.
    behind : int
        Blocks that each windowed group has freed.
    capacity : int
        Tokens before the next growth.
    expired : int
        Slots that the sequence has freed.
    """

    __slots__ = ("behind", "capacity", "expired", "length", "tables")

    def __init__(self, groups: int) -> None:
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.length = self.behind = self.capacity = self.expired = 0

    def __repr__(self) -> str:
        return f"{self.length} blocks in each of {len(self.tables)} groups, {self.behind} behind the window"


@mypyc_attr(allow_interpreted_subclasses=True)
class Windowed(Allocator):
    """Blocks of `block_size` slots in a table per group of layers; those behind the window are freed.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block for each group; what does not fill a block is left out.
    groups : Groups
        How the layers are kept.
    block_size : int
        Slots of a block.
    order : Order
        Which free block to lend: STACK or QUEUE.
    """

    windows: ClassVar[bool] = True

    def __init__(
        self, capacity_slots: int, groups: Groups, block_size: int = 16, order: Order = Order.STACK
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if groups.windowed < 1 or groups.full < 0 or groups.window < 1:
            raise ValueError(f"groups must have a windowed one, of at least 1 token, got {groups}")
        if capacity_slots < groups.each * block_size:
            raise ValueError(
                f"capacity_slots must hold {groups.each} blocks of {block_size}, got {capacity_slots}"
            )
        self.block_size = block_size
        self.num_blocks = capacity_slots // block_size
        super().__init__(self.num_blocks * block_size)
        self.slots_per_token = groups.each
        self.groups = groups
        self.order = order
        self._pool = Pool(self.num_blocks, order)
        self._held: Holdings[Holding] = Holdings()

    @property
    def block_slots(self) -> int:
        return self.block_size

    def block_tables(self, seq: int) -> tuple[tuple[int | None, ...], ...]:
        """The blocks of a sequence in each group, in the order of its tokens; None where one was freed."""
        held = self._held[seq]
        return tuple((*[None] * (held.length - len(table)), *table) for table in held.tables)

    # -- placing ------------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.groups.each * -(-tokens // self.block_size) * self.block_size

    def peak_slots(self, tokens: int, bound: int) -> int:
        """Every table whole; of a windowed one, at most what the largest chunk sees and adds, as in vLLM.

        That part of a table may begin and end within a block, hence one more block.
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
        held = self._held[seq] = Holding(self.groups.each)
        self._extend(held, -(-tokens // self.block_size))
        self._plan(held, tokens)
        return True

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return self._held[seq].capacity

    def surplus(self, seq: int, tokens: int) -> int:
        return self.slots_per_token * (self._held[seq].length * self.block_size - tokens)

    def grow(self, seq: int, tokens: int) -> bool:
        return self.grow_chunk(seq, self._held[seq].capacity, tokens)

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        held = self._held[seq]
        if tokens <= held.capacity:
            return True
        if computed > held.capacity:
            raise InvariantError(f"sequence {seq} has room for {held.capacity} tokens, not {computed}")
        groups, size = self.groups, self.block_size
        gone = (computed - groups.window + 1) // size - held.behind
        missing = -(-tokens // size) - held.length
        if gone > 0:
            if self.slots_per_token * missing - groups.windowed * gone > self._pool.free:
                return False
            self._expire(held, gone)
        elif self.slots_per_token * missing > self._pool.free:
            return False
        if missing > 0:
            self._extend(held, missing)
        self._plan(held, tokens)
        return True

    def _expire(self, held: Holding, count: int) -> None:
        """Free so many blocks of each windowed group, the first of its table."""
        for table in held.tables[self.groups.full :]:
            self._take_back(table[:count])
            del table[:count]
        slots = self.groups.windowed * count * self.block_size
        held.behind += count
        held.expired += slots
        self.expired_slots += slots

    def _extend(self, held: Holding, count: int) -> None:
        """Add so many blocks to every table."""
        taken = self.slots_per_token * count
        blocks = self._pool.lend(taken)
        if count == 1:
            for table, block in zip(held.tables, blocks, strict=True):
                table.append(block)
        else:
            for at, table in enumerate(held.tables):
                table.extend(blocks[at * count : (at + 1) * count])
        held.length += count
        self.used_slots += taken * self.block_size

    def _plan(self, held: Holding, tokens: int) -> None:
        """Say where a sequence of `tokens` must come back: for new blocks, or to free those then behind."""
        size = self.block_size
        capacity, next_behind = held.length * size, self.groups.window - 1 + (held.behind + 1) * size
        if next_behind < capacity:
            capacity = next_behind
        held.capacity = capacity if capacity > tokens else tokens

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        held = self._held.pop(seq, None)
        if held is None:
            raise self._held.holds_nothing(seq)
        self.expired_slots -= held.expired
        for table in held.tables:
            self._take_back(table)

    def retire(self, seq: int) -> int:
        held = self._held[seq]
        self.expired_slots -= held.expired  # they belong to no living sequence any more
        held.expired = 0
        return sum(map(len, held.tables)) * self.block_size

    def _take_back(self, table: list[int]) -> None:
        self._pool.give_back(table)
        self.used_slots -= len(table) * self.block_size

    # -- looking ------------------------------------------------------------------------------

    def free_queue(self) -> tuple[int, ...]:
        """The free blocks in the order in which they will be lent."""
        return tuple(self._pool.queue())

    def regions(self) -> Iterator[Region]:
        return self.layout().regions()

    def layout(self) -> Layout:
        count, size = self.num_blocks, self.block_size
        which, firsts = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        owners: list[tuple[int, ...]] = [()]
        for number, (seq, held) in enumerate(self._held.items(), 1):
            owners.append((seq,))
            for table in held.tables:
                behind = held.length - len(table)
                for block, first in zip(table, range(behind * size, held.length * size, size), strict=True):
                    which[block] = number
                    firsts[block] = first
        starts = range(0, self.capacity_slots, size)
        return Layout(starts, array("q", [size]) * count, which, owners, firsts, bytearray(count))
