"""How much a full and a windowed pool have and may allocate: SGLang's memory for windows, in slots.

    [ page 1, group 1 | page 1, group 2 | page 2, group 1 | ... ][ page 1, windowed group 1 | ... ]
      full pages, each once for every full group                   windowed pages

    a token      a slot in each group;  its largest moment is not its end, as windowed pages are freed
    fits         if both pools have room: what only one of them has is external

What is done with the pages stands in windowed.py.
"""

from collections.abc import Sequence
from itertools import chain

from kvsim.allocators.arena import Layout, Table, layout_of_tables
from kvsim.allocators.base import Match
from kvsim.allocators.options import Groups
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.eviction import STRATEGIES
from kvsim.allocators.sglang.pairs import PagePairs
from kvsim.allocators.sglang.pools import pool_of
from kvsim.allocators.sglang.rows import WindowMatch, WindowRow
from kvsim.allocators.sglang.window_tree import WindowTree

Places = list[int | None]


def _places(pages: Sequence[int | None], groups: int, behind: int = 0) -> list[Places]:
    """Where pages lie in each group, counted in pages: their groups stand side by side."""
    return [
        [None if page is None else behind + (page - 1) * groups + group for page in pages]
        for group in range(groups)
    ]


class WindowSizes(SglangCached):
    """A full and a windowed pool under one radix tree: what they have, and what fits.

    Parameters
    ----------
    capacity_slots : int
        Slots of one group of layers each.
    groups : Groups
        How many groups keep all tokens, and how many a window.
    pages : tuple of int
        Of the full pool, and of the windowed one.
    interval : int
        Tokens that must lie behind the window before their pages are freed.
    """

    windows = frees_when_refused = True

    def __init__(  # noqa: PLR0917 - the sizes, then the choices
        self,
        groups: Groups,
        pages: tuple[int, int],
        page_size: int,
        interval: int,
        caches: bool = True,
        eviction: str = "lru",
    ) -> None:
        super().__init__(pages[0] * page_size, page_size, caches, eviction)
        self.capacity_slots = (pages[0] * groups.full + pages[1] * groups.windowed) * page_size
        self.growth_unit = 0
        self.groups = groups
        self.slots_per_token = groups.each
        self.interval = interval
        self.pairs = PagePairs(self.pool, pool_of(pages[1], page_size))
        self.tree = self.window_tree = WindowTree(self.pairs, groups.window, STRATEGIES[eviction])
        self._held = 0  # pages, summed over sequences
        self._missing = 0

    # -- looking ------------------------------------------------------------------------------

    @property
    def block_slots(self) -> int:
        return self.page_size

    @property
    def free_windowed(self) -> int:
        """Tokens for which windowed pages are free or cached."""
        return self.pairs.windowed.available + self.window_tree.windowed_evictable

    def _whole(self, tokens: int) -> int:
        """Tokens in whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.groups.each * self._whole(tokens)

    def peak_slots(self, tokens: int, bound: int) -> int:
        full, windowed, *_ = self.groups
        return full * self._whole(tokens) + windowed * self._seen(tokens)

    def _seen(self, tokens: int) -> int:
        """Windowed tokens of a sequence's largest moment, in whole pages."""
        chunk, window, size = self.groups.max_chunk, self._whole(self.groups.window), self.page_size
        if chunk is None:
            return self._whole(tokens)
        reach = window + max(chunk, window + max(self.interval, size)) + size
        return min(self._whole(tokens), self._whole(reach))

    def fits(self, tokens: int, bound: int) -> bool:
        size = self.page_size
        full, windowed = self.pool.pages * size, self.pairs.windowed.pages * size
        return self._whole(tokens) <= full and self._seen(tokens) <= windowed

    def surplus(self, seq: int, tokens: int) -> int:
        return self.slots_per_token * (len(self._rows[seq].pages) * self.page_size - tokens)

    def growth_budget(self) -> int:
        return 0

    def external_slots(self, need: int) -> int:
        """Free slots of one kind that have no counterpart of the other."""
        full, windowed, *_ = self.groups
        both = self.pairs.available
        return full * (self.pool.available - both) + windowed * (self.pairs.windowed.available - both)

    def largest_free_extent(self) -> int:
        return self.groups.each * min(self.free_tokens, self.free_windowed)

    def layout(self) -> Layout:
        (full, windowed, *_), partner, behind = (
            self.groups,
            self.pairs.partner,
            self.pool.pages * self.groups.full,
        )
        tables: list[Table] = []
        for seq in sorted(self._rows):
            row = self._row(seq)
            twins: Places = [
                partner[page] if self._sees(row, at) else None for at, page in enumerate(row.pages)
            ]
            tables += [(seq, 0, places, 1) for places in _places(row.pages, full)]
            tables += [(seq, 0, places, 1) for places in _places(twins, windowed, behind)]
        cached: Places = []
        for node in self.tree.nodes():
            if not node.locks:
                cached += chain.from_iterable(_places(node.pages, full))
            if node.windowed and not node.window_locks:
                pairs = [partner[page] for page in node.pages]
                cached += chain.from_iterable(_places(pairs, windowed, behind))
        return layout_of_tables(range(self.capacity_slots // self.page_size), self.page_size, tables, cached)

    def _row(self, seq: int) -> WindowRow:
        row = self._rows[seq]
        assert isinstance(row, WindowRow)
        return row

    def _sees(self, row: WindowRow, at: int) -> bool:
        """Whether a sequence holds the windowed page of this full one."""
        return at * self.page_size >= row.start and row.pages[at] in self.pairs.partner

    # -- what fits ------------------------------------------------------------------------------

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self._whole(tokens) <= min(self.free_tokens, self.free_windowed)

    def can_hold(self, tokens: int, bound: int) -> bool:
        return self._whole(tokens) <= self.free_tokens and self._seen(tokens) <= self.free_windowed

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        assert isinstance(match, WindowMatch)
        missing = self._whole(tokens) - match.tokens
        return missing <= min(self.free_tokens - match.idle, self.free_windowed - match.idle_windowed)

    def can_hold_after(self, match: Match, tokens: int, bound: int) -> bool:
        assert isinstance(match, WindowMatch)
        missing = self._whole(tokens) - match.tokens
        seen = min(missing, self._seen(tokens))
        return missing <= self.free_tokens - match.idle and seen <= self.free_windowed - match.idle_windowed

    # -- counting -----------------------------------------------------------------------------

    def _count(self) -> None:
        """Say what the pools and the tree come to."""
        tree, (full, windowed, *_), size = self.window_tree, self.groups, self.page_size
        self.cached_slots = full * tree.evictable + windowed * tree.windowed_evictable
        free = full * self.free_tokens + windowed * self.free_windowed
        self.used_slots = self.capacity_slots - free
        self.shared_tokens = full * (self._entered - tree.protected)
        held = self.slots_per_token * self._held * size
        self.expired_slots = held - self.shared_tokens - self.used_slots - self._missing
