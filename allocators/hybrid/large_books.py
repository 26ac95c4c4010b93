"""The books of large pages: which are begun and by whom, what each small page is, how many may still be had.

    large page 7, begun by request 3 for kind A    | held | held | cached | idle | idle |

    free     large pages that nobody has begun       whole    those with cached and idle small pages only
    partly   small pages of a kind, cached or idle, in large ones that hold something too

Who gets which page stands in large_pages.py.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm

Small = tuple[int, int]
"""(large page, place in it)."""

IDLE, HELD, CACHED = 0, 1, 2
MOST_TIMES = 4096
"""How many of the largest small page a large page may hold; coprime sizes would make it huge."""


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


class Large:
    """A large page in use: its kind, who began it, and what each small page is."""

    __slots__ = ("cached", "held", "idle", "kind", "owner", "since", "states", "used")

    def __init__(self, kind: int, owner: int, count: int) -> None:
        self.kind, self.owner = kind, owner
        self.held = self.cached = 0
        self.since = 0  # changes of `held` between none and some: what the heap of whole pages is checked by
        self.idle = list(range(count - 1, -1, -1))
        self.states = bytearray(count)
        self.used = [(0, 0)] * count


class LargeBooks:
    """An arena of large pages: which are begun, what is in them, and what fits.

    Parameters
    ----------
    capacity_bytes : int
        Or in any other unit, as the pages.
    page_bytes : sequence of int
        Bytes of a small page of each kind.
    on_evict : callable or None
        Told (kind, small page) of each cached page that is given up.
    packs : bool
        Whether 4 goes before 2 (large_pages.py).

    Attributes
    ----------
    count, each : int, list of int
        Large pages, and small pages of each kind in one.
    free : int
        Large pages that nobody has begun.
    whole : int
        Large pages with cached and free small pages only: they can be evicted.
    partly : list of int
        Small pages of each kind, free or cached, in large pages that hold something too.
    evicted : int
        Cached small pages given up.
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
        self.partly = [0] * len(self.each)
        self.holding, self.kept = [0] * len(self.each), [0] * len(self.each)
        self._on_evict, self._packs = on_evict, packs
        self._planned = [0] * len(self.each)
        self._free = list(range(self.count - 1, -1, -1))
        self._pages: dict[int, Large] = {}
        self._begun: dict[tuple[int, int], dict[int, None]] = {}  # (kind, owner): holding, with room
        self._open: list[dict[int, None]] = [{} for _ in self.each]  # the same, of a kind
        self._oldest: list[tuple[tuple[int, int], int, int]] = []  # whole ones: last use, page, since
        self._old: list[list[tuple[tuple[int, int], int, int]]] = [[] for _ in self.each]  # cached, by kind
        self._clock = 0

    @property
    def free(self) -> int:
        """Large pages that nobody has begun."""
        return len(self._free)

    # -- what fits -----------------------------------------------------------------------------------

    def room(self, wanted: Sequence[int], hits: Sequence[Sequence[Small]]) -> bool:
        """Whether so many small pages of each kind can be had beside the cached ones that are hit."""
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
        """The next calls of `take` are for so many small pages of each kind, for which there is room."""
        self._planned = list(wanted)

    def _large_for(self, wanted: Sequence[int], partly: Sequence[int]) -> list[int]:
        """Large pages that each kind must begin for so many small ones."""
        return [
            -(-max(0, count - there) // each)
            for count, there, each in zip(wanted, partly, self.each, strict=True)
        ]

    def _may_begin(self, kind: int) -> bool:
        """Whether a large page is left when all kinds have those that the plan cannot do without."""
        needed = self._large_for(self._planned, self.partly)
        return needed[kind] > 0 or sum(needed) < self.free + self.whole

    def ledger(self) -> ByteLedger:
        """Where every byte is."""
        held = sum(count * size for count, size in zip(self.holding, self.page_bytes, strict=True))
        cached = sum(count * size for count, size in zip(self.kept, self.page_bytes, strict=True))
        free = self.free * self.large_bytes
        idle = self.count * self.large_bytes - held - cached - free
        return ByteLedger(held, cached, idle, free, self.capacity_bytes - self.count * self.large_bytes)

    def begun(self) -> list[tuple[int, int]]:
        """(large page, kind) of those in use, by address."""
        return [(large, self._pages[large].kind) for large in sorted(self._pages)]

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
        """A cached page's text is forgotten."""
        in_use.states[page[1]] = IDLE
        in_use.cached -= 1
        self.kept[in_use.kind] -= 1
        self.evicted += 1
        if self._on_evict is not None:
            self._on_evict(in_use.kind, page)

    def _opened(self, large: int, in_use: Large) -> None:
        """A large page that holds something has a free small page."""
        self._begun.setdefault((in_use.kind, in_use.owner), {})[large] = None
        self._open[in_use.kind][large] = None

    def _closed(self, large: int, in_use: Large) -> None:
        """It has none any more, or holds nothing."""
        self._open[in_use.kind].pop(large, None)
        place = in_use.kind, in_use.owner
        begun = self._begun.get(place)
        if begun is not None:
            begun.pop(large, None)
            if not begun:
                del self._begun[place]

    def _retire(self, large: int) -> None:
        """A large page without a small one in use belongs to nobody."""
        del self._pages[large]
        self._free.append(large)
