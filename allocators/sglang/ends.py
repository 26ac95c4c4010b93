"""Two pools with different pages in one buffer, each growing from its end: SGLang's unified memory pool.

    0                                                                  total_bytes
    | padding | up: 1 2 3 . 5 6 |>        gap        <| down: 4 3 . 1 |
                          watermark                   watermark

One pool can use what the other does not. Users hold *virtual* pages; `physical` maps each to its current
place, so pages can be moved. *Eager*: a free immediately moves pages next to the watermark into the holes,
and the watermark retreats. *Lazy*: holes (`.`) are kept and allocated first; a *flush* closes them when the
neighbour is short of room (urgent: all of them) or in idle moments. A flush must not move a page that a
forward pass still writes; the place that a page left may still be read: it is *pending* until the pass ends.

A pool gains room only if its neighbour is compacted: compacting itself trades one hole for one page of the
gap. Source: SGLang 0.5.23, `mem_cache/allocator/unified_sub_pool.py` (MultiEndedAllocator).
"""

from collections.abc import Sequence

from kvsim.allocators.base import InvariantError
from kvsim.allocators.sglang.members import Member, Pass, drained

MOST_IDLE_MOVES = 4096
"""Maximum pages moved by a flush, unless a pool waits for room."""
Move = tuple[int, int]
"""(from, to), physical pages."""


class End(Member):
    """A pool at one end of the buffer.

    Parameters
    ----------
    up : bool
        Whether it grows up from the bottom, or down from the top.
    lazy : bool
        Whether holes are kept until their room is needed.
    """

    def __init__(  # noqa: PLR0917 - its geometry, then its modes
        self, page_bytes: int, pages: int, first: int, total_bytes: int, up: bool, lazy: bool
    ) -> None:
        super().__init__(page_bytes, pages, first, total_bytes)
        self.up = up
        self.lazy = lazy
        self.watermark = first if up else pages - 1
        self.live = 0
        self.pending: dict[Pass, list[int]] = {}

    @property
    def low_byte(self) -> int:  # type: ignore[override]
        return (self.first if self.up else self.watermark + 1) * self.page_bytes

    @property
    def high_byte(self) -> int:  # type: ignore[override]
        return (self.watermark if self.up else self.pages) * self.page_bytes

    def allocated(self) -> int:
        return self.watermark - self.first if self.up else self.pages - 1 - self.watermark

    def gap_bytes(self) -> int:
        """Bytes between this pool and the next non-empty one."""
        return max(0, self.room_above() - self.high_byte if self.up else self.low_byte - self.room_below())

    def available(self, more_bytes: int = 0) -> int:
        by_bytes = (self.gap_bytes() + more_bytes) // self.page_bytes
        more = min(by_bytes, self.pages - self.first - self.allocated())
        return more + (len(self.holes) if self.lazy else 0)

    def schedulable(self) -> int:
        """Pages that can be allocated once the neighbour has closed its holes."""
        return self.available(drained(self.neighbour()))

    def neighbour(self) -> Member | None:
        """The next non-empty pool in its direction of growth."""
        at = self.above if self.up else self.below
        while at is not None and at.transparent:
            at = at.above if self.up else at.below
        return at

    def helpers(self) -> Sequence[Member]:
        found = self.neighbour()
        return () if found is None else (found,)

    def ask_for_room(self, pages: int) -> None:
        found = self.neighbour()
        if found is not None:
            found.open_for(self, pages) if isinstance(found, Middle) else None

    # -- allocating ------------------------------------------------------------------------------

    def place(self, pages: Sequence[int]) -> bool:
        count, drained_pages = len(pages), min(len(pages), len(self.holes)) if self.lazy else 0
        more = count - drained_pages
        if more and not self._grow(more):
            return False
        places = self.take_holes(drained_pages, from_low=self.up) if drained_pages else []
        if self.up:
            fresh = list(range(self.watermark - more, self.watermark))
        elif places:
            fresh = list(range(self.watermark + more, self.watermark, -1))
        else:
            fresh = list(range(self.watermark + 1, self.watermark + 1 + more))
        self.live += count
        self.bind(pages, places + fresh)
        return True

    def _grow(self, pages: int) -> bool:
        if self.up:
            new = self.watermark + pages
            if new > self.pages or (self.lazy and new > self.room_above() // self.page_bytes):
                return False
        else:
            new = self.watermark - pages
            if new < self.first - 1 or (self.lazy and new + 1 < self.room_below() // self.page_bytes):
                return False
        self.watermark = new
        return True

    def free(self, pages: Sequence[int], owns_names: bool = True) -> None:
        """Free virtual pages, and their names if this pool owns the names."""
        places = self.take_out(pages)
        if owns_names:
            self.free_virtual += pages
        self.live -= len(places)
        if self.lazy:
            self.holes += places
        else:
            self._close(set(places))

    def _close(self, holes: set[int]) -> None:
        """Move pages next to the watermark into the holes behind them; the watermark retreats."""
        old, step = self.watermark, len(holes)
        if self.up:
            self.watermark = new = old - step
            sources = [page for page in range(new, old) if page not in holes]
            targets = sorted(hole for hole in holes if hole < new)
        else:
            self.watermark = new = old + step
            sources = [page for page in range(old + 1, new + 1) if page not in holes]
            targets = sorted(hole for hole in holes if hole > new)
        if len(sources) != len(targets):
            raise InvariantError(f"{len(sources)} pages are to move into {len(targets)} holes")
        if sources:
            self.move(sources, targets)

    # -- flushing -----------------------------------------------------------------------------

    def flush(self, urgent: bool) -> int:
        """Make one pass over the holes; does nothing if eager."""
        if not self.lazy or not (urgent or self.holes or self.pending):
            return 0
        self._take_pending(urgent)
        self.holes.sort()
        self._retreat()
        if urgent and self.holes:
            self.passes.settle()
            return self._pack()
        return self._close_some()

    def _take_pending(self, urgent: bool) -> None:
        """Turn places that no pass reads any longer into holes."""
        for running in list(self.pending):
            if not running.over:
                if not urgent:
                    continue
                self.passes.waits.append(running)
            self.holes += self.pending.pop(running)

    def _retreat(self) -> None:
        """Move the watermark over the holes next to it."""
        if self.up:
            while self.holes and self.holes[-1] == self.watermark - 1:
                self.watermark = self.holes.pop()
        else:
            passed = 0
            while passed < len(self.holes) and self.holes[passed] == self.watermark + 1:
                self.watermark += 1
                passed += 1
            del self.holes[:passed]

    def _survivors(self) -> list[int]:
        """Pages in use, starting at the watermark."""
        pages = sorted(self.virtual, reverse=self.up)
        return pages

    def _pairs(self, most: int, written: set[int]) -> list[Move]:
        """The moves: pages next to the watermark into the holes far from it, until they meet."""
        targets = self.holes if self.up else self.holes[::-1]
        pairs: list[Move] = []
        for source, target in zip(self._survivors(), targets, strict=False):
            if len(pairs) == most or source in written or (source < target) == self.up:
                break
            pairs.append((source, target))
        return pairs

    def _move_pairs(self, pairs: Sequence[Move]) -> None:
        if pairs:
            self.move([source for source, _ in pairs], [target for _, target in pairs])

    def _pack(self) -> int:
        """Close all holes; no pass reads or writes any longer."""
        pairs = self._pairs(len(self.holes), set())
        self._move_pairs(pairs)
        self.watermark += -len(self.holes) if self.up else len(self.holes)
        self.holes = []
        return len(pairs)

    def _close_some(self) -> int:
        """Close holes up to the first page that a pass writes; the watermark stays."""
        if not self.holes:
            return 0
        written = {self.physical[name] for name in self.passes.written() if name in self.physical}
        pairs = self._pairs(MOST_IDLE_MOVES, written)
        self._move_pairs(pairs)
        if pairs:
            self.holes = self.holes[len(pairs) :] if self.up else self.holes[: -len(pairs)]
            left, latest = [source for source, _ in pairs], self.passes.latest
            if latest is None or latest.over:
                self.holes += left
            else:
                self.pending.setdefault(latest, []).extend(left)
        return len(pairs)


class Middle(Member):
    """A pool between two others that can be asked to move."""

    def open_for(self, short: End, pages: int) -> None:
        """Make room on the side of an end pool that lacks `pages` pages."""
        raise NotImplementedError
