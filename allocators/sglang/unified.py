"""Full and windowed layers in one buffer: a page of either kind may lie wherever the other does not.

    | windowed: up ->        gap        <- down: full |

Every token has one virtual page, which both pools place; when it leaves the window, only the windowed one
frees its place, and the room is for both. A request needs room in both at once: `available` says for how many
tokens there is. If it is short, both are compacted. Source: SGLang 0.5.23, `unified_hybrid_swa.py`
(UnifiedSWATokenToKVPoolAllocator).
"""

from collections.abc import Sequence

from kvsim.allocators.sglang.ends import End
from kvsim.allocators.sglang.pools import slots_in


class UnifiedPair:
    """An end pool of full layers, which owns the virtual pages, and one of windowed layers.

    Attributes
    ----------
    full, swa : End
    page_size : int
        Tokens of a page, the same in both.
    """

    def __init__(self, full: End, swa: End, page_size: int) -> None:
        self.full = full
        self.swa = swa
        self.page_size = page_size
        self.empty_gap = full.gap_bytes()

    # -- room ---------------------------------------------------------------------------------

    def available(self) -> int:
        """Tokens for which there is room in both, without moving a page."""
        full, swa = self.full, self.swa
        gap, both = full.gap_bytes(), full.page_bytes + swa.page_bytes
        rest = [pool.pages - pool.first - pool.allocated() for pool in (full, swa)]
        if not full.lazy:
            return min(gap // both, *rest) * self.page_size
        holes = [len(full.holes), len(swa.holes)]
        fewer = full if holes[0] <= holes[1] else swa
        alone = min(max(holes) - min(holes), gap // fewer.page_bytes)
        together = (gap - alone * fewer.page_bytes) // both
        limit = [some + more for some, more in zip(holes, rest, strict=True)]
        return min(min(holes) + alone + together, *limit) * self.page_size

    def full_available(self) -> int:
        """Tokens that the full pool could take if the windowed one took none."""
        return self._one(self.full)

    def swa_available(self) -> int:
        """Tokens that the windowed pool could take alone."""
        return self._one(self.swa)

    def _one(self, pool: End) -> int:
        named = self.full.pages - self.full.first
        most = min(pool.pages - pool.first, named) - len(pool.physical)
        return min(pool.schedulable(), most) * self.page_size

    def make_sure(self, pages: int) -> bool:
        """Find room for so many pages in both, compacting if need be; False: there is none."""
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

    # -- tokens -------------------------------------------------------------------------------

    def extend(self, befores: Sequence[int], afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """Slots for sequences that grow from `befores` to `afters` tokens behind slots `lasts`."""
        growing, size = list(zip(befores, afters, strict=True)), self.page_size
        pages = self.take(sum(-(-after // size) - -(-before // size) for before, after in growing))
        return slots_in(pages, size, growing, lasts)

    def decode(self, afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """A slot more for each sequence, which has `afters` tokens then."""
        return self.extend([after - 1 for after in afters], afters, lasts)

    def take(self, count: int) -> list[int] | None:
        """So many virtual pages with a place in both pools."""
        if not self.make_sure(count):
            return None
        if not count:
            return []
        pages = self.full.alloc(count)
        if pages is None or not self.swa.place(pages):
            return None
        return pages

    def _pages(self, slots: Sequence[int]) -> list[int]:
        return [slot // self.page_size for slot in slots[:: self.page_size]]

    def free_swa(self, slots: Sequence[int]) -> None:
        """Slots of a sequence, from the beginning of a page on, left the window."""
        if slots:
            self.swa.free(self._pages(slots), owns_names=False)

    def free_row(self, slots: Sequence[int], left: int) -> None:
        """A sequence is gone; the first `left` of its slots left the window before."""
        if slots[:left]:
            self.full.free(self._pages(slots[:left]))
        if slots[left:]:
            self.swa.free(self._pages(slots[left:]), owns_names=False)
            self.full.free(self._pages(slots[left:]))

    def flush(self) -> int:
        """Close holes in an idle moment; how many pages were moved."""
        return self.full.flush(urgent=False) + self.swa.flush(urgent=False)
