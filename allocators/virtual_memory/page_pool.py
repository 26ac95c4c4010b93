"""kvcached's physical pages: mapped to a virtual range on demand, unmapped when empty, some kept mapped.

    free (not mapped) ------------ map ----------> in use
        ^   |                                       |
        |   '-- thread maps ahead --> reserved <----'   a page that becomes empty comes back
        '--------- unmap ------------ (at most `most_reserved`)

A page here is a *bundle*: the page at one offset of every layer's K and V. Page ids are allocated in queue
order. A thread keeps `least_reserved` pages mapped ahead; here it is infinitely fast. The range can shrink
(`resize`) as far as pages are not in use, and grow again.

Source: csrc/page_allocator.cpp of ovg-project/kvcached e8e6406. One defect is not reproduced: there, growth
beyond what was reclaimed numbers its new pages from the shrunken total, so ids in use can enter the queue a
second time.
"""

from collections import deque
from collections.abc import Sequence

NONE = -1


class PagePool:
    """Pages 0 to `pages - 1` of a virtual range.

    Parameters
    ----------
    pages : int
        Pages of the range.
    physical : int
        Pages that the GPU has for it.
    least_reserved, most_reserved : int
        Empty pages that the thread maps ahead, and the most empty pages that stay mapped.
    ahead : bool
        Whether there is a thread.

    Attributes
    ----------
    free, reserved, reclaimed : deque of int
        Page ids: not mapped; mapped and empty; outside the range after it shrank.
    total : int
        Current pages of the range.
    mapped : int
        Mapped pages, in use or reserved.
    maps, unmaps : int
        Pages mapped and unmapped since the start.
    """

    def __init__(
        self, pages: int, physical: int, least_reserved: int = 5, most_reserved: int = 10, ahead: bool = False
    ) -> None:
        self.total = self.known = pages
        self.physical = physical
        self.least_reserved = min(pages, least_reserved)
        self.most_reserved = min(pages, most_reserved)
        self.ahead = ahead
        self.free: deque[int] = deque(range(pages))
        self.reserved: deque[int] = deque()
        self.reclaimed: deque[int] = deque()
        self.mapped = 0
        self.maps = 0
        self.unmaps = 0

    @property
    def available(self) -> int:
        """Pages of the range that are not in use."""
        return len(self.free) + len(self.reserved)

    @property
    def in_use(self) -> int:
        """Pages that hold blocks."""
        return self.total - self.available

    @property
    def physical_left(self) -> int:
        """Pages that could still be mapped."""
        return max(0, self.physical - self.mapped)

    def take(self) -> int:
        """Allocate a mapped page; `NONE` if there is no page id or no memory."""
        if self.reserved:
            page = self.reserved.popleft()
            if self.ahead and len(self.reserved) < self.least_reserved:
                self.map_ahead()
            return page
        if not self.free or not self.physical_left:
            return NONE
        page = self.free.popleft()
        self._map(1)
        if self.ahead:
            self.map_ahead()
        return page

    def give_back(self, pages: Sequence[int]) -> None:
        """Free empty pages: up to `most_reserved` stay mapped, the rest are unmapped."""
        keep = max(0, self.most_reserved - len(self.reserved))
        self.reserved += pages[:keep]
        self._unmap(pages[keep:])

    def map_ahead(self) -> None:
        """Do the work of the thread: map until `least_reserved` empty pages are ready."""
        count = min(self.least_reserved - len(self.reserved), len(self.free), self.physical_left)
        for _ in range(count):
            self.reserved.append(self.free.popleft())
        self._map(max(0, count))

    def trim(self) -> None:
        """Unmap all reserved pages."""
        pages = list(self.reserved)
        self.reserved.clear()
        self._unmap(pages)

    def resize(self, pages: int) -> bool:
        """Resize the range to `pages`; False if too many are in use (reserved ones may then be gone)."""
        if pages < self.in_use:
            return False
        if pages >= self.total:
            self._extend(pages - self.total)
            self.total = pages
            return True
        surplus = self.total - pages
        if len(self.free) < surplus:
            self.trim()
        for _ in range(surplus):
            self.reclaimed.append(self.free.pop())
        self.total = pages
        return True

    def sort_free(self) -> None:
        """Allocate the lowest ids first from now on."""
        self.free = deque(sorted(self.free))

    def _extend(self, count: int) -> None:
        """Add page ids: reclaimed ones first, then new ones."""
        again = min(count, len(self.reclaimed))
        for _ in range(again):
            self.free.append(self.reclaimed.popleft())
        self.free.extend(range(self.known, self.known + count - again))
        self.known += count - again

    def _map(self, count: int) -> None:
        self.mapped += count
        self.maps += count

    def _unmap(self, pages: Sequence[int]) -> None:
        self.free += pages
        self.mapped -= len(pages)
        self.unmaps += len(pages)
