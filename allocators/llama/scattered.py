"""llama-scattered: llama.cpp since August 2025: a cell per token, in any empty cell.

    |aabbbba.cc.cab...|   one array for all sequences; no blocks, no table, no reservation
            ^ head: where the next search begins

Waste of a sequence: none; a prompt fits as long as enough cells are empty, wherever they are. The price is
paid in time: attention reads every cell up to the last one in use, holes and prompts under way included, and
masks what it does not want (`read_slots`).
"""

from collections.abc import Iterator, Mapping, Sequence

from kvsim.allocators.base import Allocator, Holdings, InvariantError, Region
from kvsim.allocators.llama import search
from kvsim.allocators.shares import shares

UBATCH = 512
"""tokens that are placed by one search (llama.cpp's `--ubatch-size`)"""
PADDING = 256
"""cells: attention reads a multiple"""


class LlamaScattered(Allocator):
    """Cells of one token, found one by one.

    Parameters
    ----------
    capacity_slots : int
        Cells.
    """

    family = "tokens"
    idea = "any empty cells of one array, searched from a moving head"
    wastes = "nothing; attention reads the holes, too"
    used_by = "llama.cpp since August 2025"
    source = "llama.cpp src/llama-kv-cache.cpp, PR 15473"

    growth_unit = 1

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots)
        self._empty = bytearray(b"\1" * capacity_slots)
        self._rows: Holdings[list[int]] = Holdings()  # the cells of each sequence, by token
        self._head = 0

    def slots_needed(self, tokens: int, bound: int) -> int:
        return tokens

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._rows.expect_new(seq, tokens)
        if tokens > self.free_slots:
            return False
        self._rows[seq] = self._take(tokens)
        return True

    def capacity(self, seq: int) -> int:
        return len(self._rows[seq])

    def grow(self, seq: int, tokens: int) -> bool:
        row = self._rows[seq]
        missing = tokens - len(row)
        if missing > self.free_slots:
            return False
        if missing > 0:
            row += self._take(missing)
        return True

    def growth_budget(self) -> int:
        return self.capacity_slots - self.used_slots

    def grow_many(self, seqs: Sequence[int]) -> None:
        if len(seqs) > self.free_slots:
            raise InvariantError(f"{len(seqs)} growths were promised, {self.free_slots} cells are empty")
        for seq, share in shares(seqs, self._take(len(seqs))):
            self._rows[seq] += share

    def release(self, seq: int) -> None:
        row, empty = self._rows[seq], self._empty
        del self._rows[seq]
        for cell in row:
            empty[cell] = 1
        self._head = min(self._head, *row)
        self.used_slots -= len(row)

    def read_slots(self) -> int:
        return search.read(self._empty, PADDING)

    def regions(self) -> Iterator[Region]:
        return regions_of(self._rows, self.capacity_slots)

    def _take(self, tokens: int) -> list[int]:
        """Cells for so many tokens, which there are, ubatch by ubatch."""
        taken: list[int] = []
        empty = self._empty
        for done in range(0, tokens, UBATCH):
            count = min(UBATCH, tokens - done)
            head = search.begin(self._head, self.used_slots, count)
            found = search.cells(empty, count, head)
            if len(found) < count:
                raise InvariantError(f"no {count} empty cells where {self.free_slots} should be")
            for cell in found:
                empty[cell] = 0
            taken += found
            self._head = found[-1] + 1
            self.used_slots += count
        return taken


def regions_of(rows: Mapping[int, list[int]], capacity: int) -> Iterator[Region]:
    """The cells of each sequence, by token, as regions, and what is empty between them."""
    allocated = sorted(run for seq, row in rows.items() for run in _runs(seq, row))
    end = 0
    for start, size, owners, first in allocated:
        if start > end:
            yield Region(end, start - end, ())
        yield Region(start, size, owners, first)
        end = start + size
    if end < capacity:
        yield Region(end, capacity - end, ())


def _runs(seq: int, row: list[int]) -> Iterator[tuple[int, int, tuple[int, ...], int]]:
    """A sequence's cells in a row that hold tokens in a row: start, size, owners, first token."""
    start, first, token = row[0], 0, 0
    for token, cell in enumerate(row):
        if cell - token != start - first:
            yield start, token - first, (seq,), first
            start, first = cell, token
    yield start, token + 1 - first, (seq,), first
