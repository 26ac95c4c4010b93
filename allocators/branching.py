"""Sequences that take the places of others in paged memory, then write: a step of beam search in one go.

    c makes way for a', a copy of a (block size 4, 10 tokens)       then a and a' write

    a   [3, 7, 5]    a   [3, 7, 5]     blocks 7 and 5 are shared    a   [3, 7, 8]    a copies two tokens
    c   [3, 9, 6]    a'  [3, 7, 5]     blocks 9 and 6 are free      a'  [3, 7, 5]

Blocks that both tables begin with are as before; behind them, those of the parent get one more reference, and
those of the sequence that makes way lose one. Who shares a last block that is not full writes into a copy of
it, but for the last who shares it.
"""

from kvsim.allocators.claims import Claims
from kvsim.allocators.pool import Pool
from kvsim.allocators.records import Holdings, InvariantError


class Branching:
    """Steps of beam search over the tables of an allocator.

    Attributes
    ----------
    copies, copied_slots : int
        Copies on write so far, and the slots that they copied.
    """

    def __init__(self, tables: Holdings[list[int]], claims: Claims, pool: Pool, block_size: int) -> None:
        self.copies = self.copied_slots = 0
        self._tables, self._claims, self._pool, self._size = tables, claims, pool, block_size
        self._sharers: dict[int, int] = {}  # last blocks that are not full: who shares them, but for one

    def fork(self, seq: int, parent: int, child: int, tokens: int) -> None:
        """Let `child` take the place of `seq`, as a copy of `parent`."""
        tables = self._tables
        table, old = tables[parent], tables[seq]
        full, filled = divmod(tokens, self._size)
        if child in tables or len(table) != full + (filled > 0):
            tables.expect_new(child, tokens)
            raise InvariantError(f"sequence {parent} cannot hold {tokens} tokens in {len(table)} blocks")
        same = min(full, len(old))
        while same and table[same - 1] != old[same - 1]:
            same -= 1  # tables that part share nothing further on
        self._pool.give_back(self._claims.exchange(table[same:full], old[same:]))
        del tables[seq]
        tables[child] = table[:]
        if filled:
            self._sharers[table[-1]] = self._sharers.get(table[-1], 0) + 1

    def write(self, seq: int, tokens: int) -> None:
        """Make room for so many tokens of a sequence, one more than it has."""
        table, pool = self._tables[seq], self._pool
        grows = len(table) * self._size < tokens
        others = 0 if grows else self._sharers.pop(table[-1], 0)
        if not (grows or others):
            return
        if not pool.free:
            raise InvariantError(f"sequence {seq} found no block for its token {tokens}")
        if grows:
            table += pool.lend(1)
            return
        if others > 1:
            self._sharers[table[-1]] = others - 1
        table[-1:] = pool.lend(1)
        self.copies += 1
        self.copied_slots += (tokens - 1) % self._size
