"""Paged: fixed blocks anywhere in the arena, found through a block table (PagedAttention, vLLM).

    block table of a sequence: [47, 12, 83]
    block 47 |################|   block 12 |################|   block 83 |######..........|
                                                                          '- internal: < 1 block

Token i of a sequence lies in slot `table[i // block_size] * block_size + i % block_size`. Waste per
sequence: `-tokens % block_size`, less than one block; every free block is usable, so external is 0.

Blocks freed last are allocated first, as in vLLM 0.33 without prefix caching, or after all others, as in
vLLM 0.11; either way, the last block of a table goes before its first. `fork` shares every block. A sequence
that writes into a shared last block gets a copy of it (copy-on-write); the last holder writes in place.
Sequences can be swapped to a host pool, where blocks that they share with each other stay shared.

    table of 7   [47, 12, 83]        block         47  12  83  90   5
    table of 8   [47, 12, 90]        in tables      2   2   1   1   0, so it is in the pool

allocators/claims.py counts the holders of blocks, allocators/host_pool.py stores swapped tables. With
`cache` it also keeps prefixes (allocators/prefix.py): equal texts share blocks, and freed blocks can be found
until they are allocated again. Sliding windows are in allocators/windowed.py.
"""

from collections.abc import Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.arena import Table, layout_of_tables
from kvsim.allocators.base import Allocator, Content, InvariantError, Layout, Match
from kvsim.allocators.blocks import Blocks
from kvsim.allocators.branching import Branching
from kvsim.allocators.claims import Claims, Forked
from kvsim.allocators.host_pool import HostPool
from kvsim.allocators.hybrid.groups import Hybrid
from kvsim.allocators.options import CacheRules, Options, Order
from kvsim.allocators.pool import FreeList, Pool
from kvsim.allocators.prefix import Prefixes, PrefixMatch
from kvsim.allocators.records import expect_new, holds_nothing
from kvsim.allocators.windowed import Windowed


@mypyc_attr(allow_interpreted_subclasses=True)
class Paged(Blocks):
    """Blocks of `block_size` slots, block tables, reference counts, copy-on-write.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block; a remainder below one block is left out.
    block_size : int
        Slots of a block.
    order : Order
        Which free block to allocate: STACK or QUEUE; with `cache` QUEUE or HASHED_LAST.
    host_slots : int
        Size of the pool for swapped sequences.
    cache : CacheRules, optional
        How prefixes are kept; None: not at all.

    Attributes
    ----------
    prefixes : Prefixes or None
        The prefix cache, if any.
    """

    family: ClassVar[str] = "blocks"
    idea: ClassVar[str] = "a block table for each sequence; blocks are shared, copied on write"
    wastes: ClassVar[str] = "less than one block; nothing between sequences"
    used_by: ClassVar[str] = "vLLM, nano-vLLM"
    source: ClassVar[str] = "PagedAttention, SOSP '23"

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
        super().__init__(capacity_slots, block_size)
        self.growth_unit = block_size
        self.host_capacity_slots = host_slots // block_size * block_size
        self.host_used_slots = 0
        self.order = order
        self.caches = cache is not None
        self.prefixes = None if cache is None else Prefixes(self.num_blocks, block_size, cache, order)
        self._pool: Pool = self.prefixes.pool if self.prefixes else FreeList(self.num_blocks, order)
        self._tables: dict[int, list[int]] = {}  # none is empty
        self._claims: Claims = (Forked if cache is None else Claims)(block_size, self._tables)
        self._host = HostPool()
        self._branching = Branching(self._tables, self._pool, block_size)

    # -- tables -------------------------------------------------------------------------------

    def _table(self, seq: int) -> list[int]:
        """The blocks of a sequence; raises InvariantError if it holds none."""
        table = self._tables.get(seq)
        if table is None:
            raise holds_nothing(self._tables, seq)
        return table

    def block_table(self, seq: int) -> tuple[int, ...]:
        """The blocks of a sequence in token order, as a kernel reads them."""
        return tuple(self._table(seq))

    def table_so_far(self, seq: int) -> Sequence[int]:
        """The same without a copy: it changes with the sequence."""
        return self._table(seq)

    def slot(self, seq: int, token: int) -> int:
        """The address of a token's key and value."""
        table, (index, offset) = self._table(seq), divmod(token, self.block_size)
        if not 0 <= index < len(table):
            raise InvariantError(f"sequence {seq} has no token {token}: it holds {len(table)} blocks")
        return table[index] * self.block_size + offset

    def capacity(self, seq: int) -> int:
        table = self._tables.get(seq)
        if table is None:
            raise holds_nothing(self._tables, seq)
        part_filled = self._claims.part_filled
        if part_filled and table[-1] in part_filled:
            return (len(table) - 1) * self.block_size + part_filled[table[-1]]
        return len(table) * self.block_size

    def references(self, block: int) -> int:
        """How many block tables name the block."""
        return self._claims.holders(block)

    def shared_slots(self) -> int:
        return len(self._claims.references()) * self.block_size

    def shared_tail_slots(self) -> int:
        return self._claims.shared_tail_slots() if self._claims.part_filled else 0

    def logical_slots(self) -> int:
        return self.used_slots + sum(self._claims.references().values()) * self.block_size

    def slots_held(self, seqs: Sequence[int]) -> int:
        if seqs[0] in self._host.tables:
            tables = [self._host.tables[seq] for seq in seqs]
        else:
            tables = [self._table(seq) for seq in seqs]
        return len({block for table in tables for block in table}) * self.block_size

    def rename(self, seq: int, name: int) -> None:
        """Give a sequence another id; it must not have forked."""
        self._tables[name] = self._tables.pop(seq)
        if self.prefixes is not None:
            self.prefixes.rename(seq, name)

    # -- blocks pinned for a copy -------------------------------------------------------------

    def pin(self, copied: list[tuple[int, list[int]]]) -> None:
        """Pin full blocks for a copy: they outlive their sequences, or leave the free queue.

        They come in rows: the key of the first, and the blocks. A pinned block that no sequence holds counts
        as one that holds its tokens.
        """
        assert self.prefixes is not None
        pool, claims = self.prefixes.pool, self._claims
        pool.unlike = False  # blocks behind the first ones of a table may now have other holders
        for key, row in copied:
            claims.tokens -= len(row) * self.block_size
            if pool.none_free(key, len(row)):
                claims.add(row)
                continue
            if pool.finds_free(key, row):
                pool.wake(key, len(row))
                continue
            for each, block in enumerate(row, key):
                if pool.is_free(block, each):
                    pool.take(each, block)
                else:
                    claims.add([block])
        self._count()

    def unpin(self, copied: list[tuple[int, list[int]]], backward: bool = False) -> None:
        """Unpin rows of blocks after a copy; those without another holder are freed, the first one first.

        With `backward` the last of each row first.
        """
        assert self.prefixes is not None
        pool, claims = self.prefixes.pool, self._claims
        for key, row in copied:
            claims.tokens += len(row) * self.block_size
            if backward and claims.extra.keys().isdisjoint(row):  # usually
                pool.give_back(row, key)
                continue
            shared = 0 if backward else claims.drop_first(row)  # usually all
            rest = range(shared, len(row))
            for each in reversed(rest) if backward else rest:
                if not claims.drop(row[each]):
                    pool.give_back([row[each]], key + each)
        self._count()

    # -- room ---------------------------------------------------------------------------------

    def can_admit(self, tokens: int, bound: int) -> bool:
        return -(-tokens // self.block_size) <= self._pool.free

    def match(self, content: Content, own: int, most: int) -> Match:
        assert self.prefixes is not None
        return self.prefixes.match(content, own, most)

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        needed = -(-tokens // self.block_size) * self.block_size - match.tokens + match.woken_slots
        return needed <= self.free_slots

    def growth_budget(self) -> int:
        return 0 if self._claims.part_filled else self._pool.free  # a copy adds less than a block

    def _count(self) -> None:
        self.shared_tokens = self._claims.tokens
        self.used_slots = self.capacity_slots - self._pool.free * self.block_size
        self.cached_slots = self._pool.cached * self.block_size

    # -- drawing ------------------------------------------------------------------------------

    def free_queue(self) -> tuple[int, ...]:
        """The free blocks in allocation order."""
        return tuple(self._pool.queue())

    def layout(self) -> Layout:
        tables = (Table(seq, 0, table) for seq, table in self._tables.items())
        return layout_of_tables(range(self.num_blocks), self.block_size, tables, self._pool.cached_blocks())

    # -- placing and growing --------------------------------------------------------------------

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        if self.prefixes is not None:
            return self.admit_after(self.prefixes.nothing(), seq, tokens, bound)
        if seq in self._tables or tokens < 1:
            expect_new(self._tables, seq, tokens)
        count = -(-tokens // self.block_size)
        if count > self._pool.free:
            return False
        self._tables[seq] = self._pool.allocate(count)
        self.used_slots += count * self.block_size
        return True

    def grow(self, seq: int, tokens: int) -> bool:
        table, size = self._tables.get(seq), self.block_size
        if table is None:
            raise holds_nothing(self._tables, seq)
        full, part_filled = len(table), self._claims.part_filled
        missing = -(-tokens // size) - full
        if part_filled and table[-1] in part_filled and tokens > self.capacity(seq):
            if max(missing, 0) >= self._pool.free:
                return False
            self._copy_on_write(seq, table)
            full -= 1
        elif missing > self._pool.free:
            return False
        elif missing <= 0:
            return True
        if missing > 0:
            table += self._pool.allocate(missing)
            self.used_slots += missing * size
        if self.prefixes is not None:
            if seq in self.prefixes.filling and not self.prefixes.told:
                self.prefixes.fill(seq, table, full)  # all that the sequence held is now full
            self.cached_slots = self._pool.cached * size
        return True

    def grow_many(self, seqs: Sequence[int]) -> None:
        count = len(seqs)
        if count > self._pool.free or self._claims.part_filled:
            raise InvariantError(f"{count} growths were asked for, {self.growth_budget()} promised")
        self.used_slots += count * self.block_size
        try:
            if self.prefixes is None:
                self._pool.allocate_each(seqs, self._tables)
                return
            self.evicted_by = self.prefixes.grow_each(seqs, self._tables)
        except KeyError as missing:
            raise holds_nothing(self._tables, missing.args[0]) from None
        self.cached_slots = self._pool.cached * self.block_size

    def release(self, seq: int) -> None:
        if self.prefixes is not None and seq in self._tables:
            self.prefixes.forget(seq)
            self.prefixes.leave(seq, self._tables.pop(seq), self._claims)
            self._count()
            return
        table = self._tables.pop(seq, None)
        if table is None:
            if seq not in self._host.tables:
                raise holds_nothing(self._tables, seq)
            self.host_used_slots -= self._host.drop(seq) * self.block_size
            return
        table = self._claims.leave(seq, table)
        self.shared_tokens = self._claims.tokens
        self._pool.give_back(table)
        self.used_slots -= len(table) * self.block_size

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        """Share all blocks of the parent, which holds `tokens`; nothing is copied yet, so there is room.

        Raises InvariantError if the parent's last block cannot end with its last token.
        """
        self._claims.fork(parent, child, tokens)
        if self.prefixes is not None:
            self.prefixes.fork(parent, child, len(self._tables[child]))
        self._count()
        return True

    def fork_over(self, seq: int, parent: int, child: int, tokens: int) -> bool:
        """As in `Branches`, in one pass."""
        if self.prefixes is not None:
            self.fork(parent, child, tokens)
            self.release(seq)
            return True
        old = self._table(seq)
        self._claims.fork(parent, child, tokens)
        del self._tables[seq]
        self._pool.give_back(self._claims.leave(seq, old))
        self._count()
        return True

    def branch(self, forks: list[tuple[int, int, int, int]], writers: list[tuple[list[int], int]]) -> None:
        """In one pass, if the only shared blocks that are not full are last blocks forked in this call."""
        claims = self._claims
        if self.prefixes is not None or claims.part_filled:
            self._branch_one_by_one(forks, writers)
            return
        try:
            copies, copied_slots = self._branching.step(claims, forks, writers)
        except KeyError as missing:
            raise holds_nothing(self._tables, missing.args[0]) from None
        self.cow_copies += copies
        self.copied_slots += copied_slots
        self.shared_tokens = claims.tokens
        self.used_slots = self.capacity_slots - self._pool.free * self.block_size

    def _branch_one_by_one(
        self, forks: list[tuple[int, int, int, int]], writers: list[tuple[list[int], int]]
    ) -> None:
        for fork in forks:
            self.fork_over(*fork)
        for seqs, tokens in writers:
            for seq in seqs:
                if not self.grow(seq, tokens):
                    raise InvariantError(f"sequence {seq} got no slot for its token {tokens}")

    # -- keeping prefixes ---------------------------------------------------------------------

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        assert self.prefixes is not None
        assert isinstance(match, PrefixMatch)
        if seq in self._tables or tokens < 1:
            expect_new(self._tables, seq, tokens)
        missing = -(-tokens // self.block_size) - len(match.blocks)
        if missing * self.block_size + match.woken_slots > self.free_slots:
            return False
        self._claims.add(self.prefixes.enter(seq, match))
        self._tables[seq] = match.blocks + self._pool.allocate(missing) if missing > 0 else match.blocks[:]
        self._count()
        return True

    def fill(self, seq: int, tokens: int) -> None:
        if self.prefixes is not None:
            self.prefixes.fill(seq, self._table(seq), tokens // self.block_size)
            self.cached_slots = self._pool.cached * self.block_size

    def evict(self, seq: int) -> None:
        if self.prefixes is not None:
            self.prefixes.keep(seq, self._table(seq))
            self.prefixes.leave(seq, self._tables.pop(seq), self._claims)
            self._count()
        else:
            self.release(seq)

    # -- swapping -----------------------------------------------------------------------------

    def swap_out(self, seqs: Sequence[int]) -> bool:
        slots = self.slots_held(seqs)
        if slots > self.host_capacity_slots - self.host_used_slots:
            return False
        self._host.put({seq: self._table(seq) for seq in seqs}, self._claims.part_filled)
        self.host_used_slots += slots
        for seq in seqs:
            self.release(seq)
        return True

    def swap_in(self, seqs: Sequence[int]) -> bool:
        slots = self.slots_held(seqs)
        if slots > self._pool.free * self.block_size:
            return False
        tables, filled = self._host.take(seqs, self._pool.allocate(slots // self.block_size))
        self.host_used_slots -= slots
        self._tables.update(tables)
        if self.prefixes is not None:
            for seq, table in tables.items():
                self.prefixes.enter_unknown(seq, len(table))
        self._claims.count(tables, filled)
        self._count()
        return True

    def _copy_on_write(self, seq: int, table: list[int]) -> None:
        filled = self._claims.part_filled[table[-1]]
        self._claims.part(seq, table[-1])
        table[-1:] = self._pool.allocate(1)
        self._count()
        self.cow_copies += 1
        self.copied_slots += filled
