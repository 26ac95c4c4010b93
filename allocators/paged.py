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

Prefixes are kept by a subclass (allocators/prefix.py), sliding windows by allocators/windowed.py.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat

from kvsim.allocators.base import Allocator, Holdings, InvariantError, Region
from kvsim.allocators.host_pool import HostPool
from kvsim.allocators.options import Options, Order


class Paged(Allocator):
    """Blocks of `block_size` slots, block tables, reference counts, copy-on-write.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block; what does not fill a block is left out.
    block_size : int
        Slots of a block.
    order : Order
        Which free block to lend: STACK or QUEUE.
    host_slots : int
        Size of the pool for swapped sequences.
    """

    pages = has_blocks = forks = True
    frees_behind_windows = True
    keeps_prefixes = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Allocator:
        if options.cache is not None:
            from kvsim.allocators.prefix import PagedPrefix

            return PagedPrefix(
                capacity_slots, options.block_size, options.order, options.cache, options.host_slots
            )
        if options.groups is not None:
            from kvsim.allocators.windowed import Windowed

            return Windowed(capacity_slots, options.groups, options.block_size, options.order)
        return cls(capacity_slots, options.block_size, options.order, options.host_slots)

    def __init__(
        self, capacity_slots: int, block_size: int = 16, order: Order = Order.STACK, host_slots: int = 0
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if capacity_slots < block_size:
            raise ValueError(f"capacity_slots must hold one block of {block_size}, got {capacity_slots}")
        self.block_size = self.growth_unit = block_size
        self.num_blocks = capacity_slots // block_size
        super().__init__(self.num_blocks * block_size)
        self.host_capacity_slots = host_slots // block_size * block_size
        self.order = order
        self._free = list(range(self.num_blocks - 1, -1, -1))  # the next one to lend is the last
        self._tables: Holdings[list[int]] = Holdings()  # none is empty
        self._extra_owners: dict[int, int] = {}  # shared blocks only: references beyond the first
        self._part_filled: dict[int, int] = {}  # shared last blocks that are not full: tokens in them
        self._host = HostPool()

    def block_table(self, seq: int) -> tuple[int, ...]:
        """The blocks of a sequence in the order of its tokens, as a kernel reads them."""
        return tuple(self._tables[seq])

    def free_queue(self) -> tuple[int, ...]:
        """The free blocks in the order in which they will be lent."""
        return tuple(self._free[::-1])

    def slot(self, seq: int, token: int) -> int:
        """The address of a token's key and value."""
        table, (index, offset) = self._tables[seq], divmod(token, self.block_size)
        if not 0 <= index < len(table):
            raise InvariantError(f"sequence {seq} has no token {token}: it holds {len(table)} blocks")
        return table[index] * self.block_size + offset

    def slots_needed(self, tokens: int, bound: int) -> int:
        return -(-tokens // self.block_size) * self.block_size

    def can_admit(self, tokens: int, bound: int) -> bool:
        return -(-tokens // self.block_size) <= len(self._free)

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        if seq in self._tables or tokens < 1:
            self._tables.expect_new(seq, tokens)
        count = -(-tokens // self.block_size)
        if count > len(self._free):
            return False
        self._tables[seq] = self._lend(count)
        return True

    def capacity(self, seq: int) -> int:
        table = self._tables[seq]
        if self._part_filled and table[-1] in self._part_filled:
            return (len(table) - 1) * self.block_size + self._part_filled[table[-1]]
        return len(table) * self.block_size

    def grow(self, seq: int, tokens: int) -> bool:
        table = self._tables[seq]
        shared_last = table[-1] in self._part_filled and tokens > self.capacity(seq)
        missing = -(-tokens // self.block_size) - len(table)
        if max(missing, 0) + shared_last > self._room():
            return False
        if shared_last:
            self._copy_on_write(table)
        if missing > 0:
            table += self._lend(missing)
        return True

    def grow_many(self, seqs: Sequence[int]) -> None:
        if self._part_filled or len(seqs) > len(self._free):
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.growth_budget()} promised")
        tables, pop = self._tables, self._free.pop
        for seq in seqs:
            tables[seq].append(pop())
        self.used_slots += len(seqs) * self.block_size

    def growth_budget(self) -> int:
        return 0 if self._part_filled else len(self._free)  # a copy adds less than a block

    def release(self, seq: int) -> None:
        table = self._tables.pop(seq, None)
        if table is None:
            if seq not in self._host.tables:
                raise self._tables.holds_nothing(seq)
            self.host_used_slots -= self._host.drop(seq) * self.block_size
            return
        if self._extra_owners:
            table = [block for block in table if not self._drop_owner(block)]
        self._take_back(table)

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        """Share all blocks of the parent, which holds `tokens`; as nothing is copied yet, there is room.

        Raises InvariantError when the parent's last block cannot end with its last token.
        """
        self._tables.expect_new(child, tokens)
        table, size = self._tables[parent], self.block_size
        last, filled = table[-1], tokens - (len(table) - 1) * size
        known = self._part_filled.get(last, size) if last in self._extra_owners else filled
        if not 0 < filled <= size or filled != known:
            room = f"{len(table)} blocks of {size}, {known} tokens in the last"
            raise InvariantError(f"sequence {parent} cannot hold {tokens} tokens in {room}")
        for block in table:
            self._extra_owners[block] = self._extra_owners.get(block, 0) + 1
        if filled < size:
            self._part_filled[last] = filled
        self._tables[child] = table[:]
        self.shared_tokens += tokens
        return True

    def idle_slots(self) -> int:
        if not self._part_filled:
            return 0
        return sum(self.block_size - filled for filled in self._part_filled.values())

    def references(self, block: int) -> int:
        """How many block tables name the block."""
        if block in self._extra_owners:
            return self._extra_owners[block] + 1
        return sum(block in table for table in self._tables.values())

    def shared_slots(self) -> int:
        return len(self._extra_owners) * self.block_size

    def logical_slots(self) -> int:
        return self.used_slots + sum(self._extra_owners.values()) * self.block_size

    def regions(self) -> Iterator[Region]:
        owners: list[tuple[int, ...]] = [()] * self.num_blocks
        firsts, size = [0] * self.num_blocks, self.block_size
        for seq, table in self._tables.items():
            for index, block in enumerate(table):
                owners[block] += (seq,)
                firsts[block] = index * size
        return map(Region, range(0, self.capacity_slots, size), repeat(size), owners, firsts)

    # -- swapping -----------------------------------------------------------------------------

    def slots_held(self, seqs: Sequence[int]) -> int:
        tables = self._host.tables if seqs[0] in self._host.tables else self._tables
        return len({block for seq in seqs for block in tables[seq]}) * self.block_size

    def swap_out(self, seqs: Sequence[int]) -> bool:
        slots = self.slots_held(seqs)
        if slots > self.host_capacity_slots - self.host_used_slots:
            return False
        tables = {seq: self._tables[seq] for seq in seqs}
        filled = {table[-1]: self._part_filled.get(table[-1], 0) for table in tables.values()}
        self._host.put(tables, filled)
        self.host_used_slots += slots
        for seq in seqs:
            self.release(seq)
        return True

    def swap_in(self, seqs: Sequence[int]) -> bool:
        slots = self.slots_held(seqs)
        if slots > self._room() * self.block_size:
            return False
        tables, filled = self._host.take(seqs, self._lend(slots // self.block_size))
        self.host_used_slots -= slots
        self._tables.update(tables)
        for block, count in Counter(block for table in tables.values() for block in table).items():
            if count > 1:
                self._extra_owners[block] = count - 1
                tokens = filled.get(block) or self.block_size
                if tokens < self.block_size:
                    self._part_filled[block] = tokens
                self.shared_tokens += (count - 1) * tokens
        return True

    # -- pieces -------------------------------------------------------------------------------

    def _room(self) -> int:
        """Free blocks."""
        return len(self._free)

    def _lend(self, count: int) -> list[int]:
        """The next `count` free blocks: there must be so many."""
        free = self._free
        blocks = free[: -count - 1 : -1]
        del free[len(free) - count :]
        self.used_slots += count * self.block_size
        return blocks

    def _take_back(self, table: list[int]) -> None:
        """The blocks of a table that nobody owns any more are free."""
        if self.order is Order.STACK:
            self._free += table
        else:
            self._free[:0] = table
        self.used_slots -= len(table) * self.block_size

    def _drop_owner(self, block: int) -> bool:
        """Take one reference away; False when it was the only one."""
        extra = self._extra_owners.get(block)
        if extra is None:
            return False
        self.shared_tokens -= self._part_filled.get(block, self.block_size)
        if extra > 1:
            self._extra_owners[block] = extra - 1
        else:
            del self._extra_owners[block]
            self._part_filled.pop(block, None)
        return True

    def _copy_on_write(self, table: list[int]) -> None:
        filled = self._part_filled[table[-1]]
        self._drop_owner(table[-1])
        table[-1:] = self._lend(1)
        self.cow_copies += 1
        self.copied_slots += filled
