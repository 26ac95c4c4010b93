"""Paged: fixed blocks anywhere in the arena, found through a block table (PagedAttention, vLLM).

    block table of a sequence: [47, 12, 83]
    block 47 |################|   block 12 |################|   block 83 |######..........|
                                                                          '- internal: < 1 block

Token i of a sequence lies in slot `table[i // block_size] * block_size + i % block_size`. Waste of a
sequence: `-tokens % block_size`, less than one block; no free block is ever useless, so external is 0.

Blocks freed last are lent first, as in vLLM 0.33 without prefix caching, or after all others, as in
vLLM 0.11; either way the last block of a table before its first. `fork` shares every block; whoever
first writes into a shared last block gets a copy of it (copy-on-write), the last holder writes in place.
Sequences can be swapped to a host pool, where blocks that they share among each other stay shared.

With `cache` it also keeps prefixes (allocators/prefix.py): equal texts share blocks, and freed blocks can be
found until they are lent again. Sliding windows are for allocators/windowed.py.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator, Content, Holdings, InvariantError, Layout, Match, Region
from kvsim.allocators.branching import Branching
from kvsim.allocators.claims import Claims
from kvsim.allocators.host_pool import HostPool
from kvsim.allocators.hybrid.groups import Hybrid
from kvsim.allocators.options import CacheRules, Options, Order
from kvsim.allocators.pool import Pool
from kvsim.allocators.prefix import Known, Prefixes, PrefixMatch
from kvsim.allocators.windowed import Windowed


@mypyc_attr(allow_interpreted_subclasses=True)
class Paged(Allocator):
    """Blocks of `block_size` slots, block tables, reference counts, copy-on-write.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block; what does not fill a block is left out.
    block_size : int
        Slots of a block.
    order : Order
        Which free block to lend: STACK or QUEUE; with `cache` QUEUE or HASHED_LAST.
    host_slots : int
        Size of the pool for swapped sequences.
    cache : CacheRules, optional
        How prefixes are kept; None: not at all.
    """

    family: ClassVar[str] = "blocks"
    idea: ClassVar[str] = "a block table for each sequence; blocks are shared, copied on write"
    wastes: ClassVar[str] = "less than one block; nothing between sequences"
    used_by: ClassVar[str] = "vLLM, nano-vLLM"
    source: ClassVar[str] = "PagedAttention, SOSP '23"

    pages: ClassVar[bool] = True
    has_blocks: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    copies_on_write: ClassVar[bool] = True
    frees_behind_windows: ClassVar[bool] = True
    keeps_prefixes: ClassVar[bool] = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Allocator:
        if options.hybrid is not None:
            return Hybrid.from_options(capacity_slots, options)
        if options.groups is not None:
            return Windowed(capacity_slots, options.groups, options.block_size, options.order)
        return cls(capacity_slots, options.block_size, options.order, options.host_slots, options.cache)

    def __init__(
        self,
        capacity_slots: int,
        block_size: int = 16,
        order: Order = Order.STACK,
        host_slots: int = 0,
        cache: CacheRules | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if capacity_slots < block_size:
            raise ValueError(f"capacity_slots must hold one block of {block_size}, got {capacity_slots}")
        super().__init__(capacity_slots // block_size * block_size)
        self.block_size = self.growth_unit = block_size
        self.num_blocks = capacity_slots // block_size
        self.host_capacity_slots = host_slots // block_size * block_size
        self.order = order
        self.caches = cache is not None
        self.prefixes = None if cache is None else Prefixes(self.num_blocks, block_size, cache)
        self._pool = self.prefixes.pool if self.prefixes else Pool(self.num_blocks, order)
        self._tables: Holdings[list[int]] = Holdings()  # none is empty
        self._claims = Claims(block_size)
        self._branching = Branching(self._tables, self._claims, self._pool, block_size)
        self._host = HostPool()

    def block_table(self, seq: int) -> tuple[int, ...]:
        """The blocks of a sequence in the order of its tokens, as a kernel reads them."""
        return tuple(self._tables[seq])

    def free_queue(self) -> tuple[int, ...]:
        """The free blocks in the order in which they will be lent."""
        return tuple(self._pool.queue())

    def slot(self, seq: int, token: int) -> int:
        """The address of a token's key and value."""
        table, (index, offset) = self._tables[seq], divmod(token, self.block_size)
        if not 0 <= index < len(table):
            raise InvariantError(f"sequence {seq} has no token {token}: it holds {len(table)} blocks")
        return table[index] * self.block_size + offset

    def slots_needed(self, tokens: int, bound: int) -> int:
        return -(-tokens // self.block_size) * self.block_size

    def can_admit(self, tokens: int, bound: int) -> bool:
        return -(-tokens // self.block_size) <= self._pool.free

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        if self.prefixes is not None:
            return self.admit_after(self.prefixes.nothing(), seq, tokens, bound)
        if seq in self._tables or tokens < 1:
            self._tables.expect_new(seq, tokens)
        count = -(-tokens // self.block_size)
        if count > self._pool.free:
            return False
        self._tables[seq] = self._pool.lend(count)
        self.used_slots += count * self.block_size
        return True

    def capacity(self, seq: int) -> int:
        table = self._tables[seq]
        part_filled = self._claims.part_filled
        if part_filled and table[-1] in part_filled:
            return (len(table) - 1) * self.block_size + part_filled[table[-1]]
        return len(table) * self.block_size

    def grow(self, seq: int, tokens: int) -> bool:
        table, size = self._tables[seq], self.block_size
        full, part_filled = len(table), self._claims.part_filled
        missing = -(-tokens // size) - full
        if part_filled and table[-1] in part_filled and tokens > self.capacity(seq):
            if max(missing, 0) >= self._pool.free:
                return False
            self._copy_on_write(table)
            full -= 1
        elif missing > self._pool.free:
            return False
        elif missing <= 0:
            return True
        if missing > 0:
            table += self._pool.lend(missing)
            self.used_slots += missing * size
        if self.prefixes is not None:
            if seq in self.prefixes.filling:
                self.prefixes.fill(seq, table, full)  # what the sequence held is full now
            self.cached_slots = self._pool.cached * size
        return True

    def grow_many(self, seqs: Sequence[int]) -> None:
        count = len(seqs)
        if count > self._pool.free or self._claims.part_filled:
            raise InvariantError(f"{count} growths were asked for, {self.growth_budget()} promised")
        self.used_slots += count * self.block_size
        if self.prefixes is None:
            self._pool.lend_each(seqs, self._tables)
        else:
            self._grow_known(seqs, self.prefixes.filling)

    def _grow_known(self, seqs: Sequence[int], filling: set[int]) -> None:
        """Grow sequences, and say who of them took the block of a text that could be found."""
        self.evicted_by = []
        if filling and not filling.isdisjoint(seqs):
            self._fill_and_grow(seqs)
        else:
            self._pool.lend_each(seqs, self._tables, self.evicted_by)
        self.cached_slots = self._pool.cached * self.block_size

    def _fill_and_grow(self, seqs: Sequence[int]) -> None:
        """Grow one by one, as what a sequence held is full when it grows: a cached equal may be forgotten."""
        pool = self._pool
        for index, seq in enumerate(seqs):
            cached = pool.cached
            self.fill(seq, len(self._tables[seq]) * self.block_size)
            self._tables[seq] += pool.lend(1)
            self.evicted_by += [index] * (cached - pool.cached)

    def growth_budget(self) -> int:
        return 0 if self._claims.part_filled else self._pool.free  # a copy adds less than a block

    def release(self, seq: int) -> None:
        if self.prefixes is not None and seq in self._tables:
            self.prefixes.forget(seq)
            self._leave(seq, self.prefixes.leave(seq))
            return
        table = self._tables.pop(seq, None)
        if table is None:
            if seq not in self._host.tables:
                raise self._tables.holds_nothing(seq)
            self.host_used_slots -= self._host.drop(seq) * self.block_size
            return
        if self._claims.extra:
            table = self._claims.drop_all(table)
            self.shared_tokens = self._claims.tokens
        self._pool.give_back(table)
        self.used_slots -= len(table) * self.block_size

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        """Share all blocks of the parent, which holds `tokens`; as nothing is copied yet, there is room.

        Raises InvariantError when the parent's last block cannot end with its last token.
        """
        self._expect_last(parent, child, tokens)
        table = self._tables[parent]
        self._claims.add_table(table, tokens)
        self._tables[child] = table[:]
        self._count()
        if self.prefixes is not None:
            self.prefixes.fork(parent, child, len(table))
        return True

    def fork_over(self, seq: int, parent: int, child: int, tokens: int) -> bool:
        """As in `Allocator`; of blocks that `seq` shares with the parent, nothing need be counted."""
        if self.prefixes is not None:
            return super().fork_over(seq, parent, child, tokens)
        table, old = self._tables[parent], self._tables[seq]
        last = self._expect_last(parent, child, tokens)
        same = min(len(table), len(old))
        while same and (same > last or table[same - 1] != old[same - 1]):
            same -= 1  # tables that part share nothing further on
        shared = table[same:]
        self._claims.add_table(shared, tokens - same * self.block_size)
        alone = self._claims.drop_all(old[same:])
        self._pool.give_back(alone)
        del self._tables[seq]
        self._tables[child] = table[:]
        self._count()
        return True

    def branch(self, forks: Sequence[tuple[int, int, int, int]], writers: Sequence[tuple[int, int]]) -> None:
        """As in `Allocator`, in one go where only last blocks that fork now can be shared and not full."""
        if self.prefixes is not None or self._claims.part_filled:
            super().branch(forks, writers)
            return
        branching = self._branching
        for seq, parent, child, tokens in forks:
            branching.fork(seq, parent, child, tokens)
        for seq, tokens in writers:
            branching.write(seq, tokens)
        self.cow_copies += branching.copies
        self.copied_slots += branching.copied_slots
        branching.copies = branching.copied_slots = 0
        self._count()

    def _expect_last(self, parent: int, child: int, tokens: int) -> int:
        """The place of the parent's last block, if it ends with the last token, and the child is new."""
        self._tables.expect_new(child, tokens)
        table, size = self._tables[parent], self.block_size
        last, filled = table[-1], tokens - (len(table) - 1) * size
        known = self._claims.part_filled.get(last, size) if last in self._claims.extra else filled
        if not 0 < filled <= size or filled != known:
            room = f"{len(table)} blocks of {size}, {known} tokens in the last"
            raise InvariantError(f"sequence {parent} cannot hold {tokens} tokens in {room}")
        return len(table) - 1

    def shared_tail_slots(self) -> int:
        return self._claims.shared_tail_slots() if self._claims.part_filled else 0

    def references(self, block: int) -> int:
        """How many block tables name the block."""
        if block in self._claims.extra:
            return self._claims.extra[block] + 1
        return sum(block in table for table in self._tables.values())

    def shared_slots(self) -> int:
        return len(self._claims.extra) * self.block_size

    def logical_slots(self) -> int:
        return self.used_slots + sum(self._claims.extra.values()) * self.block_size

    def regions(self) -> Iterator[Region]:
        return self.layout().regions()

    def layout(self) -> Layout:
        count, size = self.num_blocks, self.block_size
        which, firsts = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        owners: list[tuple[int, ...]] = [()]
        tokens = range(0, self.capacity_slots, size)
        for number, (seq, table) in enumerate(self._tables.items(), 1):
            owners.append((seq,))
            for block, first in zip(table, tokens, strict=False):
                which[block] = number
                firsts[block] = first
        place: dict[tuple[int, ...], int] = {}
        for block, seqs in self._claims.sharers(self._tables).items() if self._claims.extra else ():
            if seqs not in place:
                place[seqs] = len(owners)
                owners.append(seqs)
            which[block] = place[seqs]
        cached = bytearray(count)
        for block in self.prefixes.pool.cached_blocks() if self.prefixes else ():
            cached[block] = 1
        return Layout(tokens, array("q", [size]) * count, which, owners, firsts, cached)

    # -- keeping prefixes ---------------------------------------------------------------------

    def match(self, content: Content, own: int, most: int) -> Match:
        return self.prefixes.match(content, own, most) if self.prefixes else super().match(content, own, most)

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        needed = -(-tokens // self.block_size) * self.block_size - match.tokens + match.woken_slots
        return needed <= self.free_slots

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        if self.prefixes is None:
            return super().admit_after(match, seq, tokens, bound)
        assert isinstance(match, PrefixMatch)
        if seq in self._tables or tokens < 1:
            self._tables.expect_new(seq, tokens)
        missing = -(-tokens // self.block_size) - len(match.blocks)
        if missing * self.block_size + match.woken_slots > self.free_slots:
            return False
        self._claims.add(self.prefixes.enter(seq, match))
        self._tables[seq] = match.blocks + self._pool.lend(missing) if missing > 0 else match.blocks[:]
        self._count()
        return True

    def fill(self, seq: int, tokens: int) -> None:
        if self.prefixes is not None:
            self.prefixes.fill(seq, self._tables[seq], tokens // self.block_size)
            self.cached_slots = self._pool.cached * self.block_size

    def evict(self, seq: int) -> None:
        if self.prefixes is not None:
            self.prefixes.keep(seq, self._tables[seq])
            self._leave(seq, self.prefixes.leave(seq))
        else:
            self.release(seq)

    def _leave(self, seq: int, known: Known) -> None:
        """Take back a table by its texts, so that they can be found again."""
        table = self._tables.pop(seq)
        if self.order is Order.HASHED_LAST and known.full < len(table):
            tail = table[known.full :]
            self._pool.give_back(self._claims.drop_all(tail) if self._claims.extra else tail, first=True)
            del table[known.full :]
        for start, stop, key in known.runs(len(table)):
            blocks = table[start:stop]
            if start < known.alone and self._claims.extra:
                self._give_back_unshared(blocks, key)
            else:
                self._pool.give_back(blocks, key)
        self._count()

    def _give_back_unshared(self, blocks: list[int], key: int | None) -> None:
        """Free those blocks to which nobody else has a claim, the last first; the others lose one."""
        alone = self._claims.drop_all(blocks)
        start = len(blocks) - len(alone)
        if not alone:
            return
        if blocks[start:] == alone:  # most often: what is shared comes first
            self._pool.give_back(alone, None if key is None else key + start)
            return
        mine = set(alone)
        for at in range(len(blocks) - 1, -1, -1):
            if blocks[at] in mine:
                self._pool.give_back(blocks[at : at + 1], None if key is None else key + at)

    # -- swapping -----------------------------------------------------------------------------

    def slots_held(self, seqs: Sequence[int]) -> int:
        tables = self._host.tables if seqs[0] in self._host.tables else self._tables
        return len({block for seq in seqs for block in tables[seq]}) * self.block_size

    def swap_out(self, seqs: Sequence[int]) -> bool:
        slots = self.slots_held(seqs)
        if slots > self.host_capacity_slots - self.host_used_slots:
            return False
        tables = {seq: self._tables[seq] for seq in seqs}
        filled = {table[-1]: self._claims.part_filled.get(table[-1], 0) for table in tables.values()}
        self._host.put(tables, filled)
        self.host_used_slots += slots
        for seq in seqs:
            self.release(seq)
        return True

    def swap_in(self, seqs: Sequence[int]) -> bool:
        slots = self.slots_held(seqs)
        if slots > self._pool.free * self.block_size:
            return False
        tables, filled = self._host.take(seqs, self._pool.lend(slots // self.block_size))
        self.host_used_slots -= slots
        self._tables.update(tables)
        if self.prefixes is not None:
            for seq, table in tables.items():
                self.prefixes.enter_unknown(seq, len(table))
        self._claims.count(tables.values(), filled)
        self._count()
        return True

    # -- pieces -------------------------------------------------------------------------------

    def _count(self) -> None:
        """Say what the pool and the claims come to."""
        self.shared_tokens = self._claims.tokens
        self.used_slots = self.capacity_slots - self._pool.free * self.block_size
        self.cached_slots = self._pool.cached * self.block_size

    def _copy_on_write(self, table: list[int]) -> None:
        filled = self._claims.part_filled[table[-1]]
        self._claims.drop(table[-1])
        table[-1:] = self._pool.lend(1)
        self._count()
        self.cow_copies += 1
        self.copied_slots += filled
