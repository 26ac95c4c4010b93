"""Block tables over one pool: which blocks a sequence has, where its tokens lie, what still fits.

    table of 7   [47, 12, 83]        block         47  12  83  90   5
    table of 8   [47, 12, 90]        in tables      2   2   1   1   0, so it is in the pool

Here is all that can be asked of such a memory; how blocks come and go is for allocators/paged.py. A block in
several tables is shared: allocators/claims.py counts its holders.

Swapped sequences wait in the host's memory, in other blocks, of which the same are shared:

on the device    7: [47, 12, 83]    8: [47, 12, 90]
here             7: [0, 1, 2]       8: [0, 1, 3]         other numbers, the same blocks shared
and back         7: [5, 6, 31]      8: [5, 6, 14]
"""

from collections.abc import Iterable, Mapping, Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.arena import layout_of_tables
from kvsim.allocators.base import Content, Holdings, InvariantError, Layout, Match
from kvsim.allocators.blocks import Blocks
from kvsim.allocators.claims import Claims, Forked
from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.pool import FreeList, Pool
from kvsim.allocators.prefix import Prefixes
from kvsim.allocators.records import holds_nothing


class HostPool:
    """Block tables of swapped sequences: which blocks they share, not where these lie."""

    def __init__(self) -> None:
        self.tables: Holdings[list[int]] = Holdings()
        self._filled: dict[int, int] = {}
        self._next_block = 0

    def put(self, tables: Mapping[int, list[int]], filled: Mapping[int, int]) -> None:
        """Take in tables of device blocks; `filled` has the tokens of shared blocks that are not full."""
        names: dict[int, int] = {}
        for seq, table in tables.items():
            for block in table:
                names.setdefault(block, self._next_block + len(names))
            self.tables[seq] = [names[block] for block in table]
        self._next_block += len(names)
        self._filled |= {names[block]: filled[block] for block in names.keys() & filled.keys()}

    def take(self, seqs: Sequence[int], blocks: Sequence[int]) -> tuple[dict[int, list[int]], dict[int, int]]:
        """Give tables back, over these device blocks, and the tokens of shared last blocks."""
        names: dict[int, int] = {}
        for seq in seqs:
            for block in self.tables[seq]:
                if block not in names:
                    names[block] = blocks[len(names)]
        tables = {seq: [names[block] for block in self.tables.pop(seq)] for seq in seqs}
        return tables, {names[block]: self._filled.pop(block) for block in names if block in self._filled}

    def drop(self, seq: int) -> int:
        """Forget a sequence; returns the blocks that nobody else in the pool shares."""
        others = {block for other, table in self.tables.items() if other != seq for block in table}
        return len(set(self.tables.pop(seq)) - others)


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockTables(Blocks):
    """A pool of blocks, a table of them for each sequence, here or swapped to the host.

    Attributes
    ----------
    order : Order
        Which free block is allocated first.
    prefixes : Prefixes or None
        What keeps texts; None: nothing does.
    """

    def __init__(
        self, capacity_slots: int, block_size: int, order: Order, host_slots: int, cache: CacheRules | None
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

    # -- tables -------------------------------------------------------------------------------

    def _table(self, seq: int) -> list[int]:
        """The blocks of a sequence that must hold some."""
        table = self._tables.get(seq)
        if table is None:
            raise holds_nothing(self._tables, seq)
        return table

    def block_table(self, seq: int) -> tuple[int, ...]:
        """The blocks of a sequence in the order of its tokens, as a kernel reads them."""
        return tuple(self._table(seq))

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
        """Know a sequence by another id from now on; it has not forked."""
        self._tables[name] = self._tables.pop(seq)
        if self.prefixes is not None:
            self.prefixes.rename(seq, name)

    # -- blocks that a copy uses ------------------------------------------------------------------

    def pin(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """A copy uses full blocks with these keys: they stay when their sequences leave, or leave the queue.

        A block that is pinned alone counts as one that holds its tokens.
        """
        assert self.prefixes is not None
        pool, claims = self.prefixes.pool, self._claims
        pool.unlike = False  # not only the first blocks of a table may have other holders
        claims.tokens -= len(blocks) * self.block_size
        for key, row in rows(sorted(zip(keys, blocks, strict=True))):
            if pool.finds_free(key, row):
                pool.wake(key, len(row))
                continue
            for each, block in enumerate(row, key):
                if pool.is_free(block, each):
                    pool.take(each, block)
                else:
                    claims.add([block])
        self._count()

    def unpin(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """A copy uses these blocks no more; those that nobody else holds are free, the first one first."""
        assert self.prefixes is not None
        for block, key in zip(blocks, keys, strict=True):
            if not self._claims.drop(block):
                self.prefixes.pool.give_back([block], key)
            self._claims.tokens += self.block_size
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
        """Say what the pool and the claims come to."""
        self.shared_tokens = self._claims.tokens
        self.used_slots = self.capacity_slots - self._pool.free * self.block_size
        self.cached_slots = self._pool.cached * self.block_size

    # -- drawing ------------------------------------------------------------------------------

    def free_queue(self) -> tuple[int, ...]:
        """The free blocks in the order in which they will be allocated."""
        return tuple(self._pool.queue())

    def layout(self) -> Layout:
        tables = ((seq, 0, table, 1) for seq, table in self._tables.items())
        return layout_of_tables(range(self.num_blocks), self.block_size, tables, self._pool.cached_blocks())


def rows(keyed: Iterable[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """(key, block) by ascending keys as rows of blocks with consecutive ones, each with its first key."""
    found: list[tuple[int, list[int]]] = []
    for key, block in keyed:
        if found and found[-1][0] + len(found[-1][1]) == key:
            found[-1][1].append(block)
        else:
            found.append((key, [block]))
    return found
