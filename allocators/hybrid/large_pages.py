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

A released page is free, or cached where its text may be hit again (`keep`). Last uses are told by the caller
(`use`): a window refreshes only its last tokens, so that what no window reaches grows old.
"""

from dataclasses import dataclass
from math import lcm

IDLE, HELD, CACHED = 0, 1, 2


@dataclass(frozen=True)
class ByteLedger:
    """Every byte of the arena is exactly one of these; they sum to the capacity.

    held : in pages that a request has; cached : in pages kept for their text; idle : in free small pages of
    large pages that are in use; free : in free large pages; remainder : at the end, less than a large page.
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


class _Large:
    """A large page in use: its kind, who began it, and the state of each small page."""

    __slots__ = ("kind", "owner", "states", "used")

    def __init__(self, kind: int, owner: int, count: int) -> None:
        self.kind, self.owner = kind, owner
        self.states = [IDLE] * count
        self.used = [(0, 0)] * count


class LargePages:
    """An arena of large pages.

    Parameters
    ----------
    capacity_bytes : int
    page_bytes : sequence of int
        Bytes of a small page of each kind.
    most_times : int
        The large page may be at most so many times the largest small page; coprime sizes would make it huge.
    """

    def __init__(self, capacity_bytes: int, page_bytes: list[int], most_times: int = 4096) -> None:
        if not page_bytes or any(each < 1 for each in page_bytes):
            raise ValueError(f"page_bytes must be at least 1 each, got {page_bytes}")
        self.page_bytes, self.large_bytes = list(page_bytes), lcm(*page_bytes)
        if self.large_bytes > most_times * max(page_bytes):
            raise ValueError(
                f"page_bytes must have a common multiple of at most {most_times} times the largest, got "
                f"{page_bytes}: {self.large_bytes}"
            )
        self.capacity_bytes = capacity_bytes
        self.count = capacity_bytes // self.large_bytes
        self.evicted = 0
        self._free = list(range(self.count - 1, -1, -1))
        self._pages: dict[int, _Large] = {}
        self._holding = [0] * len(page_bytes)
        self._cached = [0] * len(page_bytes)
        self._clock = 0

    # -- for a request -------------------------------------------------------------------------------

    def take(self, kind: int, request: int) -> tuple[int, int] | None:
        """A small page as (large page, place in it), or None; a cached one that had to go is counted."""
        found = (
            self._begun(kind, request)
            or self._new(kind, request)
            or self._whole_evicted(kind, request)
            or self._begun(kind, None)
            or self._small_evicted(kind)
        )
        if found is None:
            return None
        large, place = found
        self._pages[large].states[place] = HELD
        self._holding[kind] += 1
        return found

    def use(self, page: tuple[int, int], prefix: int = 0) -> None:
        """The page's tokens matter to a step that is computed now; `prefix`: tokens before it."""
        self._clock += 1
        self._pages[page[0]].used[page[1]] = (self._clock, -prefix)

    def release(self, page: tuple[int, int], keep: bool = False) -> None:
        """The request lets go; `keep`: the page's text may be hit again."""
        large, place = page
        in_use = self._pages[large]
        if in_use.states[place] != HELD:
            raise RuntimeError(f"page {page} is released but not held")
        self._holding[in_use.kind] -= 1
        in_use.states[place] = CACHED if keep else IDLE
        self._cached[in_use.kind] += keep
        if not keep:
            self._retire(large)

    def hit(self, page: tuple[int, int]) -> bool:
        """A request takes a cached page back; False if it is gone."""
        in_use = self._pages.get(page[0])
        if in_use is None or in_use.states[page[1]] != CACHED:
            return False
        in_use.states[page[1]] = HELD
        self._cached[in_use.kind] -= 1
        self._holding[in_use.kind] += 1
        return True

    def ledger(self) -> ByteLedger:
        """Where every byte is."""
        held = sum(count * size for count, size in zip(self._holding, self.page_bytes, strict=True))
        cached = sum(count * size for count, size in zip(self._cached, self.page_bytes, strict=True))
        free = len(self._free) * self.large_bytes
        idle = self.count * self.large_bytes - held - cached - free
        return ByteLedger(held, cached, idle, free, self.capacity_bytes - self.count * self.large_bytes)

    # -- where from ----------------------------------------------------------------------------------

    def _begun(self, kind: int, request: int | None) -> tuple[int, int] | None:
        """A free small page of this kind, of this request or of anybody."""
        for large, page in self._pages.items():
            if page.kind == kind and request in (None, page.owner) and IDLE in page.states:
                return large, page.states.index(IDLE)
        return None

    def _new(self, kind: int, request: int) -> tuple[int, int] | None:
        if not self._free:
            return None
        large = self._free.pop()
        self._pages[large] = _Large(kind, request, self.large_bytes // self.page_bytes[kind])
        return large, 0

    def _whole_evicted(self, kind: int, request: int) -> tuple[int, int] | None:
        """A large page with nothing but cached and free small pages, the least recently used."""
        whole = [(max(page.used), large) for large, page in self._pages.items() if HELD not in page.states]
        if not whole:
            return None
        _, large = min(whole)
        self._evict(large, [at for at, state in enumerate(self._pages[large].states) if state == CACHED])
        return self._new(kind, request)

    def _small_evicted(self, kind: int) -> tuple[int, int] | None:
        cached = [
            (page.used[at], large, at)
            for large, page in self._pages.items()
            if page.kind == kind
            for at, state in enumerate(page.states)
            if state == CACHED
        ]
        if not cached:
            return None
        _, large, at = min(cached)
        self._pages[large].states[at] = IDLE
        self._cached[kind] -= 1
        self.evicted += 1
        return large, at

    def _evict(self, large: int, places: list[int]) -> None:
        page = self._pages[large]
        for at in places:
            page.states[at] = IDLE
        self._cached[page.kind] -= len(places)
        self.evicted += len(places)
        self._retire(large)

    def _retire(self, large: int) -> None:
        """A large page without a small one in use belongs to nobody."""
        if all(state == IDLE for state in self._pages[large].states):
            del self._pages[large]
            self._free.append(large)


class SplitPools:
    """A fixed split: each kind has a share of its own, whoever needs more (SGLang's two pools).

    Parameters
    ----------
    capacity_bytes : int
    page_bytes : list of int
    shares : list of float
        Of the capacity, summing to 1.
    """

    def __init__(self, capacity_bytes: int, page_bytes: list[int], shares: list[float]) -> None:
        if (
            len(shares) != len(page_bytes)
            or abs(sum(shares) - 1) > 1e-9
            or any(share < 0 for share in shares)
        ):
            raise ValueError(f"shares must be one for each kind and sum to 1, got {shares}")
        self.capacity_bytes, self.page_bytes = capacity_bytes, list(page_bytes)
        self.pages = [
            int(capacity_bytes * share) // size for share, size in zip(shares, page_bytes, strict=True)
        ]
        self.held = [0] * len(page_bytes)

    def take(self, kind: int, count: int = 1) -> bool:
        """Pages of a kind, all or none."""
        if self.held[kind] + count > self.pages[kind]:
            return False
        self.held[kind] += count
        return True

    def release(self, kind: int, count: int = 1) -> None:
        """Pages go back to their kind's share."""
        if count > self.held[kind]:
            raise RuntimeError(f"{count} pages of kind {kind} are released and {self.held[kind]} are held")
        self.held[kind] -= count

    def ledger(self) -> ByteLedger:
        """Where every byte is; what one kind does not use is idle, as no other can have it."""
        held = sum(count * size for count, size in zip(self.held, self.page_bytes, strict=True))
        whole = sum(count * size for count, size in zip(self.pages, self.page_bytes, strict=True))
        return ByteLedger(held, 0, whole - held, 0, self.capacity_bytes - whole)
