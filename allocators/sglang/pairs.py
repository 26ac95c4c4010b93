"""Two pools as one: each page of the full pool has a partner in the windowed pool until that is freed.

    full       7   8   3   4   9
               |   |       |   |
    windowed   2   5   .   1   6        page 3 has lost its partner: it is behind every window

Source: SGLang 0.5.23, `mem_cache/allocator/swa.py`, whose map has slots; its trees and rows only
use whole pages of it.
"""

from collections.abc import Sequence

from kvsim.allocators.base import InvariantError
from kvsim.allocators.sglang.pools import PagePool


class PagePairs:
    """Full pages, most of which have a partner in the windowed pool."""

    def __init__(self, full: PagePool, windowed: PagePool) -> None:
        self.full = full
        self.windowed = windowed
        self.partner: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Tokens for which both pools have room."""
        return min(self.full.available, self.windowed.available)

    def take(self, count: int) -> list[int]:
        """Allocate `count` full pages, each with a partner."""
        full, windowed = self.full.take(count), self.windowed.take(count)
        if full is None or windowed is None:
            raise InvariantError(f"{count} pages find no room: {self.available} slots are free in both pools")
        self.partner.update(zip(full, windowed, strict=True))
        return full

    def take_one(self, pages: list[int]) -> bool:
        """Append one full page with a partner; False if a pool is empty."""
        if not (self.full.free and self.windowed.free):
            return False
        page = self.full.free.popleft()
        self.partner[page] = self.windowed.free.popleft()
        pages.append(page)
        return True

    def drop_partners(self, pages: Sequence[int]) -> None:
        """Free the windowed pages and keep the full ones."""
        if pages:
            self.windowed.give([self.partner.pop(page) for page in pages])

    def give(self, pages: Sequence[int], behind: int = 0) -> None:
        """Free pages, of which the first `behind` no longer have a partner."""
        if behind > 0:
            self.full.give(pages[:behind])
        if pages[max(behind, 0) :]:
            self.drop_partners(pages[max(behind, 0) :])
            self.full.give(pages[max(behind, 0) :])

    def swap(self, kept: Sequence[int], other: Sequence[int]) -> None:
        """Give `kept` the partners of `other`, and free `other`."""
        for page, given in zip(kept, other, strict=True):
            self.partner[page] = self.partner.pop(given)
        self.full.give(other)
