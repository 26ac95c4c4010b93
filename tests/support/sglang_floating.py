"""A pool that floats between two others: free room on both sides, holes inside.

    | up: 1 2 3 |>   gap   <| 7 8 . 10 . 12 |>   gap   <| down: 3 2 1 |
                             low           high

Holes are allocated first, from the two ends of the list in turn, a whole request from one; then it grows into
the wider gap. From nothing it starts in the middle of the room, so that both sides can grow. An empty one
blocks no other pool. Its pages move only on demand: `open_for` clears room at one side for a neighbour,
into holes first, then over to the other side. Source: SGLang 0.5.23, `unified_sub_pool.py`
(FloatMultiEndedAllocator).
"""

from collections.abc import Sequence

from kvsim.allocators.sglang.ends import End, Middle
from kvsim.allocators.sglang.members import Member, drained


class Floating(Middle):
    """The pool in the middle; its pages are `low` to `high` - 1."""

    def __init__(self, page_bytes: int, pages: int, first: int, total_bytes: int) -> None:
        super().__init__(page_bytes, pages, first, total_bytes)
        self.low = self.high = pages
        self._from_low = True  # the end of the list from which the next holes are allocated
        self._dirty = False  # may pages at a boundary be holes?

    @property
    def low_byte(self) -> int:  # type: ignore[override]
        return self.low * self.page_bytes

    @property
    def high_byte(self) -> int:  # type: ignore[override]
        return self.high * self.page_bytes

    @property
    def transparent(self) -> bool:  # type: ignore[override]
        return self.allocated() == 0

    def allocated(self) -> int:
        return self.high - self.low - len(self.holes)

    def _region(self) -> tuple[int, int]:
        """The range of pages in which the pool may be: first, and one behind the last."""
        low = -(-self.room_below() // self.page_bytes)
        return max(low, self.first), min(self.room_above() // self.page_bytes, self.pages)

    def gap_pages(self) -> tuple[int, int]:
        """Free pages at its low side and at its high side."""
        low, high = self._region()
        if self.transparent:
            return max(0, high - low), max(0, high - low)
        return max(0, self.low - low), max(0, high - self.high)

    def available(self, more_bytes: int = 0) -> int:
        low, high = self.gap_pages()
        return self._allocatable(low, high)

    def _allocatable(self, low: int, high: int) -> int:
        return min(max(low, high), self.pages - self.first - self.allocated()) + len(self.holes)

    def schedulable(self) -> int:
        """Pages that can be allocated once its neighbours have closed their holes."""
        low, high = self.gap_pages()
        below, above = self._sides()
        freed = [drained(below) // self.page_bytes, drained(above) // self.page_bytes]
        return self._allocatable(low + freed[0], high + freed[1])

    def _sides(self) -> tuple[Member | None, Member | None]:
        below, above = self.below, self.above
        while below is not None and below.transparent:
            below = below.below
        while above is not None and above.transparent:
            above = above.above
        return below, above

    def helpers(self) -> Sequence[Member]:
        """As SGLang defines it: the pool below."""
        below = self._sides()[0]
        return () if below is None else (below,)

    # -- allocating ------------------------------------------------------------------------------

    def place(self, pages: Sequence[int]) -> bool:
        reused = min(len(pages), len(self.holes))
        fresh = self._extend(len(pages) - reused)
        if fresh is None:
            return False
        places = []
        if reused:
            places = self.take_holes(reused, self._from_low)
            self._from_low = not self._from_low
        self.bind(pages, [*places, *fresh])
        return True

    def _extend(self, pages: int) -> Sequence[int] | None:
        """New pages at the side with more room; None if neither side has enough."""
        if not pages:
            return ()
        low, high = self._region()
        if self.transparent:
            if pages > high - low:
                return None
            self.low = low + (high - low - pages) // 2
            self.high = self.low + pages
            return range(self.low, self.high)
        below, above = self.low - low, high - self.high
        upwards = pages <= above and (above >= below or pages > below)
        if upwards:
            self.high += pages
            return range(self.high - pages, self.high)
        if pages > below:
            return None
        self.low -= pages
        return range(self.low, self.low + pages)

    def free(self, pages: Sequence[int]) -> None:
        """Free virtual pages: their places become holes."""
        self.holes += self.take_out(pages)
        self.free_virtual += pages
        self._dirty = True
        self._park()

    def _park(self) -> bool:
        if not self.transparent:
            return False
        self.low = self.high = self.pages
        self.holes, self._dirty = [], False
        return True

    def flush(self, urgent: bool) -> int:
        """Give back the holes at its boundaries; nothing moves. Returns the number of pages."""
        if not urgent and not (self._dirty and self.holes):
            return 0
        if self._park() or not (self._dirty and self.holes):
            self._dirty = False
            return 0
        self._dirty = False
        before, holes = self.high - self.low, set(self.holes)
        while self.low in holes:
            holes.remove(self.low)
            self.low += 1
        while self.high - 1 in holes:
            holes.remove(self.high - 1)
            self.high -= 1
        if before != self.high - self.low:
            self.holes = sorted(holes)
        return before - (self.high - self.low)

    # -- moving away --------------------------------------------------------------------------

    def ask_for_room(self, pages: int) -> None:
        """Does nothing: in SGLang only end pools ask a middle pool."""

    def open_for(self, short: End, pages: int) -> None:
        """Open the side that faces an end pool, so that it finds `pages` pages, if possible."""
        if self.transparent or pages <= 0 or pages > short.pages - short.first - short.allocated():
            return
        need = max(0, pages - (len(short.holes) if short.lazy else 0)) * short.page_bytes
        low_gap = max(0, self.low_byte - self.room_below())
        high_gap = max(0, self.room_above() - self.high_byte)
        gap = low_gap if short.up else high_gap
        if need > gap:
            self.make_room(low_side=short.up, least_bytes=need + short.page_bytes)

    def make_room(self, low_side: bool, least_bytes: int) -> None:
        """Move pages away from a side until `least_bytes` are free there; nothing if that is impossible."""
        self.passes.settle()
        low, high = self._region()
        gap = self.gap_pages()[0 if low_side else 1]
        live = sorted(self.virtual)
        if gap * self.page_bytes >= least_bytes or self.transparent:
            return
        if (high - low - len(live)) * self.page_bytes < least_bytes:
            return
        need = -(-(least_bytes - gap * self.page_bytes) // self.page_bytes)
        if need >= len(live):
            start = high - len(live) if low_side else low
            self._relocate(live, range(start, start + len(live)))
        else:
            self._step_aside(live, need, low_side)

    def _step_aside(self, live: list[int], need: int, low_side: bool) -> None:
        """Move the pages next to a side into holes beyond them, then to the other side."""
        sources = live[:need] if low_side else live[::-1][:need]
        if low_side:
            targets = sorted((hole for hole in self.holes if hole > max(sources)), reverse=True)[:need]
        else:
            targets = sorted(hole for hole in self.holes if hole < min(sources))[:need]
        fresh = need - len(targets)
        if fresh > self.gap_pages()[1 if low_side else 0]:
            return
        if low_side:
            targets += range(self.high, self.high + fresh)
        else:
            targets += range(self.low - 1, self.low - 1 - fresh, -1)
        self.move(sources, targets)
        final = sorted(self.virtual)
        self.low, self.high = final[0], final[-1] + 1
        self.holes = [page for page in range(self.low, self.high) if page not in self.virtual]
        self._dirty = True
        self.flush(urgent=True)

    def _relocate(self, live: Sequence[int], final: range) -> None:
        """Move all pages to new places in their order; one by one if old and new places overlap."""
        pairs = [(source, target) for source, target in zip(live, final, strict=True) if source != target]
        if {source for source, _ in pairs}.isdisjoint(target for _, target in pairs):
            if pairs:
                self.move([source for source, _ in pairs], [target for _, target in pairs])
        else:
            for source, target in pairs if final[0] <= live[0] else reversed(pairs):
                self.move([source], [target])
        self.low, self.high, self.holes = final[0], final[-1] + 1, []
