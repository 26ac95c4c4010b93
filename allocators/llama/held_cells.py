"""Base of llama.cpp's two allocators: one-token cells, and those that each sequence holds.

Attention reads every cell up to the last used one, rounded up to `padding`, including holes (`read_slots`).
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from kvsim.allocators.base import Allocator, Holdings, Region
from kvsim.allocators.llama import search


class HeldCells(Allocator):
    """An array of cells, searched from a moving head; `admit` and `grow` define the search.

    Parameters
    ----------
    capacity_slots : int
        Number of cells.
    """

    family = "tokens"

    padding: ClassVar[int]
    """cells: attention reads a multiple of this"""

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots)
        self._empty = bytearray(b"\1" * capacity_slots)
        self._rows: Holdings[list[int]] = Holdings()  # the cells of each sequence, by token
        self._head = 0

    def slots_needed(self, tokens: int, bound: int) -> int:
        return tokens

    def capacity(self, seq: int) -> int:
        return len(self._rows[seq])

    def release(self, seq: int) -> None:
        row, empty = self._rows[seq], self._empty
        del self._rows[seq]
        for cell in row:
            empty[cell] = 1
        self._head = min(self._head, *row)
        self.used_slots -= len(row)

    def read_slots(self) -> int:
        return search.read(self._empty, self.padding)

    def regions(self) -> Iterator[Region]:
        return regions_of(self._rows, self.capacity_slots)


def regions_of(rows: Mapping[int, list[int]], capacity: int) -> Iterator[Region]:
    """Regions of the cells of each sequence, given by token, and of the empty cells between them."""
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
    """A sequence's contiguous cells with consecutive tokens: start, size, owners, first token."""
    start, first, token = row[0], 0, 0
    for token, cell in enumerate(row):
        if cell - token != start - first:
            yield start, token - first, (seq,), first
            start, first = cell, token
    yield start, token + 1 - first, (seq,), first
