"""One step of beam search in paged memory: sequences replace others, then write, in one pass.

    a', a copy of a, replaces c (block size 4, 10 tokens)       then a and a' write

    a   [3, 7, 5]    a   [3, 7, 5]     blocks 7 and 5 are shared    a   [3, 7, 8]    a copies two tokens
    c   [3, 9, 6]    a'  [3, 7, 5]     blocks 9 and 6 are free      a'  [3, 7, 5]

Full blocks of the parent are shared with the child, and the replaced sequence frees its unshared blocks
(`Claims.take_place`). Sequences that share a last block that is not full write into copies of it, except the
last one. All of them write in this step, so the sharing need not be recorded elsewhere.
"""

from kvsim.allocators.claims import Claims
from kvsim.allocators.pool import Pool
from kvsim.allocators.records import Id, InvariantError, expect_new


class Branching:
    """Steps of beam search over the tables of an allocator."""

    def __init__(self, tables: dict[int, list[int]], pool: Pool, block_size: int) -> None:
        self._tables, self._pool, self._size = tables, pool, block_size

    def step(
        self,
        claims: Claims,
        forks: list[tuple[Id, Id, Id, int]],
        writers: list[tuple[list[Id], int]],
    ) -> tuple[int, int]:
        """Like `Branches.branch`, in one pass; returns (copies on write, slots copied).

        Sequences that share a last block that is not full must write.
        """
        sharers: dict[Id, int] = {}  # unfilled last block -> its holders minus one
        for fork in forks:
            last = self._fork(claims, fork)
            if last is not None:
                sharers[last] = sharers[last] + 1 if last in sharers else 1
        tables: dict[Id, list[Id]] = self._tables
        pool, size = self._pool, self._size
        copies = copied_slots = 0
        for seqs, tokens in writers:
            if len(tables[seqs[0]]) * size < tokens:  # all are full
                if pool.free < len(seqs):
                    raise InvariantError(f"sequences {seqs} found {pool.free} blocks for token {tokens}")
                pool.allocate_each(seqs, tables)
                continue
            for seq in seqs:
                table = tables[seq]
                last = table[-1]
                if last in sharers:
                    if not pool.free:
                        raise InvariantError(f"sequence {seq} found no block for its token {tokens}")
                    table[-1] = pool.allocate_one()
                    copies += 1
                    copied_slots += (tokens - 1) % size
                    if sharers[last] > 1:
                        sharers[last] -= 1
                        continue
                    del sharers[last]
                    if not sharers:
                        break
        if sharers:
            raise InvariantError(f"sequences share the blocks {list(sharers)}, not full, and do not write")
        return copies, copied_slots

    def _fork(self, claims: Claims, fork: tuple[Id, Id, Id, int]) -> Id | None:
        """Replace `seq` by `child`, a copy of `parent`; returns the last block if not full."""
        seq, parent, child, tokens = fork
        tables: dict[Id, list[Id]] = self._tables
        size = self._size
        table, old = tables[parent], tables[seq]
        full = tokens // size
        filled = tokens - full * size
        if child in tables or len(table) != full + (filled > 0):
            expect_new(tables, child, tokens)
            raise InvariantError(f"sequence {parent} cannot hold {tokens} tokens in {len(table)} blocks")
        self._pool.give_back(claims.take_place(seq, old, parent, child, full))
        del tables[seq]
        tables[child] = table[:]
        return table[-1] if filled else None
