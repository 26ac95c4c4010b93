"""Two pools for a model with sliding windows: one of its full layers, one of its windowed layers (SWA).

    full pool   | a a a a | b b b |         |      every token, to the end of its request
                    | |      | |                   a map: slot of the full pool -> slot of the windowed pool
    SWA pool    | a a | b b |   |                  the tokens that a window still sees

A token takes a slot in both. What leaves the window goes back to the SWA pool alone. The split is fixed at
the start, so what one pool has left does not help the other: the scheduler must keep room in both. Both
have pages of the same size, and a page of the full pool belongs to one page of the other. Source: SGLang
0.5.23, `mem_cache/allocator/swa.py`.
"""

from collections.abc import Sequence

from kvsim.allocators.base import InvariantError
from kvsim.allocators.sglang.pools import pool_of


class DualPool:
    """A pool of `pages` for full layers and one of `swa_pages` for windowed ones.

    Attributes
    ----------
    full, swa : PagePool
    swa_of : dict of int
        Slot in the full pool -> slot in the SWA pool, for tokens that are in both.
    """

    def __init__(self, pages: int, swa_pages: int, page_size: int, need_sort: bool = False) -> None:
        self.page_size = page_size
        self.full = pool_of(pages, page_size, need_sort)
        self.swa = pool_of(swa_pages, page_size, need_sort)
        self.swa_of: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Tokens that find a slot in both pools."""
        return min(self.full.available, self.swa.available)

    def extend(self, befores: Sequence[int], afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """As of one pool (PagePool.extend): slots of the full pool, each with one in the other."""
        size = self.page_size
        pages = sum(
            -(-after // size) - -(-before // size) for before, after in zip(befores, afters, strict=True)
        )
        if pages * size > self.available:
            return None
        return self._both("extend", befores, afters, lasts)

    def decode(self, afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """As of one pool (PagePool.decode); what one of them gives in vain is lost."""
        if self.page_size == 1 and len(afters) > self.available:
            return None
        return self._both("decode", afters, lasts)

    def _both(self, call: str, *args: Sequence[int]) -> list[int] | None:
        *lengths, lasts = args
        swa_lasts = [self.swa_of.get(last, last) for last in lasts]
        full = getattr(self.full, call)(*lengths, lasts)
        swa = getattr(self.swa, call)(*lengths, swa_lasts)
        if full is None or swa is None:
            return None
        self.swa_of.update(zip(full, swa, strict=True))
        slots: list[int] = full
        return slots

    def free_swa(self, slots: Sequence[int]) -> None:
        """These slots of a sequence, from the beginning of a page on, left the window."""
        if not slots:
            return
        try:
            self.swa.give([self.swa_of[slot] // self.page_size for slot in slots[:: self.page_size]])
        except KeyError as error:
            raise InvariantError(f"slot {error} has left the window before") from error
        for first in slots[:: self.page_size]:
            for slot in range(first, first + self.page_size):
                self.swa_of.pop(slot, None)

    def free_row(self, slots: Sequence[int], left: int) -> None:
        """A sequence is gone: all its slots, of which the first `left` left the window before."""
        self.full.free_segment(slots[:left])
        self.free_swa(slots[left:])
        self.full.free_segment(slots[left:])
