"""SGLang's memory for models without windows: a pool of pages, a radix tree of everything computed.

    row of A    [ tree: system prompt | tree: a ][ its own: what it computed since | empty ]
    row of B    [ tree: system prompt | tree: b ][ its own ... ]
    the tree    system -- a                           finished requests stay, whole pages only
                      '-- b -- the answer to b

`fill` enters what a sequence has computed, in whole pages, and frees pages whose text another one has entered
meanwhile; tree nodes are locked while a living sequence uses them. `release` leaves everything entered to be
found, including the answer. When the pool is short, unlocked leaves are evicted by a strategy
(allocators/sglang/eviction.py), each with all its pages. Waste per sequence: the tail of its last page.

Text that no other sequence may share is stored under the sequence's own name, so an evicted sequence finds
its prompt again. SGLang's scheduler uses `look`, `hold` and `make_room`: it touches the texts of waiting
requests, locks all that will enter, and only then evicts. Without a cache (`caches=False`) there are only the
pool and the rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kvsim.allocators.arena import Layout, Table, layout_of_tables
from kvsim.allocators.base import Allocator, Content, Holdings, InvariantError, Match, Region
from kvsim.allocators.options import Options
from kvsim.allocators.runs import text_of
from kvsim.allocators.sglang.eviction import STRATEGIES, EvictionOptions
from kvsim.allocators.sglang.host_tree import HostTree
from kvsim.allocators.sglang.nodes import HostNode
from kvsim.allocators.sglang.pools import pool_of
from kvsim.allocators.sglang.rows import UNKNOWN, Row, SglangMatch
from kvsim.allocators.sglang.tree import SglangTree


class SglangCached(Allocator):
    """Pages and a radix tree of all text, whose leaves are evicted by a strategy."""

    family = "blocks"
    idea = "pages under a radix tree of all text; leaves go by a chosen strategy"
    wastes = "less than one page; text that diverges inside a page"
    used_by = "SGLang"
    source = "SGLang 0.5.23, mem_cache/allocator, radix_cache.py, evict_policy.py"

    pages = True
    has_blocks = True
    keeps_prefixes = True
    declares = EvictionOptions

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> "SglangCached":
        eviction = options.chosen(EvictionOptions).eviction
        return cls(capacity_slots, options.block_size, options.cache is not None, eviction)

    def __init__(
        self, capacity_slots: int, page_size: int = 1, caches: bool = True, eviction: str = "lru"
    ) -> None:
        if page_size < 1 or capacity_slots < page_size:
            raise ValueError(f"a page must have 1 to {capacity_slots} slots, got {page_size}")
        pages = capacity_slots // page_size
        super().__init__(pages * page_size)
        self.page_size = self.growth_unit = page_size
        self.caches = caches
        self.pool = pool_of(pages, page_size)
        self.eviction = eviction
        self.tree: SglangTree[Any] = SglangTree(page_size, STRATEGIES[eviction])
        self._rows: Holdings[Row] = Holdings()
        self._pages: dict[int, list[int]] = {}  # by sequence
        self._entered = 0  # tokens in the tree, summed over sequences

    def put_below(self, host_tokens: int, policy: str) -> HostTree:
        """Give the tree host memory for so many tokens, before the first request."""
        found = HostTree(self.page_size, STRATEGIES[self.eviction], host_tokens, policy)
        self.tree = found
        return found

    # -- looking ------------------------------------------------------------------------------

    @property
    def free_tokens(self) -> int:
        """Tokens that fit in free or cached pages."""
        return self.pool.available + self.tree.evictable

    def block_table(self, seq: int) -> tuple[int, ...]:
        """The pages of a sequence in token order."""
        return tuple(self._rows[seq].pages)

    def slots_needed(self, tokens: int, bound: int) -> int:
        return -(-tokens // self.page_size) * self.page_size

    def capacity(self, seq: int) -> int:
        return len(self._rows[seq].pages) * self.page_size

    def growth_budget(self) -> int:
        """Free pages; with one-token pages also cached ones, which are then evicted exactly when needed.

        Cached ones are excluded if evicted nodes are copied first.
        """
        alone = self.page_size == 1 and not self.tree.writes_back
        return len(self.pool.free) + (self.tree.evictable if alone else 0)

    def regions(self) -> Iterator[Region]:
        return self.layout().regions()

    def layout(self) -> Layout:
        tables = (Table(seq, 0, self._rows[seq].pages) for seq in sorted(self._rows))
        cached = (page for node in self.tree.unused() for page in node.pages)
        return layout_of_tables(range(1, self.pool.pages + 1), self.page_size, tables, cached)

    # -- placing ------------------------------------------------------------------------------

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        nothing = SglangMatch((self.tree.root, 0, 0), (), UNKNOWN + seq, self.tree.changes)
        return self.admit_after(nothing, seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """As in the base; InvariantError for a match that is out of date or longer than `tokens`."""
        assert isinstance(match, SglangMatch)
        self._check_match(match, seq, tokens)
        if not self.can_admit_after(match, tokens, bound):
            return False
        if match.tokens and not match.held:
            match.node = self.tree.touch(match.node, match.common)
            self.tree.lock(match.node)
        row = Row(match.content, match.own, match.node, match.node.path())
        if not self._extend(row, tokens):
            self.tree.unlock(match.node)
            self._count()
            return False
        self._rows[seq] = row
        self._pages[seq] = row.pages
        self._entered += row.entered
        self._count()
        return True

    def _check_match(self, match: SglangMatch, seq: int, tokens: int) -> None:
        """Raise InvariantError unless a new sequence of `tokens` can use the match."""
        if seq in self._rows or tokens < 1:
            self._rows.expect_new(seq, tokens)
        match.check(seq, tokens, match.changes if match.held else self.tree.changes)

    def grow(self, seq: int, tokens: int) -> bool:
        row = self._rows[seq]
        missing = self.slots_needed(tokens, 0) - len(row.pages) * self.page_size
        if missing > self.free_slots:
            return False
        if missing <= 0:
            return True
        grown = self._extend(row, tokens)
        self._count()
        return grown

    def grow_many(self, seqs: Sequence[int]) -> None:
        """As in the base; `evicted_by` names a growth once per cached slot that it evicted."""
        if len(seqs) > self.growth_budget():
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.growth_budget()} promised")
        pages, next_page, left = self._pages, self.pool.free.popleft, seqs
        self.evicted_by = []
        while len(left) > len(self.pool.free):
            now = len(self.pool.free)
            for seq in left[:now]:
                pages[seq].append(next_page())
            left = left[now:]
            gone = self.tree.evict(1)
            for freed in gone.pages:
                self.pool.give(freed)
            self.evicted_by += [len(seqs) - len(left)] * gone.tokens
        for seq in left:
            pages[seq].append(next_page())
        self._count()

    def release(self, seq: int) -> None:
        row = self._rows.pop(seq, None)
        if row is None:
            raise self._rows.holds_nothing(seq)
        del self._pages[seq]
        self.pool.give(row.pages[row.entered // self.page_size :])
        self._entered -= row.entered
        self.tree.unlock(row.node)
        self._count()

    def rename(self, seq: int, name: int) -> None:
        """Give a sequence another id."""
        self._rows[name] = self._rows.pop(seq)
        self._pages[name] = self._pages.pop(seq)

    # -- keeping prefixes ---------------------------------------------------------------------

    def match(self, content: Content, own: int, most: int) -> SglangMatch:
        """As in the base; private text is found by the name `own`."""
        found = self.tree.find(text_of(content, own, most), most)
        return SglangMatch(found, content, own, self.tree.changes)

    def look(self, content: Content, own: int, most: int) -> SglangMatch:
        """Like `match`, but the text found counts as used, and its last node is split where it ends."""
        end, idle = self.tree.match(text_of(content, own, most), most), 0
        node = at = self.tree.resident(end)
        while not at.locks:
            idle += at.tokens
            at = at.parent
        match = SglangMatch((node, node.tokens, idle), content, own, self.tree.changes)
        match.below = end
        return match

    def touch(self, content: Content, own: int, tokens: int) -> None:
        """Like `look`, for waiting requests: the text found counts as used."""
        self.tree.match(text_of(content, own, tokens), tokens)

    def hold(self, match: SglangMatch) -> None:
        """Lock a match until `admit_after` takes it, whatever else is evicted."""
        self.tree.lock(match.node)
        match.woken_slots, match.held = 0, True
        self._count()

    def load(self, match: SglangMatch) -> int:
        """Load the part of a match that only the host has; returns its tokens, by which the match grows.

        0 if there is no room; else the path to `match.below` is locked until the load has finished.
        """
        tree, end = self.tree, match.below
        assert isinstance(tree, HostTree) and isinstance(end, HostNode)
        nodes = tree.lacking(end)
        tokens = end.end - match.tokens
        tree.lock(end, 1)
        if not self.make_room(tokens):
            tree.unlock(end, 1)
            return 0
        tree.load(nodes, self.pool.take(tokens // self.page_size) or ())
        match.node, match.common, match.tokens = end, end.tokens, end.end
        self._count()
        return tokens

    def end_copies(self, written: Iterable[HostNode], loaded: Iterable[HostNode]) -> list[HostNode]:
        """Finish copies to the host and loads from it; returns the pieces of the copied nodes."""
        tree = self.tree
        assert isinstance(tree, HostTree)
        pieces = [piece for node in written for piece in tree.written(node)]
        for node in loaded:
            tree.loaded(node)
        self._count()
        return pieces

    def make_room(self, slots: int) -> bool:
        """Evict leaves until the pool has `slots` free slots; False if that is impossible."""
        if slots > self.pool.available:
            for pages in self.tree.evict(slots - self.pool.available).pages:
                self.pool.give(pages)
            self._count()
        return slots <= self.pool.available

    def fill(self, seq: int, tokens: int, ends: bool = False) -> None:
        """As in the base; `ends`: the sequence is about to be released."""
        if not self.caches:
            return
        row, size = self._rows[seq], self.page_size
        if tokens > len(row.pages) * size:
            raise InvariantError(f"sequence {seq} cannot have computed {tokens} tokens: it holds {row}")
        whole, before = tokens - tokens % size, row.entered
        if whole < max(before, 1):
            return
        found, node = self.tree.insert(
            text_of(row.content, row.own, whole), row.pages[: whole // size], 0, row.longest
        )
        if found > before:
            doubles = slice(before // size, found // size)
            self.pool.give(row.pages[doubles])
            row.pages[doubles] = node.path()[doubles]
        node = self.tree.touch(node, node.tokens)
        self.tree.lock(node)
        self.tree.unlock(row.node)
        row.node, row.entered, row.longest = node, whole, max(whole, row.longest)
        self._entered += whole - before
        self._count()

    def part(self, seq: int, tokens: int) -> None:
        """Split after the first `tokens` of a sequence, its prompt, so the rest can be evicted separately."""
        row, size = self._rows[seq], self.page_size
        whole = tokens - tokens % size
        if self.caches and 0 < whole < row.entered:
            text = text_of(row.content, row.own, whole)
            self.tree.insert(text, row.pages[: whole // size], 1, whole)

    # -- pieces -------------------------------------------------------------------------------

    def _extend(self, row: Row, tokens: int) -> bool:
        """Extend a row to `tokens` tokens; False if evicted pages find no room on the host."""
        missing = -(-tokens // self.page_size) - len(row.pages)
        if not self.make_room(missing * self.page_size):
            return False
        row.pages += self.pool.take(missing) or ()
        return True

    def _count(self) -> None:
        tree = self.tree
        self.cached_slots = tree.evictable
        self.used_slots = self.capacity_slots - self.pool.available - tree.evictable
        self.state_slots = tree.pinned
        self.shared_tokens = self._entered - (tree.protected - tree.pinned)
