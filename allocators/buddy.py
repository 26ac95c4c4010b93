"""Buddy: power-of-two chunks, split on demand and merged with their buddy when both are free.

    |#### tokens ####|~~ reserved ~~|.. internal ..|............ rounding: internal ............|
    '----------------- bound ----------------------'
    '---------------------- next power of two: the chunk allocated ----------------------------'

Waste per sequence: `2^ceil(log2(bound)) - tokens`, up to half of the chunk by rounding alone. Free slots
outside chunks of the right size are lost (external). An arena that is not a power of two starts as the
powers of two that sum to it, largest first (15,744 = 8192 + 4096 + 2048 + 1024 + 256 + 128).
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import ClassVar

from kvsim.allocators.base import Allocator, Holdings, Region


class Buddy(Allocator):
    """Power-of-two chunks; the lowest address among the smallest chunks that serve.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena; chunks are at most its largest power of two.
    """

    family: ClassVar[str] = "extents"
    idea: ClassVar[str] = "chunks of powers of two, split and merged in pairs"
    wastes: ClassVar[str] = "2^ceil(log2(bound)) - tokens; holes of the wrong size"
    used_by: ClassVar[str] = "Orca, as the PagedAttention paper ran it"
    source: ClassVar[str] = "Knowlton, CACM 1965; PagedAttention, SOSP '23"

    reserves: ClassVar[bool] = True

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots)
        top = capacity_slots.bit_length()
        self._free: list[list[int]] = [[] for _ in range(top)]  # by order: addresses, ascending
        self._allocated: Holdings[tuple[int, int]] = Holdings()  # (address, order)
        start = 0
        for order in reversed(range(top)):
            if capacity_slots >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    def slots_needed(self, tokens: int, bound: int) -> int:
        return 1 << self._order(tokens, bound)

    def fits(self, tokens: int, bound: int) -> bool:
        return self._order(tokens, bound) < len(self._free)

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self._serving_order(self._order(tokens, bound)) is not None

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._allocated.expect_new(seq, tokens)
        wanted = self._order(tokens, bound)
        order = self._serving_order(wanted)
        if order is None:
            return False
        start = self._free[order].pop(0)
        while order > wanted:
            order -= 1
            insort(self._free[order], start + (1 << order))
        self._allocated[seq] = (start, wanted)
        self.used_slots += 1 << wanted
        return True

    def capacity(self, seq: int) -> int:
        return 1 << self._allocated[seq][1]

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= self.capacity(seq)

    def release(self, seq: int) -> None:
        start, order = self._allocated[seq]
        del self._allocated[seq]
        self.used_slots -= 1 << order
        while self._take_chunk(order, buddy := start ^ (1 << order)):
            start = min(start, buddy)
            order += 1
        insort(self._free[order], start)

    def external_slots(self, need: int) -> int:
        order = self._order(need, need) if need else 0
        return sum(len(chunks) << k for k, chunks in enumerate(self._free[:order]))

    def largest_free_extent(self) -> int:
        return max((1 << order for order, chunks in enumerate(self._free) if chunks), default=0)

    def regions(self) -> Iterator[Region]:
        allocated = [Region(start, 1 << order, (seq,)) for seq, (start, order) in self._allocated.items()]
        free = [Region(start, 1 << k, ()) for k, chunks in enumerate(self._free) for start in chunks]
        return iter(sorted(allocated + free))

    @staticmethod
    def _order(tokens: int, bound: int) -> int:
        """log2 of the chunk that holds `tokens` and `bound`."""
        return (max(tokens, bound) - 1).bit_length()

    def _serving_order(self, wanted: int) -> int | None:
        return next((k for k in range(wanted, len(self._free)) if self._free[k]), None)

    def _take_chunk(self, order: int, start: int) -> bool:
        """Remove a free chunk from the lists; False if it is not entirely free."""
        chunks = self._free[order]
        index = bisect_left(chunks, start)
        if index == len(chunks) or chunks[index] != start:
            return False
        del chunks[index]
        return True
