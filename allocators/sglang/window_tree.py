"""SGLang's radix tree for sliding windows: nodes have full pages, and some also have windowed ones.

    full       (root) --- system --- a --- answer       as in tree.py
    windowed     .          .       a --- answer        the dots lost theirs: older than a window, or evicted

A prefix of a text is usable if the tokens of the `window` before its end still have their windowed pages, or
if all its tokens do. Text behind the last such end is recomputed, although its full pages are there, and
gives the nodes their windowed pages back.

A lock holds the full pages of the whole path, and the windowed pages of one window at its end. Windowed pages
are evicted from their own queue, least recently used first: an inner node keeps its full pages, a leaf is
evicted whole. A text is entered with a leaf of one window at its end, so that a lock need not hold more.

Source: SGLang 0.5.23, `mem_cache/unified_cache/unified_tree_core.py` and `components/swa.py`.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from kvsim.allocators.base import Run
from kvsim.allocators.runs import cut
from kvsim.allocators.sglang.eviction import Strategy
from kvsim.allocators.sglang.nodes import WindowNode
from kvsim.allocators.sglang.pairs import PagePairs
from kvsim.allocators.sglang.tree import SglangTree
from kvsim.allocators.text_tree import follow


class WindowTree(SglangTree[WindowNode]):
    """Texts whose nodes have windowed pages as long as a window may need them.

    Attributes
    ----------
    windowed_evictable, windowed_protected : int
        Tokens with windowed pages, in nodes without and with a lock on these.
    """

    node_class = WindowNode

    def __init__(self, pairs: PagePairs, window: int, strategy: Strategy) -> None:
        super().__init__(pairs.full.page_size, strategy, unified=True)
        self.pairs = pairs
        self.window = window
        self.windowed_evictable = self.windowed_protected = 0
        self._uses = 0
        self._idle: list[tuple[int, int, int, WindowNode]] = []

    # -- looking up ---------------------------------------------------------------------------

    def find(self, text: Sequence[Run], most: int) -> tuple[WindowNode, int, int]:
        node, common, _ = self.reach(text, most)
        return node, common, self.idle(node, common)[0]

    def reach(self, text: Sequence[Run], most: int) -> tuple[WindowNode, int, int]:
        """The end of the longest usable prefix, as in `find`, and how many tokens have full pages."""
        node, common = follow(self.root, cut(text, 0, most - most % self.page_size)[::-1], self.page_size)
        return *self._usable(node, common), node.end - node.tokens + common

    def look(self, text: Sequence[Run], most: int) -> tuple[WindowNode, int]:
        """Like `match`; also returns how many tokens have full pages."""
        most -= most % self.page_size
        if most < 1:
            return self.root, 0
        node, common = follow(self.root, cut(text, 0, most)[::-1], self.page_size)
        if common < node.tokens:
            node = self._split(node, common)
        return self.touch(*self._usable(node, node.tokens)), node.end

    def match(self, text: Sequence[Run], most: int) -> WindowNode:
        return self.look(text, most)[0]

    def touch(self, node: WindowNode, common: int) -> WindowNode:
        node = super().touch(node, common)
        self._use(node)
        return node

    def idle(self, node: WindowNode, common: int) -> tuple[int, int]:
        """Evictable tokens that a lock would protect: those with full pages, and those with windowed ones."""
        full = windowed = 0
        left, at, part = self.window, node, common
        while at is not self.root:
            full += part * (not at.locks)
            if left > 0:
                windowed += part * (at.windowed and not at.window_locks)
                left -= part
            at = at.parent
            part = at.tokens
        return full, windowed

    def _usable(self, node: WindowNode, common: int) -> tuple[WindowNode, int]:
        """The last place within the first `common` tokens of a node that is preceded by a complete window."""
        place, whole, at, part = (node, common), 0, node, common
        while at is not self.root and whole < self.window:
            whole += part
            if not at.windowed:
                place, whole = (at.parent, at.parent.tokens), 0
            at = at.parent
            part = at.tokens
        return place

    def _use(self, node: WindowNode) -> None:
        """Mark windowed pages of the last window plus a page before a node's end as used, the end most."""
        self._uses += 1
        left = self.window + self.page_size
        while node is not self.root and left > 0:
            if node.windowed:
                node.recent = self._uses
                self._queue_windowed(node)
            left -= node.tokens
            node = node.parent

    # -- entering -----------------------------------------------------------------------------

    def enter(
        self, text: Sequence[Run], pages: Sequence[int], known: int, behind: int, entered: int
    ) -> WindowNode:
        """Enter a sequence's text: the tree takes its pages, or frees those that it already has.

        Parameters
        ----------
        text, pages : sequence
            Its tokens, in whole pages.
        known : int
            Leading tokens that are already on the tree's pages.
        behind : int
            Leading tokens that have lost their windowed pages, as they lie behind the window.
        entered : int
            Leading tokens that the sequence entered before: no hit counts twice.
        """
        node, size = self.root, self.page_size
        for node in self._along(text, 0):
            self._meet(node, pages, known, behind)
            node.hits += node.end > entered
            self.leaves.queue(node)
        found, whole = node.end, len(pages) * size
        if found < whole:
            node = self._append(node, text, pages, 0)
            node.hits = int(whole > entered)
            live = max(found, behind)
            if found < live < whole:
                self._split(node, live - found)
            if live < whole:
                tail = -(-self.window // size) * size
                if node.tokens > tail:
                    self._give_windowed(self._split(node, node.tokens - tail))
                self._give_windowed(node)
            self.leaves.queue(node)
        self._use(node)
        return node

    def _meet(self, node: WindowNode, pages: Sequence[int], known: int, behind: int) -> None:
        """Merge a text into an existing node: its pages are freed, unless the node lacks windowed pages."""
        size, start, end = self.page_size, node.end - node.tokens, node.end
        live = end  # from here on the node takes over the sequence's windowed pages
        if end > known and not node.windowed:
            live = min(max(start, behind), end)
        if live < end:
            if live > start:
                self._split(node, live - start)
            mine = pages[live // size : end // size]
            if node.locks:
                self.pairs.swap(node.pages, mine)
            else:
                self.pairs.full.give(node.pages)
                node.pages = list(mine)
            self._give_windowed(node)
        doubles = max(start, known)
        if doubles < live:
            self.pairs.give(pages[doubles // size : live // size], (min(behind, live) - doubles) // size)

    def _give_windowed(self, node: WindowNode) -> None:
        """Record that a node has windowed pages."""
        self._uses += 1
        node.windowed, node.recent = True, self._uses
        if node.window_locks:
            self.windowed_protected += node.tokens
        else:
            self.windowed_evictable += node.tokens
            self._queue_windowed(node)

    def _split(self, node: WindowNode, tokens: int) -> WindowNode:
        head = super()._split(node, tokens)
        head.windowed, head.window_locks, head.recent = node.windowed, node.window_locks, node.recent
        self._queue_windowed(head)
        return head

    # -- locking and evicting -----------------------------------------------------------------

    def lock_window(self, node: WindowNode) -> int:
        """Like `lock`, plus the windowed pages of one window at the end; returns where these begin."""
        self.lock(node)
        start = max(node.end - self.window, 0)
        while node.end > start:
            if node.windowed and not node.window_locks:
                self.windowed_evictable -= node.tokens
                self.windowed_protected += node.tokens
            node.window_locks += 1
            node = node.parent
        return node.end

    def unlock_window(self, node: WindowNode, start: int) -> None:
        """Undo a `lock_window` that returned `start`."""
        at = node
        while at.end > start:
            at.window_locks -= 1
            if at.windowed and not at.window_locks:
                self.windowed_evictable += at.tokens
                self.windowed_protected -= at.tokens
                self._queue_windowed(at)
            at = at.parent
        self.unlock(node)

    def make_room(self, full: int, windowed: int) -> None:
        """Evict until both pools have this many more free tokens, or nothing more can be evicted."""
        while full > 0 and (leaf := self.leaves.next()) is not None:
            full -= leaf.tokens
            windowed -= self._drop(leaf)
        while windowed > 0 and self._idle:
            recent, end, _, node = heappop(self._idle)
            if not node.windowed or node.window_locks or (node.recent, node.end) != (recent, end):
                continue
            windowed -= node.tokens
            if node.locks or node.children:
                self.changes += 1
                self._take_windowed(node)
            else:
                self._drop(node)

    def _drop(self, leaf: WindowNode) -> int:
        """Evict a leaf with all its pages; returns how many of its tokens had windowed pages."""
        tokens = leaf.tokens * leaf.windowed
        if leaf.windowed:
            self._take_windowed(leaf)
        self._remove(leaf)
        self.pairs.full.give(leaf.pages)
        return tokens

    def _take_windowed(self, node: WindowNode) -> None:
        node.windowed = False
        self.windowed_evictable -= node.tokens
        self.pairs.drop_partners(node.pages)

    def _queue_windowed(self, node: WindowNode) -> None:
        if node.windowed and not node.window_locks:
            heappush(self._idle, (node.recent, node.end, node.serial, node))
