"""Two pools of different pages in one buffer, each growing from its end: SGLang's unified memory pool.

    0                                                                  total_bytes
    | padding | up: 1 2 3 . 5 6 |>        gap        <| down: 4 3 . 1 |
                          watermark                   watermark

What one pool does not use the other can. Users hold *virtual* pages; `physical` says where each lies now,
so pages can be moved. *Eager*: a free moves the pages next to the watermark into the holes at once, and the
watermark retreats. *Lazy*: holes (`.`) are kept and lent first; they are closed by a *flush*, when the
neighbour is short of room (an urgent one: all of them), or in idle moments. A flush must not move a page
that a forward pass still writes; the place that a page left may still be read, and is *pending* until the
pass is over.

Only what a neighbour compacts helps a pool: its own compaction trades one hole for one page of the gap.
Source: SGLang 0.5.23, `mem_cache/allocator/unified_sub_pool.py` (MultiEndedAllocator).
"""

from collections.abc import Callable, Sequence

from kvsim.allocators.base import InvariantError

MOST_IDLE_MOVES = 4096
"""Pages that a flush moves at most, unless somebody waits for room."""
Move = tuple[int, int]
"""(from, to), physical pages."""


class Pass:
    """A forward pass of the model: over or not."""

    def __init__(self) -> None:
        self.over = False


class Member:
    """What neighbours in a chain of pools, ordered by address, know of each other.

    Attributes
    ----------
    page_bytes, pages, first : int
        Bytes of a page; how many the buffer could hold; the first that is not padding.
    physical : dict of int
        Virtual page -> where it lies.
    virtual : dict of int
        The other way round.
    free_virtual : list of int
        Names to give next.
    holes : list of int
        Free pages inside of the span, in the order in which they came.
    below, above : Member or None
        Neighbours.
    """

    def __init__(self, page_bytes: int, pages: int, first: int, total_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.pages = pages
        self.first = first
        self.total_bytes = total_bytes
        self.physical: dict[int, int] = {}
        self.virtual: dict[int, int] = {}
        self.free_virtual = list(range(first, pages))
        self.holes: list[int] = []
        self.below: Member | None = None
        self.above: Member | None = None
        self.lazy = False
        self.latest: Pass | None = None
        self.writing: tuple[Pass, frozenset[int]] | None = None
        self.waits: list[Pass] = []
        """Passes that a flush waited for, in order."""
        self.on_move: Callable[[Sequence[int], Sequence[int]], None] = lambda _sources, _targets: None

    # -- what neighbours see ------------------------------------------------------------------

    low_byte: int
    """where its pages begin"""
    high_byte: int
    """the byte behind them"""
    transparent = False
    """whether neighbours may use the room beyond it, as it holds nothing"""

    def room_below(self) -> int:
        """The byte from which on nobody below holds anything."""
        at = self.below
        while at is not None and at.transparent:
            at = at.below
        return at.high_byte if at is not None else 0

    def room_above(self) -> int:
        """The byte up to which nobody above holds anything."""
        at = self.above
        while at is not None and at.transparent:
            at = at.above
        return at.low_byte if at is not None else self.total_bytes

    def allocated(self) -> int:
        """Pages of its span that neighbours cannot have."""
        raise NotImplementedError

    def available(self, more_bytes: int = 0) -> int:
        """Pages that can be lent without moving any, if the gap had so many bytes more."""
        raise NotImplementedError

    def flush(self, urgent: bool) -> int:
        """Close holes, and give the room back; how many pages were moved."""
        raise NotImplementedError

    def place(self, pages: Sequence[int]) -> bool:
        """Find a place for virtual pages; False: there is no room."""
        raise NotImplementedError

    def helpers(self) -> Sequence["Member"]:
        """Whose flush gives it room."""
        return ()

    def ask_for_room(self, pages: int) -> None:
        """Ask a pool in the middle to move away."""

    # -- lending ------------------------------------------------------------------------------

    def alloc(self, pages: int) -> list[int] | None:
        """So many virtual pages; None: there is no room, even if neighbours make some."""
        if pages > self.available() and not self._find_room(pages):
            return None
        if pages > len(self.free_virtual):
            return None
        names, self.free_virtual = self.free_virtual[:pages], self.free_virtual[pages:]
        if not self.place(names):
            self.free_virtual[:0] = names
            return None
        return names

    def _find_room(self, pages: int) -> bool:
        for helper in self.helpers():
            helper.flush(urgent=True)
        if pages <= self.available():
            return True
        self.ask_for_room(pages)
        return pages <= self.available()

    def bind(self, names: Sequence[int], places: Sequence[int]) -> None:
        """Say where virtual pages lie."""
        self.physical.update(zip(names, places, strict=True))
        self.virtual.update(zip(places, names, strict=True))

    def take_out(self, names: Sequence[int]) -> list[int]:
        """Virtual pages are free: returns where they lay."""
        places = [self.physical.pop(name) for name in names]
        for place in places:
            del self.virtual[place]
        return places

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move pages, all at once; those who hold them notice nothing."""
        names = [self.virtual.pop(source) for source in sources]
        self.bind(names, targets)
        self.on_move(sources, targets)

    def take_holes(self, count: int, from_low: bool) -> list[int]:
        """So many holes from an end of the sorted list, or all as they stand."""
        if count == len(self.holes):
            taken, self.holes = self.holes, []
            return taken
        self.holes.sort()
        if from_low:
            taken, self.holes = self.holes[:count], self.holes[count:]
        else:
            taken, self.holes = self.holes[-count:], self.holes[:-count]
        return taken

    # -- forward passes -----------------------------------------------------------------------

    def begin_pass(self, running: Pass, written: Sequence[int]) -> None:
        """A forward pass begins that reads anything, and writes into these virtual pages."""
        self.latest = running
        self.writing = (running, frozenset(written)) if self.lazy and written else None

    def settle(self) -> None:
        """Let what follows wait until the latest pass is over."""
        if self.latest is not None:
            self._wait(self.latest)
            self.writing = None

    def _wait(self, running: Pass) -> None:
        self.waits.append(running)

    def _written(self) -> set[int]:
        """The physical pages that a pass writes just now."""
        if self.writing is not None and self.writing[0].over:
            self.writing = None
        names = self.writing[1] if self.writing else ()
        return {self.physical[name] for name in names if name in self.physical}


class End(Member):
    """A pool at one end of the buffer.

    Parameters
    ----------
    up : bool
        Whether it grows from the bottom, or down from the top.
    lazy : bool
        Whether holes are kept until somebody needs the room.
    """

    def __init__(  # noqa: PLR0917 - its geometry, then its manners
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
        """Bytes between it and the next pool that holds anything."""
        return max(0, self.room_above() - self.high_byte if self.up else self.low_byte - self.room_below())

    def available(self, more_bytes: int = 0) -> int:
        by_bytes = (self.gap_bytes() + more_bytes) // self.page_bytes
        more = min(by_bytes, self.pages - self.first - self.allocated())
        return more + (len(self.holes) if self.lazy else 0)

    def schedulable(self) -> int:
        """Pages that can be lent once the neighbour has closed its holes."""
        return self.available(drained(self.neighbour()))

    def neighbour(self) -> Member | None:
        """The next pool that holds anything, where it grows."""
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

    # -- lending ------------------------------------------------------------------------------

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
        """Take back virtual pages; a pool that does not own their names gives none back."""
        places = self.take_out(pages)
        if owns_names:
            self.free_virtual += pages
        self.live -= len(places)
        if self.lazy:
            self.holes += places
        else:
            self._close(set(places))

    def _close(self, holes: set[int]) -> None:
        """Move the pages next to the watermark into the holes behind them; the watermark retreats."""
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
        """One pass over the holes; nothing if it is eager."""
        if not self.lazy or not (urgent or self.holes or self.pending):
            return 0
        self._take_pending(urgent)
        self.holes.sort()
        self._retreat()
        if urgent and self.holes:
            self.settle()
            return self._pack()
        return self._close_some()

    def _take_pending(self, urgent: bool) -> None:
        """Places that no pass reads any more are holes again."""
        for running in list(self.pending):
            if not running.over:
                if not urgent:
                    continue
                self._wait(running)
            self.holes += self.pending.pop(running)

    def _retreat(self) -> None:
        """The watermark passes over the holes next to it."""
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
        """Pages in use, from the watermark on."""
        pages = sorted(self.virtual, reverse=self.up)
        return pages

    def _pairs(self, most: int, written: set[int]) -> list[Move]:
        """Which pages go where: those next to the watermark into the holes far from it, until they meet."""
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
        """Close all holes: nobody reads or writes any more."""
        pairs = self._pairs(len(self.holes), set())
        self._move_pairs(pairs)
        self.watermark += -len(self.holes) if self.up else len(self.holes)
        self.holes = []
        return len(pairs)

    def _close_some(self) -> int:
        """Close holes as far as no page is in the way that a pass writes; the watermark stays."""
        if not self.holes:
            return 0
        pairs = self._pairs(MOST_IDLE_MOVES, self._written())
        self._move_pairs(pairs)
        if pairs:
            self.holes = self.holes[len(pairs) :] if self.up else self.holes[: -len(pairs)]
            left = [source for source, _ in pairs]
            if self.latest is None or self.latest.over:
                self.holes += left
            else:
                self.pending.setdefault(self.latest, []).extend(left)
        return len(pairs)


class Middle(Member):
    """A pool between two others that can be asked to move away (allocators/sglang/floating.py)."""

    def open_for(self, short: End, pages: int) -> None:
        """Open the side that faces an end pool which is short of so many pages."""
        raise NotImplementedError


def drained(member: Member | None) -> int:
    """Bytes that an urgent flush of a pool would release."""
    return len(member.holes) * member.page_bytes if member is not None and member.lazy else 0
