"""SGLang's two pools in one buffer, called with tokens and slots, as in SGLang; kvsim uses pages."""

from collections.abc import Sequence

from kvsim.allocators.sglang.ends import End
from kvsim.allocators.sglang.unified import UnifiedPair
from support.sglang_dual import slots_in


class TokenPair(UnifiedPair):
    """The pair, with pages of `page_size` tokens."""

    def __init__(self, full: End, swa: End, page_size: int) -> None:
        super().__init__(full, swa)
        self.page_size = page_size

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
        """Tokens that the full pool could take if the windowed pool took none."""
        return self._one(self.full)

    def swa_available(self) -> int:
        """Tokens that the windowed pool could take alone."""
        return self._one(self.swa)

    def _one(self, pool: End) -> int:
        named = self.full.pages - self.full.first
        most = min(pool.pages - pool.first, named) - len(pool.physical)
        return min(pool.schedulable(), most) * self.page_size

    def extend(self, befores: Sequence[int], afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """Slots for sequences that grow from `befores` to `afters` tokens behind slots `lasts`."""
        growing, size = list(zip(befores, afters, strict=True)), self.page_size
        pages = self.take(sum(-(-after // size) - -(-before // size) for before, after in growing))
        return slots_in(pages, size, growing, lasts)

    def decode(self, afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """One more slot for each sequence, which then has `afters` tokens."""
        return self.extend([after - 1 for after in afters], afters, lasts)

    def _pages(self, slots: Sequence[int]) -> list[int]:
        return [slot // self.page_size for slot in slots[:: self.page_size]]

    def free_swa(self, slots: Sequence[int]) -> None:
        """Slots of a sequence, from the beginning of a page on, have left the window."""
        if slots:
            self.swa.free(self._pages(slots), owns_names=False)

    def free_row(self, slots: Sequence[int], left: int) -> None:
        """A sequence is gone; the first `left` of its slots had left the window before."""
        if slots[:left]:
            self.full.free(self._pages(slots[:left]))
        if slots[left:]:
            self.swa.free(self._pages(slots[left:]), owns_names=False)
            self.full.free(self._pages(slots[left:]))
