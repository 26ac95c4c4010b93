"""Full and windowed layers in one buffer: a page of either kind may lie wherever the other has none.

    | windowed: up ->        gap        <- down: full |

Every token has one virtual page, which both pools place. When it leaves the window, only the windowed pool
frees its place, and either pool can use the room. A request needs room in both simultaneously; if it is
short, both are compacted. Source: SGLang 0.5.23, `unified_hybrid_swa.py` (UnifiedSWATokenToKVPoolAllocator).
"""

from kvsim.allocators.sglang.ends import End


class UnifiedPair:
    """An end pool for full layers, which owns the virtual pages, and one for windowed layers.

    Attributes
    ----------
    full, swa : End
    """

    def __init__(self, full: End, swa: End) -> None:
        self.full = full
        self.swa = swa
        self.empty_gap = full.gap_bytes()

    # -- room ---------------------------------------------------------------------------------

    def make_sure(self, pages: int) -> bool:
        """Find room for `pages` pages in both pools, compacting if necessary; False if there is none."""
        if pages <= 0 or self._fits(pages):
            return pages >= 0
        if not self.full.lazy or not self._fits_packed(pages):
            return False
        self.full.flush(urgent=True)
        self.swa.flush(urgent=True)
        return self._fits(pages)

    def _fits(self, pages: int) -> bool:
        gap = self.full.gap_bytes()
        for pool in (self.full, self.swa):
            holes = len(pool.holes)
            if pages > holes + pool.pages - pool.first - pool.allocated():
                return False
            gap -= max(0, pages - holes) * pool.page_bytes
        return gap >= 0 and pages <= len(self.full.free_virtual)

    def _fits_packed(self, pages: int) -> bool:
        gap = self.empty_gap
        for pool in (self.full, self.swa):
            live = len(pool.physical) + pages
            if live > min(pool.pages - pool.first, self.full.pages - self.full.first):
                return False
            gap -= live * pool.page_bytes
        return gap >= 0

    def take(self, count: int) -> list[int] | None:
        """Allocate `count` virtual pages with a place in both pools."""
        if not self.make_sure(count):
            return None
        if not count:
            return []
        pages = self.full.alloc(count)
        if pages is None or not self.swa.place(pages):
            return None
        return pages

    def flush(self) -> int:
        return self.full.flush(urgent=False) + self.swa.flush(urgent=False)
