"""Sequences that take the places of others in paged memory, then write: a step of beam search in one go.

    c makes way for a', a copy of a (block size 4, 10 tokens)       then a and a' write

    a   [3, 7, 5]    a   [3, 7, 5]     blocks 7 and 5 are shared    a   [3, 7, 8]    a copies two tokens
    c   [3, 9, 6]    a'  [3, 7, 5]     blocks 9 and 6 are free      a'  [3, 7, 5]

Blocks that both tables begin with are as before; behind them, those of the parent get one more reference, and
those of the sequence that makes way lose one. Who shares a last block that is not full writes into a copy of
it, but for the last who shares it.
"""

from collections.abc import Sequence

from kvsim.allocators.claims import Claims
from kvsim.allocators.pool import Pool
from kvsim.allocators.records import Holdings, InvariantError

Fork = tuple[int, int, int, int]
"""(sequence that makes way, parent, child, tokens of the parent)"""


class Branching:
    """One step: first all that fork, then all that write.

    Attributes
    ----------
    copies, copied_slots : int
        Copies on write, and the slots that they copied.
    """

    def __init__(self, tables: Holdings[list[int]], claims: Claims, pool: Pool, block_size: int) -> None:
        self.copies = self.copied_slots = 0
        self._tables, self._claims, self._pool, self._size = tables, claims, pool, block_size
        self._sharers: dict[int, int] = {}  # last blocks that are not full: who shares them, but for one
        self._filled: dict[int, int] = {}

    def fork(self, seq: int, parent: int, child: int, tokens: int) -> None:
        """Let `child` take the place of `seq`, as a copy of `parent`."""
        tables, size = self._tables, self._size
        table, old = tables[parent], tables[seq]
        full, filled = divmod(tokens, size)
        if child in tables or len(table) != full + (filled > 0):
            tables.expect_new(child, tokens)
            raise InvariantError(f"sequence {parent} cannot hold {tokens} tokens in {len(table)} blocks")
        same = min(full, len(old))
        while same and table[same - 1] != old[same - 1]:
            same -= 1  # tables that part share nothing further on
        self._claims.exchange(table[same:full], old[same:], self._pool)
        del tables[seq]
        tables[child] = table[:]
        if filled:
            last = table[-1]
            self._sharers[last] = self._sharers.get(last, 0) + 1
            self._filled[last] = filled

    def write(self, writers: Sequence[tuple[int, int]]) -> None:
        """Make room for so many tokens, one more than each has."""
        tables, sharers, size = self._tables, self._sharers, self._size
        taken: list[tuple[list[int], bool]] = []
        for seq, tokens in writers:
            table = tables[seq]
            if len(table) * size < tokens:
                taken.append((table, False))
            elif sharers.get(table[-1]):
                sharers[table[-1]] -= 1
                self.copies += 1
                self.copied_slots += self._filled[table[-1]]
                taken.append((table, True))
        if len(taken) > self._pool.free:
            raise InvariantError(f"{len(taken)} blocks are needed and {self._pool.free} are free")
        for (table, copies), block in zip(taken, self._pool.lend(len(taken)), strict=True):
            if copies:
                table[-1] = block
            else:
                table.append(block)
