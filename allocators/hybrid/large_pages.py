"""Jenga's two levels: large pages of one size for all kinds, cut into small pages of one kind.

    large page   |<-------- LCM of all small pages -------->|
    kind A       | a | a | a | a | a | a | a | a | a | a | a |
    kind B       |      b      |      b      |      b      |

The size of a small page divides that of the large page, so nothing is padded. The only waste is free small
pages of a large page in use. They are *idle*: no other kind can use them until the large page can be freed.

When a request needs a small page (Zhang et al., Jenga, SOSP 2025, arXiv 2503.18292; the order is from
memory and marked so in the documentation), it gets the first of these:

1. a free small page in a large page that this request has begun, of this kind
2. a free large page
3. a large page all of whose small pages are cached only: the least recently used
4. a free small page in a large page of another request, of this kind
5. a cached small page of this kind: the least recently used, ties: the longer prefix first

A request that takes pages of several kinds at once announces this first (`plan`): 2 and 3 then leave the
large pages that its other kinds need, so that everything fits if any order makes it fit.

A released page is free, or cached if its text may be hit again (`keep`). The caller reports last uses
(`use`): a window refreshes only its last tokens, so that tokens that no window reaches grow old.

Counters of large and small pages:

    free     large pages that are not in use         whole    those with cached and idle small pages only
    partly   small pages of a kind, cached or idle, in large pages that also hold something
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import lcm

Small = tuple[int, int]
"""(large page, index in it)."""

IDLE, HELD, CACHED = 0, 1, 2
MOST_TIMES = 4096
"""A large page holds at most this many of the largest small pages: coprime sizes would make it huge."""


@dataclass(frozen=True)
class ByteLedger:
    """The bytes of the arena by use; they sum to the capacity.

    held : in pages of requests; cached : in pages kept for their text; idle : in free small pages of large
    pages in use; free : in free large pages; remainder : at the end, less than a large page.
    """

    held: int
    cached: int
    idle: int
    free: int
    remainder: int

    @property
    def capacity(self) -> int:
        """All bytes."""
        return self.held + self.cached + self.idle + self.free + self.remainder


class Large:
    """A large page in use: its kind, the request that began it, the state of each small page."""

    __slots__ = ("cached", "held", "idle", "kind", "owner", "since", "states", "used")

    def __init__(self, kind: int, owner: int, count: int) -> None:
        self.kind, self.owner = kind, owner
        self.held = self.cached = 0
        self.since = 0  # times that `held` left or reached 0: heap entries with another number are stale
        self.idle = list(range(count - 1, -1, -1))
        self.states = bytearray(count)
        self.used = [(0, 0)] * count


class LargePages:
    """An arena of large pages: which small page is allocated, which is evicted, and what fits.

    Parameters
    ----------
    capacity_bytes : int
        Any unit will do, if `page_bytes` has it too.
    page_bytes : sequence of int
        Bytes of a small page of each kind.
    on_evict : callable or None
        Called with (kind, small page) for each cached page that is evicted.
    packs : bool
        Whether rule 4 above comes before rule 2.

    Attributes
    ----------
    count, each : int, list of int
        Large pages, and small pages of each kind in one.
    free : int
        Large pages that are not in use.
    whole : int
        Large pages with cached and free small pages only: they can be evicted.
    partly : list of int
        Small pages of each kind, free or cached, in large pages that also hold something.
    begun_by : list of int
        Large pages of each kind in use.
    evicted : int
        Cached small pages that were evicted.
    """

    def __init__(
        self,
        capacity_bytes: int,
        page_bytes: Sequence[int],
        on_evict: Callable[[int, Small], None] | None = None,
        packs: bool = False,
    ) -> None:
        if not page_bytes or any(each < 1 for each in page_bytes):
            raise ValueError(f"page_bytes must be at least 1 each, got {list(page_bytes)}")
        self.page_bytes, self.large_bytes = list(page_bytes), lcm(*page_bytes)
        if self.large_bytes > MOST_TIMES * max(page_bytes):
            raise ValueError(
                f"page_bytes must have a common multiple of at most {MOST_TIMES} times the largest, got "
                f"{self.page_bytes}: {self.large_bytes}"
            )
        self.capacity_bytes = capacity_bytes
        self.count = capacity_bytes // self.large_bytes
        self.each = [self.large_bytes // size for size in self.page_bytes]
        self.whole = self.evicted = 0
        self.partly, self.begun_by = [0] * len(self.each), [0] * len(self.each)
        self.holding, self.kept = [0] * len(self.each), [0] * len(self.each)
        self._on_evict, self._packs = on_evict, packs
        self._planned = [0] * len(self.each)
        self._free = list(range(self.count - 1, -1, -1))
        self._pages: dict[int, Large] = {}
        self._begun: dict[tuple[int, int], dict[int, None]] = {}  # by (kind, owner): those in use with room
        self._open: list[dict[int, None]] = [{} for _ in self.each]  # by kind: the same
        self._oldest: list[tuple[tuple[int, int], int, int]] = []  # whole pages: last use, page, since
        self._old: list[list[tuple[tuple[int, int], int, int]]] = [[] for _ in self.each]  # cached, by kind
        self._clock = 0

    @property
    def free(self) -> int:
        """Large pages that are not in use."""
        return len(self._free)

    # -- what fits -----------------------------------------------------------------------------------

    def room(self, wanted: Sequence[int], hits: Sequence[Sequence[Small]]) -> bool:
        """Whether there is room for `wanted` small pages of each kind, besides cached ones that are hit."""
        free, partly = self.free + self.whole, list(self.partly)
        for kind, pages in enumerate(hits):
            for large, count in Counter(large for large, _ in pages).items():
                if self._pages[large].held:
                    partly[kind] -= count
                else:
                    free -= 1
                    partly[kind] += self.each[kind] - count
        return sum(self._large_for(wanted, partly)) <= free

    def plan(self, wanted: Sequence[int]) -> None:
        """Announce the next calls of `take`: `wanted` small pages of each kind, for which there is room."""
        self._planned = list(wanted)

    def _large_for(self, wanted: Sequence[int], partly: Sequence[int]) -> list[int]:
        """Large pages that each kind must begin to get `wanted` small ones."""
        return [
            -(-max(0, count - there) // each)
            for count, there, each in zip(wanted, partly, self.each, strict=True)
        ]

    def _may_begin(self, kind: int) -> bool:
        """Whether one more large page can be begun without taking those that other kinds of the plan need."""
        needed = self._large_for(self._planned, self.partly)
        return needed[kind] > 0 or sum(needed) < self.free + self.whole

    def ledger(self) -> ByteLedger:
        """Count every byte of the arena by use."""
        held = sum(count * size for count, size in zip(self.holding, self.page_bytes, strict=True))
        cached = sum(count * size for count, size in zip(self.kept, self.page_bytes, strict=True))
        free = self.free * self.large_bytes
        idle = self.count * self.large_bytes - held - cached - free
        return ByteLedger(held, cached, idle, free, self.capacity_bytes - self.count * self.large_bytes)

    def begun(self) -> list[int]:
        """The large pages in use, by address."""
        return sorted(self._pages)

    # -- taking and releasing -------------------------------------------------------------------------

    def take(self, kind: int, request: int) -> Small | None:
        """Allocate a small page, evicting if necessary; None if there is none."""
        found = self._of_request(kind, request)
        if found is None and self._packs:
            found = self._of_others(kind)
        if found is None and self._may_begin(kind):
            found = self._begin(kind, request)
        if found is None:
            found = self._of_others(kind)
        if found is None:
            found = self._evict_small(kind)
        if found is not None:
            self._planned[kind] = max(0, self._planned[kind] - 1)
        return found

    def use(self, page: Small, prefix: int = 0) -> None:
        """The current step uses the page's tokens; `prefix`: tokens up to its end."""
        self._pages[page[0]].used[page[1]] = (self._clock, -prefix)

    def tick(self) -> None:
        """Advance the clock: later uses count as more recent."""
        self._clock += 1

    def release(self, page: Small, keep: bool = False) -> None:
        """The request releases the page; `keep`: its text may be hit again."""
        large, place = page
        in_use = self._pages[large]
        kind = in_use.kind
        if in_use.states[place] != HELD:
            raise RuntimeError(f"page {page} is released but not held")
        in_use.states[place] = CACHED if keep else IDLE
        in_use.held -= 1
        in_use.cached += keep
        self.holding[kind] -= 1
        self.kept[kind] += keep
        if keep:
            heappush(self._old[kind], (in_use.used[place], large, place))
        else:
            in_use.idle.append(place)
        if in_use.held:
            self.partly[kind] += 1
            if not keep:
                self._opened(large, in_use)
            return
        self.partly[kind] -= self.each[kind] - 1
        self._closed(large, in_use)
        if in_use.cached:
            self.whole += 1
            in_use.since += 1
            heappush(self._oldest, (max(in_use.used), large, in_use.since))
        else:
            self._retire(large)

    def hit(self, page: Small) -> bool:
        """A request takes a cached page back; False if it is gone."""
        large, place = page
        in_use = self._pages.get(large)
        if in_use is None or in_use.states[place] != CACHED:
            return False
        kind = in_use.kind
        if in_use.held:
            self.partly[kind] -= 1
        else:
            self.whole -= 1
            in_use.since += 1
            self.partly[kind] += self.each[kind] - 1
        in_use.states[place] = HELD
        in_use.held += 1
        in_use.cached -= 1
        self.kept[kind] -= 1
        self.holding[kind] += 1
        if in_use.idle:
            self._opened(large, in_use)
        return True

    # -- where a page comes from ---------------------------------------------------------------------

    def _of_request(self, kind: int, request: int) -> Small | None:
        begun = self._begun.get((kind, request))
        return self._hold(next(iter(begun))) if begun else None

    def _of_others(self, kind: int) -> Small | None:
        some = self._open[kind]
        return self._hold(next(iter(some))) if some else None

    def _begin(self, kind: int, request: int) -> Small | None:
        """The first small page of a large one that is free, or holds only cached and free small pages."""
        if not self._free:
            self._evict_whole()
        if not self._free:
            return None
        large = self._free.pop()
        self._pages[large] = Large(kind, request, self.each[kind])
        self.partly[kind] += self.each[kind]
        self.begun_by[kind] += 1
        return self._hold(large)

    def _evict_whole(self) -> None:
        """Evict the least recently used large page in which nothing is held; False if there is none."""
        while self._oldest:
            _, large, since = heappop(self._oldest)
            in_use = self._pages.get(large)
            if in_use is None or in_use.held or in_use.since != since:
                continue
            for place, state in enumerate(in_use.states):
                if state == CACHED:
                    self._give_up(in_use, (large, place))
            self.whole -= 1
            self._retire(large)
            return

    def _evict_small(self, kind: int) -> Small | None:
        """Evict the least recently used cached small page in a large page where something is held."""
        later, found = [], None
        while self._old[kind] and found is None:
            used, large, place = entry = heappop(self._old[kind])
            in_use = self._pages.get(large)
            if in_use is None or in_use.kind != kind or in_use.states[place] != CACHED:
                continue
            if in_use.used[place] != used:
                continue
            if not in_use.held:
                later.append(entry)
                continue
            self._give_up(in_use, (large, place))
            in_use.states[place] = HELD
            in_use.held += 1
            self.holding[kind] += 1
            self.partly[kind] -= 1
            found = large, place
        for entry in later:
            heappush(self._old[kind], entry)
        return found

    # -- changing ------------------------------------------------------------------------------------

    def _hold(self, large: int) -> Small:
        """The next free small page of a large one."""
        in_use = self._pages[large]
        place = in_use.idle.pop()
        in_use.states[place] = HELD
        in_use.held += 1
        self.holding[in_use.kind] += 1
        self.partly[in_use.kind] -= 1
        if in_use.idle:
            self._opened(large, in_use)
        else:
            self._closed(large, in_use)
        return large, place

    def _give_up(self, in_use: Large, page: Small) -> None:
        """Forget a cached page's text."""
        in_use.states[page[1]] = IDLE
        in_use.cached -= 1
        self.kept[in_use.kind] -= 1
        self.evicted += 1
        if self._on_evict is not None:
            self._on_evict(in_use.kind, page)

    def _opened(self, large: int, in_use: Large) -> None:
        """A large page that holds something now has a free small page."""
        self._begun.setdefault((in_use.kind, in_use.owner), {})[large] = None
        self._open[in_use.kind][large] = None

    def _closed(self, large: int, in_use: Large) -> None:
        """It no longer has one, or no longer holds anything."""
        self._open[in_use.kind].pop(large, None)
        place = in_use.kind, in_use.owner
        begun = self._begun.get(place)
        if begun is not None:
            begun.pop(large, None)
            if not begun:
                del self._begun[place]

    def _retire(self, large: int) -> None:
        """Free a large page without small pages in use."""
        self.begun_by[self._pages.pop(large).kind] -= 1
        self._free.append(large)
