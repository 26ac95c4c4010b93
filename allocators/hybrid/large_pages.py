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
from heapq import heappop, heappush
from math import lcm

Small = tuple[int, int]
"""(large page, index in it)."""

IDLE, HELD, CACHED = 0, 1, 2
MOST_TIMES = 4096
"""A large page holds at most this many of the largest small pages: coprime sizes would make it huge."""


class Kind:
    """The small pages of one kind.

    Attributes
    ----------
    number, each : int
        Its place in `LargePages.kinds`; small pages in a large one.
    begun : int
        Large pages in use.
    partly : int
        Small pages, free or cached, in large pages that also hold something.
    planned : int
        Small pages that the next calls of `take` will ask for.
    open, open_of : dict
        Large pages that hold something and have a free small page, oldest first: all, and by the request that
        began them.
    old : list
        A heap of cached small pages: last use, large page, index. Some are stale.
    """

    __slots__ = ("begun", "each", "number", "old", "open", "open_of", "partly", "planned")

    def __init__(self, number: int, each: int) -> None:
        self.number, self.each = number, each
        self.begun = self.partly = self.planned = 0
        self.open: dict[int, None] = {}
        self.open_of: dict[int, dict[int, None]] = {}
        self.old: list[tuple[tuple[int, int], int, int]] = []

    def large_for(self, wanted: int, partly: int) -> int:
        """Large pages to begin for `wanted` small ones, if `partly` are free or cached in others."""
        return -(-max(0, wanted - partly) // self.each)

    def opened(self, large: int, owner: int) -> None:
        """A large page that holds something now has a free small page."""
        self.open_of.setdefault(owner, {})[large] = None
        self.open[large] = None

    def closed(self, large: int, owner: int) -> None:
        """It no longer has one, or no longer holds anything."""
        self.open.pop(large, None)
        of_owner = self.open_of.get(owner)
        if of_owner is not None:
            of_owner.pop(large, None)
            if not of_owner:
                del self.open_of[owner]


class Large:
    """A large page in use: its kind, the request that began it, the state of each small page."""

    __slots__ = ("cached", "held", "idle", "kind", "owner", "since", "states", "used")

    def __init__(self, kind: Kind, owner: int) -> None:
        self.kind, self.owner, count = kind, owner, kind.each
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
    kinds : list of Kind
        The small pages of each kind.
    count : int
        Large pages.
    free : int
        Large pages that are not in use.
    whole : int
        Large pages with cached and free small pages only: they can be evicted.
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
        self.large_bytes = lcm(*page_bytes)
        if self.large_bytes > MOST_TIMES * max(page_bytes):
            raise ValueError(
                f"page_bytes must have a common multiple of at most {MOST_TIMES} times the largest, got "
                f"{list(page_bytes)}: {self.large_bytes}"
            )
        self.count = capacity_bytes // self.large_bytes
        self.kinds = [Kind(number, self.large_bytes // size) for number, size in enumerate(page_bytes)]
        self.whole = 0
        self._on_evict, self._packs = on_evict, packs
        self._free = list(range(self.count - 1, -1, -1))
        self._pages: dict[int, Large] = {}
        self._oldest: list[tuple[tuple[int, int], int, int]] = []  # whole pages: last use, page, since
        self._clock = 0

    @property
    def free(self) -> int:
        """Large pages that are not in use."""
        return len(self._free)

    # -- what fits -----------------------------------------------------------------------------------

    def room(self, wanted: Sequence[int], hits: Sequence[Sequence[Small]]) -> bool:
        """Whether there is room for `wanted` small pages of each kind, besides cached ones that are hit."""
        free, needed = self.free + self.whole, 0
        for kind, count, pages in zip(self.kinds, wanted, hits, strict=True):
            partly = kind.partly
            for large, found in Counter(large for large, _ in pages).items():
                if self._pages[large].held:
                    partly -= found
                else:
                    free -= 1
                    partly += kind.each - found
            needed += kind.large_for(count, partly)
        return needed <= free

    def plan(self, wanted: Sequence[int]) -> None:
        """Announce the next calls of `take`: `wanted` small pages of each kind, for which there is room."""
        for kind, count in zip(self.kinds, wanted, strict=True):
            kind.planned = count

    def _may_begin(self, kind: Kind) -> bool:
        """Whether one more large page can be begun without taking those that other kinds of the plan need."""
        if kind.planned > kind.partly:
            return True
        needed = sum([each.large_for(each.planned, each.partly) for each in self.kinds])
        return needed < self.free + self.whole

    def begun(self) -> list[int]:
        """The large pages in use, by address."""
        return sorted(self._pages)

    # -- taking and releasing -------------------------------------------------------------------------

    def take(self, kind: int, request: int) -> Small | None:
        """Allocate a small page, evicting if necessary; None if there is none."""
        wanted = self.kinds[kind]
        found = self._of_request(wanted, request)
        if found is None and self._packs:
            found = self._of_others(wanted)
        if found is None and self._may_begin(wanted):
            found = self._begin(wanted, request)
        if found is None:
            found = self._of_others(wanted)
        if found is None:
            found = self._evict_small(wanted)
        if found is not None:
            wanted.planned = max(0, wanted.planned - 1)
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
        if keep:
            heappush(kind.old, (in_use.used[place], large, place))
        else:
            in_use.idle.append(place)
        if in_use.held:
            kind.partly += 1
            if not keep:
                kind.opened(large, in_use.owner)
            return
        kind.partly -= kind.each - 1
        kind.closed(large, in_use.owner)
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
            kind.partly -= 1
        else:
            self.whole -= 1
            in_use.since += 1
            kind.partly += kind.each - 1
        in_use.states[place] = HELD
        in_use.held += 1
        in_use.cached -= 1
        if in_use.idle:
            kind.opened(large, in_use.owner)
        return True

    # -- where a page comes from ---------------------------------------------------------------------

    def _of_request(self, kind: Kind, request: int) -> Small | None:
        begun = kind.open_of.get(request)
        return self._hold(next(iter(begun))) if begun else None

    def _of_others(self, kind: Kind) -> Small | None:
        return self._hold(next(iter(kind.open))) if kind.open else None

    def _begin(self, kind: Kind, request: int) -> Small | None:
        """The first small page of a large one that is free, or holds only cached and free small pages."""
        if not self._free:
            self._evict_whole()
        if not self._free:
            return None
        large = self._free.pop()
        self._pages[large] = Large(kind, request)
        kind.partly += kind.each
        kind.begun += 1
        return self._hold(large)

    def _evict_whole(self) -> None:
        """Evict the least recently used large page in which nothing is held, if there is one."""
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

    def _evict_small(self, kind: Kind) -> Small | None:
        """Evict the least recently used cached small page in a large page where something is held."""
        later, found = [], None
        while kind.old and found is None:
            used, large, place = entry = heappop(kind.old)
            in_use = self._pages.get(large)
            if in_use is None or in_use.kind is not kind or in_use.states[place] != CACHED:
                continue
            if in_use.used[place] != used:
                continue
            if not in_use.held:
                later.append(entry)
                continue
            self._give_up(in_use, (large, place))
            in_use.states[place] = HELD
            in_use.held += 1
            kind.partly -= 1
            found = large, place
        for entry in later:
            heappush(kind.old, entry)
        return found

    # -- changing ------------------------------------------------------------------------------------

    def _hold(self, large: int) -> Small:
        """The next free small page of a large one."""
        in_use = self._pages[large]
        kind, place = in_use.kind, in_use.idle.pop()
        in_use.states[place] = HELD
        in_use.held += 1
        kind.partly -= 1
        if in_use.idle:
            kind.opened(large, in_use.owner)
        else:
            kind.closed(large, in_use.owner)
        return large, place

    def _give_up(self, in_use: Large, page: Small) -> None:
        """Forget a cached page's text."""
        in_use.states[page[1]] = IDLE
        in_use.cached -= 1
        if self._on_evict is not None:
            self._on_evict(in_use.kind.number, page)

    def _retire(self, large: int) -> None:
        """Free a large page without small pages in use."""
        self._pages.pop(large).kind.begun -= 1
        self._free.append(large)
