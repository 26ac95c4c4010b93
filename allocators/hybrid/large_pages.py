"""Jenga's two levels: large pages of one size for all kinds, cut into each kind's own small pages.

    large page   |<-------- LCM of all small pages -------->|
    kind A       | a | a | a | a | a | a | a | a | a | a | a |
    kind B       |      b      |      b      |      b      |

A small page of any kind divides the large page, so nothing is padded: waste is only the small pages of a
large page that are free while a sibling is not. They are *idle*: no other kind can have them until the large
page is whole again.

When a request wants a small page (Zhang et al., Jenga, SOSP 2025, arXiv 2503.18292; the order is from
memory and marked so in the documentation):

1. a free small page in a large page that this request has begun, of this kind
2. a free large page
3. a large page all of whose small pages are cached only: the least recently used
4. a free small page in a large page of another request, of this kind
5. a cached small page of this kind: the least recently used, ties: the longer prefix first

A request that takes pages of several kinds at once says so before (`plan`): 2 and 3 then leave the large
pages that its other kinds cannot do without, so that all of it fits wherever some order makes it fit.

A released page is free, or cached where its text may be hit again (`keep`). Last uses are told by the caller
(`use`): a window refreshes only its last tokens, so that what no window reaches grows old.
"""

from heapq import heappop, heappush

from kvsim.allocators.hybrid.large_books import CACHED, HELD, IDLE, Large, LargeBooks, Small


class LargePages(LargeBooks):
    """An arena of large pages: who gets which small one, and which go first."""

    def take(self, kind: int, request: int) -> Small | None:
        """A small page, or None; cached ones that had to go are counted."""
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
        """The page's tokens matter to a step that is computed now; `prefix`: tokens up to its end."""
        self._pages[page[0]].used[page[1]] = (self._clock, -prefix)

    def tick(self) -> None:
        """What is used from now on is used later than what was used before."""
        self._clock += 1

    def release(self, page: Small, keep: bool = False) -> None:
        """The request lets go; `keep`: the page's text may be hit again."""
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

    # -- where from ----------------------------------------------------------------------------------

    def _of_request(self, kind: int, request: int) -> Small | None:
        begun = self._begun.get((kind, request))
        return self._hold(next(iter(begun))) if begun else None

    def _of_others(self, kind: int) -> Small | None:
        some = self._open[kind]
        return self._hold(next(iter(some))) if some else None

    def _begin(self, kind: int, request: int) -> Small | None:
        """The first small page of a large one that is free, or has nothing but cached and free ones."""
        if not self._free:
            self._evict_whole()
        if not self._free:
            return None
        large = self._free.pop()
        self._pages[large] = Large(kind, request, self.each[kind])
        self.partly[kind] += self.each[kind]
        return self._hold(large)

    def _evict_whole(self) -> None:
        """Give up the large page that was used longest ago, if there is one with nothing held."""
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
        """The cached small page that was used longest ago, in a large page that holds something too."""
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
