"""SGLang's radix tree: texts, and the pages that hold them. Whole pages only; a strategy evicts leaves.

    (root) --- system --- a        match      the longest prefix of a text that is there; touches, may split
                     '--- b        insert     a text with its pages: existing nodes keep theirs
                                   lock       nodes on a path in use cannot be evicted
                                   evict      unlocked leaves, the smallest key first

A text is a list of runs: tokens `first, first + 1, ...` of a stream; work is proportional to runs and nodes.
With pages of several tokens, two texts diverge at the end of a page, and children are keyed by their whole
first page. The clock counts accesses: one for a match or an insertion, two for a new node.

`unified` is the newer of SGLang's two trees: after a split the head is as old as its tail, which counts as
used. With windows it is window_tree.py. `radix` has a simpler tree of its own (radix_tree.py).

Source: SGLang 0.5.23, `mem_cache/radix_cache.py`, and `unified_cache/unified_tree_core.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple

from kvsim.allocators.base import InvariantError, Run
from kvsim.allocators.runs import cut, take_common
from kvsim.allocators.sglang.eviction import STRATEGIES, Strategy
from kvsim.allocators.sglang.leaves import Leaves, N
from kvsim.allocators.sglang.nodes import Node
from kvsim.allocators.text_tree import find, follow, key_of, nodes_below, put_above

DEPTH = 1 << 20
"""Clock distance between accesses of `unified`, so that each node of a path has its own time."""


class Evicted(NamedTuple):
    """Evicted leaves in order."""

    pages: list[list[int]]
    tokens: int


class SglangTree(Generic[N]):
    """Texts in whole pages of `page_size` tokens.

    Attributes
    ----------
    node_class : type
        What its nodes are.
    evictable, protected : int
        Tokens of nodes without and with a lock.
    changes : int
        Counts calls that may move, split or evict a node.
    writes_back : bool
        Whether evicted nodes are copied first, which takes time.
    pinned : int
        Protected tokens that no sequence uses.
    """

    node_class: ClassVar[type[Any]] = Node
    writes_back = False
    pinned = 0

    def __init__(self, page_size: int, strategy: Strategy = STRATEGIES["lru"], unified: bool = False) -> None:
        self.page_size = page_size
        self.leaves: Leaves[N] = Leaves(strategy)
        self.unified = unified
        self.evictable = self.protected = self.changes = 0
        self._clock = self._nodes = 0
        self.root = self._new(None, [], [])
        self.root.locks = 1

    # -- looking up ---------------------------------------------------------------------------

    def find(self, text: Sequence[Run], most: int) -> tuple[N, int, int]:
        """Find a text's first `most` tokens, as `text_tree.find` does."""
        return find(self.root, text, most, self.page_size)

    def match(self, text: Sequence[Run], most: int) -> N:
        """Like `find`, but the path counts as used, and its last node is split where the match ends."""
        most -= most % self.page_size
        if most < 1:
            return self.root
        node, common = follow(self.root, cut(text, 0, most)[::-1], self.page_size)
        return self.touch(node, common)

    def resident(self, node: N) -> N:
        """The last node on a path that is on the GPU: in this class the node itself."""
        return node

    def touch(self, node: N, common: int) -> N:
        """Mark the path to the first `common` tokens of a node as used; returns the node where it ends."""
        self.changes += 1
        if self.unified:
            end = at = node if common == node.tokens else self._split(node, common)
            now = self._tick()
        else:
            now, end, at = self._tick(), node, node
        while at is not self.root:
            at.last = now
            now -= self.unified  # nodes above are slightly older
            self.leaves.queue(at)
            at = at.parent
        return end if self.unified or common == node.tokens else self._split(node, common)

    # -- entering -----------------------------------------------------------------------------

    def insert(
        self, text: Sequence[Run], pages: Sequence[int], priority: int = 0, entered: int = 0
    ) -> tuple[int, N]:
        """Enter a text in whole pages.

        The first `entered` tokens were already entered by the same sequence, so they count as no new hit.
        Returns how many of its tokens were already there, with other pages; and the node that it ends in.
        """
        node = self.root
        for node in self._along(text, priority):
            node.hits += node.end > entered
            self.leaves.queue(node)
        found = node.end
        if found < len(pages) * self.page_size:
            node = self._append(node, text, pages, priority)
            node.hits = int(node.end > entered)
            self.leaves.queue(node)
        return found, node

    def _along(self, text: Sequence[Run], priority: int) -> Iterator[N]:
        """The nodes of an entered text, which count as used; the last one is split where the text ends."""
        self.changes += 1
        now, size = self._tick(), self.page_size
        rest, node = list(text)[::-1], self.root
        node.priority = max(node.priority, priority)
        while rest:
            child = node.children.get(rest[-1][:2] if size == 1 else key_of(rest[::-1], size))
            if child is None:
                break
            child.last = self._tick() if self.unified else now
            whole = rest[::-1] if size > 1 else rest
            common = take_common(child.runs, rest)
            if common % size:
                common -= common % size
                rest = cut(whole, common, sum([length for _, _, length in whole]))[::-1]
            node = self._split(child, common) if common < child.tokens else child
            node.priority = max(node.priority, priority)
            self.leaves.queue(child)
            yield node

    def _append(self, node: N, text: Sequence[Run], pages: Sequence[int], priority: int) -> N:
        """Add the missing rest of a text as a leaf behind a node."""
        size = self.page_size
        leaf = self._new(node, cut(text, node.end, len(pages) * size), list(pages[node.end // size :]))
        leaf.priority = priority
        node.children[key_of(leaf.runs, self.page_size)] = leaf
        self.evictable += leaf.tokens
        leaf.raise_history()
        return leaf

    # -- locking and evicting -----------------------------------------------------------------

    def lock(self, node: N) -> None:
        """Add a user of the path to the end of a node; pages are counted if there are any."""
        self.changes += 1
        while node is not self.root:
            if node.pages and not node.locks:
                self.evictable -= node.tokens
                self.protected += node.tokens
            node.locks += 1
            node = node.parent

    def unlock(self, node: N) -> None:
        """Remove a user."""
        self.changes += 1
        while node is not self.root:
            node.locks -= 1
            if not node.locks:
                if node.pages:
                    self.evictable += node.tokens
                    self.protected -= node.tokens
                self.leaves.queue(node)
            node = node.parent

    def evict(self, tokens: int) -> Evicted:
        """Evict leaves until at least `tokens` tokens are gone or nothing more can be evicted."""
        gone, pages = 0, []
        while gone < tokens and (leaf := self.leaves.next()) is not None:
            self._remove(leaf)
            gone += leaf.tokens
            pages.append(leaf.pages)
        return Evicted(pages, gone)

    def _remove(self, leaf: N) -> None:
        self.changes += 1
        leaf.queued = None
        del leaf.parent.children[key_of(leaf.runs, self.page_size)]
        self.evictable -= leaf.tokens
        self.leaves.queue(leaf.parent)

    def nodes(self) -> Iterator[N]:
        """All nodes except the root, depth first."""
        return nodes_below(self.root)

    def unused(self) -> Iterator[N]:
        """Nodes that no sequence uses."""
        return (node for node in self.nodes() if not node.locks)

    # -- pieces -------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._clock += DEPTH if self.unified else 1
        return self._clock

    def _new(self, parent: N | None, runs: list[Run], pages: list[int]) -> N:
        node: N = self.node_class(self._nodes, parent, runs, pages)
        self._nodes += 1
        node.last, node.created = self._tick(), self._tick()
        node.tokens = sum([length for _, _, length in runs])
        node.end = node.tokens + (parent.end if parent else 0)
        return node

    def _split(self, node: N, tokens: int) -> N:
        """Split a node after `tokens` tokens; returns the new head."""
        if not 0 < tokens < node.tokens or tokens % self.page_size:
            raise InvariantError(f"a node of {node.tokens} tokens cannot be split behind {tokens}")
        self.changes += 1
        size, runs, pages = self.page_size, node.runs, node.pages
        head = self._new(node.parent, cut(runs, 0, tokens), pages[: tokens // size])
        head.locks, head.hits, head.priority = node.locks, node.hits, node.priority
        head.history = node.history
        put_above(head, node, size)
        node.pages, node.parent = pages[tokens // size :], head
        node.tokens -= tokens
        if self.unified:
            head.created = node.created
            node.last = self._tick()
            self.leaves.queue(node)
        return head
