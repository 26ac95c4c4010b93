"""Two pools for a model with sliding windows: one for its full layers, one for its windowed layers (SWA).

    full pool   | a a a a | b b b |         |      every token, to the end of its request
                    | |      | |                   a map: slot of the full pool -> slot of the windowed pool
    SWA pool    | a a | b b |   |                  the tokens that a window still sees

A token takes a slot in both. Tokens that leave the window free their slots in the SWA pool only. The split
is fixed at the start, so free room in one pool does not help the other: the scheduler must keep room in both.
Both have pages of the same size, and a page of the full pool belongs to one page of the other. Source: SGLang
0.5.23, `mem_cache/allocator/swa.py`.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from kvsim.allocators.base import InvariantError
from kvsim.allocators.sglang.pools import PagePool, TokenPool


def slots_in(
    pages: list[int] | None, size: int, growing: Sequence[tuple[int, int]], lasts: Sequence[int]
) -> list[int] | None:
    """For each (tokens before, after): the slots behind its last one in the same page, then new pages."""
    if pages is None:
        return None
    slots: list[int] = []
    left = iter(pages)
    for (before, after), last in zip(growing, lasts, strict=True):
        inside = min(-before % size, after - before)
        slots += range(last + 1, last + 1 + inside)
        missing = after - before - inside
        for page in islice(left, -(-missing // size)):
            slots += range(page * size, page * size + min(size, missing))
            missing -= size
    return slots


class Slots(PagePool):
    """A pool called with slots, like SGLang's; within a group, frees are held back until the group ends."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self._group: list[int] | None = None
        self._group_slots: list[int] = []

    def give(self, pages: Sequence[int]) -> None:
        """Free pages, now or at the end of the group."""
        if self._group is None:
            super().give(pages)
        else:
            self._group += pages

    def begin_group(self) -> None:
        """Hold back frees from now on."""
        if self._group is not None:
            raise InvariantError("a group of frees has begun already: they do not nest")
        self._group = []

    def end_group(self) -> None:
        """Carry out the held frees: those that came as slots first."""
        pages, self._group = self._group, None
        slots, self._group_slots = self._group_slots, []
        if slots:
            self.give(self._pages_of(slots))
        if pages:
            self.give(pages)

    def _pages_of(self, slots: Iterable[int]) -> list[int]:
        return sorted({slot // self.page_size for slot in slots})

    # -- slots --------------------------------------------------------------------------------

    def extend(self, befores: Sequence[int], afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """Slots for sequences that grow from `befores` to `afters` tokens, one after another.

        `lasts` are the slots of their last tokens, -1 for a sequence without any.
        """
        size, growing = self.page_size, list(zip(befores, afters, strict=True))
        pages = sum(-(-after // size) - -(-before // size) for before, after in growing)
        at_most = sum(after - before for before, after in growing) // size + len(growing) + 1
        return slots_in(self.take(pages, at_most), size, growing, lasts)

    def decode(self, afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """One more slot for each sequence, which then has `afters` tokens."""
        pages = sum(after % self.page_size == 1 or self.page_size == 1 for after in afters)
        growing = [(after - 1, after) for after in afters]
        return slots_in(self.take(pages, len(afters)), self.page_size, growing, lasts)

    def free_slots(self, slots: Sequence[int]) -> None:
        """Free the pages of any slots, in order of their numbers."""
        if self._group is not None:
            self._group_slots += slots
        elif slots:
            self.give(self._pages_of(slots))

    def free_segment(self, slots: Sequence[int]) -> None:
        """Free the slots of a sequence from the beginning of a page on: its pages in the sequence's order."""
        if slots:
            self.give([slot // self.page_size for slot in slots[:: self.page_size]])


class Tokens(Slots, TokenPool):
    """Pages of one token."""

    def free_slots(self, slots: Sequence[int]) -> None:
        """Free the slots in the given order."""
        self.give(slots)


def pool_of(pages: int, page_size: int, need_sort: bool = False) -> Slots:
    """SGLang's pool for a page size."""
    return Tokens(pages, need_sort) if page_size == 1 else Slots(pages, page_size, need_sort)


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
        """Tokens for which both pools have a slot."""
        return min(self.full.available, self.swa.available)

    def extend(self, befores: Sequence[int], afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """Like PagePool.extend: slots of the full pool, each with a slot in the other."""
        size = self.page_size
        pages = sum(
            -(-after // size) - -(-before // size) for before, after in zip(befores, afters, strict=True)
        )
        if pages * size > self.available:
            return None
        return self._both("extend", befores, afters, lasts)

    def decode(self, afters: Sequence[int], lasts: Sequence[int]) -> list[int] | None:
        """Like PagePool.decode; slots that only one of the pools gives are lost."""
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
        """These slots of a sequence, from the beginning of a page on, have left the window."""
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
        """A sequence is gone: free all its slots, of which the first `left` had left the window before."""
        self.full.free_segment(slots[:left])
        self.free_swa(slots[left:])
        self.full.free_segment(slots[left:])
