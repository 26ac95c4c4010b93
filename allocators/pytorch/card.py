"""The card's own memory: cudaMalloc at the lowest free address, and physical pages for virtual ranges.

    |== segment ==|== segment ==|....|== segment ==|............|     addresses, in 2 MiB

The lowest gap that is large enough is taken. Addresses are virtual: only the sum of all bytes is bounded, and
pages of expandable segments are only counted.
"""

from bisect import bisect_left, insort

VIRTUAL = 1 << 56
"""start of virtual ranges: above every address of the card"""


class Addresses:
    """Unbounded addresses from `base` on, lowest fit first."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.allocated: list[tuple[int, int]] = []  # (address, bytes), ascending

    def take(self, size: int) -> int:
        """Allocate the lowest address followed by `size` free bytes."""
        end = self.base
        for start, length in self.allocated:
            if start - end >= size:
                break
            end = start + length
        insort(self.allocated, (end, size))
        return end

    def give_back(self, address: int) -> int:
        """Free the allocation at an address; returns its bytes."""
        return self.allocated.pop(bisect_left(self.allocated, (address, 0)))[1]


class Card:
    """Memory of `total_bytes`, and counts of successful driver calls.

    Attributes
    ----------
    used_bytes : int
        Segments and physical pages allocated now.
    mallocs, frees, creates, releases, maps, unmaps, reserves : int
        cudaMalloc, cudaFree, cuMemCreate, cuMemRelease, cuMemMap, cuMemUnmap, cuMemAddressReserve.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.mallocs = self.frees = 0
        self.creates = self.releases = self.maps = self.unmaps = self.reserves = 0
        self._segments = Addresses(0)
        self._ranges = Addresses(VIRTUAL)

    def malloc(self, size: int) -> int | None:
        """Address of a segment of `size` bytes, a multiple of 2 MiB; None if the card is too full."""
        if self.used_bytes + size > self.total_bytes:
            return None
        self.used_bytes += size
        self.mallocs += 1
        return self._segments.take(size)

    def free(self, address: int) -> None:
        """Free a segment."""
        self.used_bytes -= self._segments.give_back(address)
        self.frees += 1

    def reserve(self, size: int) -> int:
        """Address of a virtual range, without memory."""
        self.reserves += 1
        return self._ranges.take(size)

    def unreserve(self, address: int) -> None:
        """Free a virtual range."""
        self._ranges.give_back(address)

    def create(self, pages: int, page_bytes: int) -> bool:
        """Create and map physical pages for a virtual range; False, mapping none, if the card has too few."""
        possible = min(pages, (self.total_bytes - self.used_bytes) // page_bytes)
        self.creates += possible
        if possible < pages:
            self.releases += possible
            return False
        self.maps += pages
        self.used_bytes += pages * page_bytes
        return True

    def release(self, pages: int, page_bytes: int) -> None:
        """Unmap and free physical pages."""
        self.unmaps += pages
        self.releases += pages
        self.used_bytes -= pages * page_bytes

    def saved(self) -> tuple[int, int, int, list[tuple[int, int]]]:
        """The state for `restore`, without virtual ranges."""
        return self.used_bytes, self.mallocs, self.frees, self._segments.allocated.copy()

    def restore(self, saved: tuple[int, int, int, list[tuple[int, int]]]) -> None:
        self.used_bytes, self.mallocs, self.frees, self._segments.allocated = saved
