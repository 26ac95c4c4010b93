"""Base of allocators over a `ClassHeap`: a sequence's whole reservation in one extent.

    |######~~~~~~..|               |####~~~~|         # tokens   ~ reserved   . rounding
     seq 7: bound 12, extent 14      seq 9: bound 8

The heap (class_heap.py) decides which extent is found and whether sizes are rounded up to their class.
"""

from collections.abc import Iterator
from typing import ClassVar

from kvsim.allocators.base import Allocator, Holdings, Region
from kvsim.allocators.size_classes.class_heap import ClassHeap, Extent


class SizeClasses(Allocator):
    """One extent of `bound` slots per sequence, found by size classes.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena.
    bits, rounds, searches
        As in `ClassHeap`.
    """

    reserves: ClassVar[bool] = True

    def __init__(
        self, capacity_slots: int, bits: int, *, rounds: bool = True, searches: bool = False
    ) -> None:
        super().__init__(capacity_slots)
        self.heap = ClassHeap(capacity_slots, bits, rounds=rounds, searches=searches)
        self._extents: Holdings[Extent] = Holdings()

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.heap.allocated_size(max(tokens, bound))

    def fits(self, tokens: int, bound: int) -> bool:
        return self.heap.fits(max(tokens, bound))

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self.heap.serves(max(tokens, bound))

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._extents.expect_new(seq, tokens)
        extent = self.heap.take(max(tokens, bound))
        if extent is None:
            return False
        self._extents[seq] = extent
        self.used_slots += extent.size
        return True

    def capacity(self, seq: int) -> int:
        return self._extents[seq].size

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= self.capacity(seq)

    def release(self, seq: int) -> None:
        extent = self._extents[seq]
        del self._extents[seq]
        self.used_slots -= extent.size
        self.heap.give_back(extent)

    def external_slots(self, need: int) -> int:
        return self.heap.too_small(need) if need else 0

    def largest_free_extent(self) -> int:
        return self.heap.largest()

    def regions(self) -> Iterator[Region]:
        owner = {extent: (seq,) for seq, extent in self._extents.items()}
        for extent in self.heap.extents():
            yield Region(extent.start, extent.size, owner.get(extent, ()))
