"""An arena of extents: allocated and free ranges of addresses, for `contiguous` and `dynamic`.

Free extents are kept in ascending order and merged with adjacent ones, so two free extents never touch.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from kvsim.allocators.base import Holdings, Region
from kvsim.allocators.option import option

FITS = ("first", "best", "next", "worst")
"""The free extent to cut: the lowest, the smallest, the first behind the last allocation, the largest."""


@dataclass(frozen=True, kw_only=True)
class ExtentOptions:
    """Options of an allocator that chooses among free extents."""

    fit: str = option(
        "The hole that a reservation takes: first, best, next, worst.",
        default="first",
        value="NAME",
        allowed=FITS,
    )


class ExtentArena:
    """Allocates ranges by first, best, next or worst fit (`FITS`); ties go to the lowest address."""

    def __init__(self, capacity: int, fit: str) -> None:
        if fit not in FITS:
            raise ValueError(f"fit must be first, best, next or worst, got {fit!r}")
        self.fit = fit
        self._next = 0  # the end of the last allocation
        self.free: list[tuple[int, int]] = [(0, capacity)]
        self.allocated: Holdings[tuple[int, int]] = Holdings()

    def find(self, size: int) -> int | None:
        """Index of the free extent that `take` would cut, or None."""
        free = self.free
        serving = (i for i, (_, length) in enumerate(free) if length >= size)
        if self.fit == "first":
            return next(serving, None)
        if self.fit == "best":
            return min(serving, key=lambda i: (free[i][1], i), default=None)
        if self.fit == "worst":
            return min(serving, key=lambda i: (-free[i][1], i), default=None)
        rover = max(0, bisect_left(free, (self._next + 1, 0)) - 1)  # the extent that holds or precedes it
        return min(serving, key=lambda i: (sum(free[i]) <= self._next or i < rover, i), default=None)

    def take(self, owner: int, size: int) -> bool:
        """Allocate the low end of the extent found, `size` slots; False if none is large enough."""
        index = self.find(size)
        if index is None:
            return False
        self.allocated[owner] = self._cut(index, size)
        return True

    def extend(self, owner: int, size: int) -> bool:
        """Enlarge the owner's extent to `size` in place; False if its upper neighbour is not free."""
        start, length = self.allocated[owner]
        end = start + length
        index = bisect_left(self.free, (end, 0))
        if index == len(self.free) or self.free[index][0] != end or self.free[index][1] < size - length:
            return False
        self.allocated[owner] = (start, size)
        self._shrink(index, start + size, self.free[index][1] - (size - length))
        return True

    def move(self, owner: int, size: int) -> bool:
        """Move the owner to another extent of `size` slots; False if none is large enough."""
        old, index = self.allocated[owner], self.find(size)
        if index is None:
            return False
        self.allocated[owner] = self._cut(index, size)
        self._merge(*old)
        return True

    def give_back(self, owner: int) -> int:
        """Free the owner's extent; returns the number of slots freed."""
        start, size = self.allocated[owner]
        del self.allocated[owner]
        self._merge(start, size)
        if start + size == self._next:
            self._next = start  # undo the last allocation
        return size

    def _merge(self, start: int, size: int) -> None:
        """Add a free extent, joined with its neighbours."""
        index = bisect_left(self.free, (start, 0))
        end = start + size
        if index < len(self.free) and self.free[index][0] == end:
            end += self.free.pop(index)[1]
        if index and sum(self.free[index - 1]) == start:
            start = self.free.pop(index - 1)[0]
        insort(self.free, (start, end - start))

    def smaller_than(self, need: int) -> int:
        """Free slots in extents smaller than `need`."""
        return sum([length for _, length in self.free if length < need])

    def largest(self) -> int:
        """Size of the largest free extent."""
        return max([length for _, length in self.free], default=0)

    def regions(self) -> Iterator[Region]:
        """All extents in ascending order."""
        allocated = ((start, size, (owner,)) for owner, (start, size) in self.allocated.items())
        free: Iterator[tuple[int, int, tuple[int, ...]]] = ((start, size, ()) for start, size in self.free)
        return (Region(*extent) for extent in sorted([*allocated, *free]))

    def _cut(self, index: int, size: int) -> tuple[int, int]:
        """Take `size` slots off the low end of a free extent."""
        start, length = self.free[index]
        self._shrink(index, start + size, length - size)
        self._next = start + size
        return start, size

    def _shrink(self, index: int, start: int, length: int) -> None:
        if length:
            self.free[index] = (start, length)
        else:
            del self.free[index]
