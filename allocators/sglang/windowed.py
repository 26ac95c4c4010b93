"""SGLang's memory for sliding windows with a radix tree: two pools, and prefixes kept in both.

    row of A    [ tree: system | tree: a ][ its own: computed since | empty ]       full pages
                  .    .    .    s s s s    . . s s s s s s s                       windowed pages (SWA)
                                 a lock     freed behind the window

Pages come from both pools together (pairs.py). Windowed pages of a sequence's own tokens are freed behind the
window, but only when `interval` tokens can go (SGLang: 128); with prefixes, enough stays that a whole window
lies before the end of what may be entered. Windowed pages in the tree are freed when no window needs them and
room is short (window_tree.py). A text that meets full pages without windowed ones is recomputed behind the
last usable place, and its first part is entered up to there.

    waste per sequence  = groups.each * (-tokens % page_size), and SWA pages not freed yet
    expired             = windowed slots that a living sequence lacks, or shares with another one

Free slots that only one pool has are external. Source: SGLang 0.5.23,
`mem_cache/unified_cache/components/swa.py`, `mem_cache/common.py`.

In slots:

    [ page 1, group 1 | page 1, group 2 | page 2, group 1 | ... ][ page 1, windowed group 1 | ... ]
      full pages, once per full group                              windowed pages

    a token      a slot in each group;  the peak is not at the end, as windowed pages are freed
    fits         if both pools have room: slots that only one of them has are external
"""

from collections.abc import Sequence
from itertools import chain

from kvsim.allocators.arena import Layout, Table, layout_of_tables
from kvsim.allocators.base import Content, InvariantError, Match
from kvsim.allocators.options import Groups
from kvsim.allocators.runs import text_of
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.eviction import STRATEGIES
from kvsim.allocators.sglang.kinds import Counts, TwoKinds
from kvsim.allocators.sglang.nodes import WindowNode
from kvsim.allocators.sglang.pairs import PagePairs
from kvsim.allocators.sglang.pools import pool_of
from kvsim.allocators.sglang.rows import UNKNOWN, SglangMatch, WindowMatch, WindowRow
from kvsim.allocators.sglang.window_tree import WindowTree

Places = list[int | None]


def _places(pages: Sequence[int | None], groups: int, behind: int = 0) -> list[Places]:
    """Positions of pages in each group, counted in pages: the groups of a page are adjacent."""
    return [
        [None if page is None else behind + (page - 1) * groups + group for page in pages]
        for group in range(groups)
    ]


class SglangWindowed(TwoKinds, SglangCached):
    """A full and a windowed pool under one radix tree.

    Parameters
    ----------
    capacity_slots : int
        Slots, each of one group of layers.
    groups : Groups
        How many groups keep all tokens, and how many a window.
    pages : tuple of int
        Pages of the full pool, and of the windowed one.
    interval : int
        Tokens that must lie behind the window before their pages are freed.
    """

    windows = frees_when_refused = True
    tree: WindowTree

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
        self._keep(groups, interval)
        self.pools = groups.apart(pages, page_size)
        self.pairs = PagePairs(self.pool, pool_of(pages[1], page_size))
        self.tree = WindowTree(self.pairs, groups.window, STRATEGIES[eviction])
        self._held = 0  # pages, summed over sequences
        self._missing = 0

    # -- looking ------------------------------------------------------------------------------

    @property
    def free_windowed(self) -> int:
        """Tokens that fit in free or cached windowed pages."""
        return self.pairs.windowed.available + self.tree.windowed_evictable

    def _whole(self, tokens: int) -> int:
        return -(-tokens // self.page_size) * self.page_size

    def peak_slots(self, tokens: int, bound: int) -> int:
        full, windowed, *_ = self.groups
        return full * self._whole(tokens) + windowed * self._seen(tokens)

    def _seen(self, tokens: int) -> int:
        """The most windowed tokens of a sequence, in whole pages."""
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
        """Free slots of one kind that lack a counterpart of the other."""
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
            tables += [Table(seq, 0, places) for places in _places(row.pages, full)]
            tables += [Table(seq, 0, places) for places in _places(twins, windowed, behind)]
        cached: Places = []
        for node in self.tree.nodes():
            if not node.locks:
                cached += chain.from_iterable(_places(node.pages, full))
            if node.windowed and not node.window_locks:
                pairs = [partner[page] for page in node.pages]
                cached += chain.from_iterable(_places(pairs, windowed, behind))
        blocks = range(self.capacity_slots // self.page_size)
        return layout_of_tables(blocks, self.page_size, tables, cached, self.pools)

    def _row(self, seq: int) -> WindowRow:
        row = self._rows[seq]
        assert isinstance(row, WindowRow)
        return row

    def _sees(self, row: WindowRow, at: int) -> bool:
        """Whether a sequence holds the windowed partner of this full page."""
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
        tree, (full, windowed, *_), size = self.tree, self.groups, self.page_size
        self.cached_slots = full * tree.evictable + windowed * tree.windowed_evictable
        free = full * self.free_tokens + windowed * self.free_windowed
        self.used_slots = self.capacity_slots - free
        self.shared_tokens = full * (self._entered - tree.protected)
        held = self.slots_per_token * self._held * size
        self.expired_slots = held - self.shared_tokens - self.used_slots - self._missing

    def _counts(self) -> Counts:
        tree, (full, windowed, *_), size = self.tree, self.groups, self.page_size
        of_windowed = windowed * (self.pairs.windowed.pages * size - self.free_windowed)
        cached = full * tree.evictable, windowed * tree.windowed_evictable
        return of_windowed, self._held * size, self._missing, *cached

    # -- placing ------------------------------------------------------------------------------

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        nothing = self._match(self.tree.root, 0, 0, (), UNKNOWN + seq)
        return self.admit_after(nothing, seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        assert isinstance(match, WindowMatch)
        self._check_match(match, seq, tokens)
        if not self.can_admit_after(match, tokens, bound):
            return False
        if not match.held:
            match.node = self.tree.touch(match.node, match.common)
            match.start = self.tree.lock_window(match.node)
        row = WindowRow(match.content, match.own, match.node, match.node.path())
        row.start, row.branch = match.start, match.there
        self._rows[seq] = row
        self._entered += row.entered
        self._held += len(row.pages)
        self._grow(row, tokens, tokens + 1)
        return True

    # -- growing and leaving ------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return self._row(seq).capacity

    def grow(self, seq: int, tokens: int) -> bool:
        row, size = self._row(seq), self.page_size
        if tokens <= row.capacity:
            return True
        due, held = self._due(row), len(row.pages) * size
        if tokens > due or tokens - held not in range(1, size + 1) or not self.pairs.take_one(row.pages):
            return self._grow(row, tokens, row.ready, row.capacity)
        row.capacity = min(held + size, due)  # usually one more page, and nothing else
        self._held += 1
        self.used_slots += self.slots_per_token * size
        return True

    def _due(self, row: WindowRow) -> int:
        """Token count at which a sequence must grow to free what is behind its window by then."""
        return max(self.groups.window + row.behind + self.interval, row.ready)

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        row = self._row(seq)
        if computed > row.capacity:
            raise InvariantError(f"sequence {seq} has room for {row.capacity} tokens, not {computed}")
        if tokens <= row.capacity:
            return True
        return self._grow(row, tokens, tokens + 1, 0 if self.caches else computed)

    def _grow(self, row: WindowRow, tokens: int, ready: int, stored: int = 0) -> bool:
        """Free what is behind the window at `stored` tokens, and make room for `tokens`."""
        if stored >= row.ready:
            self._slide(row, stored, self.interval)
        missing = self._whole(tokens) // self.page_size - len(row.pages)
        if missing * self.page_size > min(self.free_tokens, self.free_windowed):
            self._count()
            return False
        if missing > 0:
            self.make_room(missing * self.page_size)
            row.pages += self.pairs.take(missing)
            self._held += missing
        row.ready = ready
        row.capacity = max(tokens, min(len(row.pages) * self.page_size, self._due(row)))
        self._count()
        return True

    def slide(self, seq: int, stored: int) -> None:
        """Free what is behind the window of a decoding sequence with `stored` tokens, if enough can go."""
        row = self._row(seq)
        if stored >= row.ready and stored - self.groups.window >= row.behind + self.interval:
            self._slide(row, stored, self.interval)
            self._count()

    def _slide(self, row: WindowRow, stored: int, interval: int) -> None:
        size, window = self.page_size, self.groups.window
        if stored - window < row.behind + interval:
            return
        before = max(row.behind, row.entered)
        reach = stored - (self._whole(max(window, size)) if self.caches else window)
        row.behind = max(before, reach) // size * size
        self.pairs.drop_partners(row.pages[before // size : row.behind // size])

    def make_room(self, slots: int) -> bool:
        full, windowed = self.pool.available, self.pairs.windowed.available
        if slots > min(full, windowed):
            self.tree.make_room(slots - full, slots - windowed)
            self._count()
        return slots <= self.pairs.available

    def release(self, seq: int) -> None:
        row = self._row(seq)
        del self._rows[seq]
        mine, size = row.pages[row.entered // self.page_size :], self.page_size
        self.pairs.give(mine, (row.behind - row.entered) // size)
        self.tree.unlock_window(row.node, row.start)
        self._held -= len(row.pages)
        self._entered -= row.entered
        self._missing -= row.missing
        self._count()

    def retire(self, seq: int) -> int:
        row, size = self._row(seq), self.page_size
        if not row.missing:
            seen = [at for at in range(len(row.pages)) if self._sees(row, at)]
            row.missing = self.groups.windowed * size * (len(row.pages) - len(seen))
            self._missing += row.missing
            self._count()
        return self.slots_per_token * len(row.pages) * size - row.missing

    # -- keeping prefixes ---------------------------------------------------------------------

    def _match(self, node: WindowNode, common: int, there: int, content: Content, own: int) -> WindowMatch:
        full, windowed = self.tree.idle(node, common)
        match = WindowMatch((node, common, full), content, own, self.tree.changes)
        match.idle_windowed, match.there = windowed, there
        match.woken_slots = self.groups.full * full + self.groups.windowed * windowed
        return match

    def match(self, content: Content, own: int, most: int) -> WindowMatch:
        node, common, there = self.tree.reach(text_of(content, own, most), most)
        return self._match(node, common, there, content, own)

    def look(self, content: Content, own: int, most: int) -> WindowMatch:
        node, there = self.tree.look(text_of(content, own, most), most)
        return self._match(node, node.tokens, there, content, own)

    def hold(self, match: SglangMatch) -> None:
        assert isinstance(match, WindowMatch)
        match.start = self.tree.lock_window(match.node)
        match.idle = match.idle_windowed = match.woken_slots = 0
        match.held = True
        self._count()

    def fill(self, seq: int, tokens: int, ends: bool = False) -> None:
        if not self.caches:
            return
        row, size = self._row(seq), self.page_size
        if tokens > len(row.pages) * size:
            raise InvariantError(f"sequence {seq} cannot have computed {tokens} tokens: it holds {row}")
        length = row.branch if row.entered < row.branch <= tokens else tokens
        if not ends:
            self._slide(row, length - 1, 1)
        whole, before = length - length % size, row.entered
        if whole >= max(before, 1):
            text, pages = text_of(row.content, row.own, whole), row.pages[: whole // size]
            node = self.tree.enter(text, pages, before, row.behind, row.longest)
            row.pages[before // size : whole // size] = node.path()[before // size :]
            self.tree.unlock_window(row.node, row.start)
            row.start = self.tree.lock_window(node)
            row.node, row.entered, row.longest = node, whole, max(whole, row.longest)
            self._entered += whole - before
            if whole >= row.branch > 0:
                row.branch = 0
                if not ends:
                    self._slide(row, tokens - 1, 1)
        self._count()

    def part(self, seq: int, tokens: int) -> None:
        """Do nothing: prompts and answers are in nodes of one window anyway."""
