"""LightLLM's radix tree: what finished and paused requests leave behind, by text.

    (root) --- system --- answer 1
                     '--- question 2, answer 2

Texts are runs (allocators/base.py), one slot per token. Every touch takes the next number of one counter, the
end of a path before its start, so that no two nodes have the same time. A match splits the node in whose
middle it ends and locks the path. Victims are whole unlocked leaves, the least recently touched first.

Like `RadixCache` of LightLLM (server/router/dynamic_prompt/radix_cache.py), times included.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from kvsim.allocators.base import InvariantError, Run
from kvsim.allocators.runs import cut, take_common
from kvsim.allocators.text_tree import Key, find, nodes_below, put_above

GONE = -1
"""Lock count of a node that is no longer in the tree."""


class Node:
    """A piece of text that follows its parent's, its slots, and how many of them a look-up may find again."""

    __slots__ = ("children", "end", "findable", "locks", "number", "parent", "runs", "slots", "time")

    def __init__(self, number: int, parent: "Node | None", runs: list[Run], slots: list[int]) -> None:
        self.number = number
        self.parent: Node = parent or self
        self.runs: Sequence[Run] = runs
        self.slots = slots
        self.end: int = (parent.end if parent else 0) + len(slots)  # tokens from the root to its last
        self.locks = 0  # sequences that end here or below
        self.time = 0  # time of the last touch
        self.findable = len(slots)
        self.children: dict[Key, Node] = {}  # by their first token


class TokenTree:
    """Texts and their slots.

    Attributes
    ----------
    tokens : int
        Slots in the tree.
    locked : int
        Slots on a locked path.
    found : int
        Unlocked slots that may be found again.
    """

    def __init__(self) -> None:
        self._time = self._numbers = 0
        self.root = Node(0, None, [], [])
        self.root.locks = 1  # it is never evicted
        self._touch(self.root)
        self.tokens = self.locked = self.found = 0
        self._leaves: list[tuple[int, int, Node]] = []  # a heap: (time when it was queued, number, node)

    # -- looking ------------------------------------------------------------------------------

    def find(self, text: Sequence[Run]) -> tuple[int, int]:
        """How many tokens of a text are in the tree, and how many of them are unlocked; changes nothing."""
        end, common, unlocked = find(self.root, text, sum([length for _, _, length in text]))
        return end.parent.end + common, unlocked

    def nodes(self) -> Iterator[Node]:
        """All nodes except the root, each before its children."""
        return nodes_below(self.root)

    # -- changing -----------------------------------------------------------------------------

    def match(self, text: Sequence[Run]) -> Node:
        """Lock the part of a text that is in the tree; returns the node where it ends, or the root.

        A text without tokens touches nothing.
        """
        if not text:
            return self.root
        path, rest = [self.root], list(text)[::-1]
        split = None
        while rest:
            child = path[-1].children.get(rest[-1][:2])
            if child is None:
                break
            common = take_common(child.runs, rest)
            if common < len(child.slots):
                split = self._split(child, common)
                break
            path.append(child)
        if split is not None:
            self._lock(split)
        for node in reversed(path):
            self._touch(node)
            if node is not self.root:
                self._lock(node)
        end = split or path[-1]
        self._queue(end)
        return end

    def insert(self, text: Sequence[Run], slots: Sequence[int]) -> tuple[int, Node]:
        """Enter a text with its slots; returns how many tokens were already there, and the node it ends in.

        A text may end in the middle of that node. The caller keeps the slots of tokens that were already
        there.
        """
        path, rest = [self.root], list(text)[::-1]
        known, end = 0, self.root
        while rest:
            child = path[-1].children.get(rest[-1][:2])
            if child is None:
                end = self._add(path[-1], rest[::-1], list(slots[known:]))
                break
            common = take_common(child.runs, rest)
            known += common
            if not rest:
                self._touch(child)
                self._queue(child)
                end = child
                break
            if common < len(child.slots):
                end = self._add(self._split(child, common), rest[::-1], list(slots[known:]))
                break
            path.append(child)
            end = child
        for node in reversed(path):
            self._touch(node)
        return known, end

    def unlock(self, node: Node) -> None:
        """Remove a sequence that ends here."""
        while node is not self.root:
            node.locks -= 1
            if not node.locks:
                self.locked -= len(node.slots)
                self.found += node.findable
                self._queue(node)
            node = node.parent

    def hide(self, node: Node, tokens: int) -> None:
        """Mark what follows the first `tokens` of the path to a node as never looked up again."""
        while node.end > tokens and node is not self.root:
            kept = max(0, len(node.slots) - (node.end - tokens))
            if kept < node.findable:
                self.found -= 0 if node.locks else node.findable - kept
                node.findable = kept
            node = node.parent

    def evict(self, tokens: int) -> list[int]:
        """Remove whole leaves until they free at least `tokens` slots; returns the slots."""
        slots: list[int] = []
        while len(slots) < tokens:
            slots += self._next_victim().slots
        return slots

    # -- pieces -------------------------------------------------------------------------------

    def _next_victim(self) -> Node:
        while self._leaves:
            time, _, leaf = heappop(self._leaves)
            if leaf.time != time or leaf.locks or leaf.children:
                continue  # requeued since, or will be queued when unlocked
            leaf.locks = GONE
            del leaf.parent.children[leaf.runs[0][:2]]
            self.tokens -= len(leaf.slots)
            self.found -= leaf.findable
            self._queue(leaf.parent)
            return leaf
        raise InvariantError(f"no leaf can go: of {self.tokens} tokens in the tree {self.locked} are locked")

    def _queue(self, node: Node) -> None:
        if not (node.locks or node.children):
            heappush(self._leaves, (node.time, node.number, node))

    def _touch(self, node: Node) -> None:
        self._time += 1
        node.time = self._time

    def _lock(self, node: Node) -> None:
        node.locks += 1
        if node.locks == 1:
            self.locked += len(node.slots)
            self.found -= node.findable

    def _add(self, parent: Node, runs: list[Run], slots: list[int]) -> Node:
        self._numbers += 1
        node = Node(self._numbers, parent, runs, slots)
        parent.children[runs[0][:2]] = node
        self._touch(node)
        self.tokens += len(slots)
        self.found += len(slots)
        self._queue(node)
        return node

    def _split(self, node: Node, common: int) -> Node:
        """Insert a new node above one, for its first `common` tokens."""
        self._numbers += 1
        head = Node(self._numbers, node.parent, cut(node.runs, 0, common), node.slots[:common])
        self._touch(head)
        head.locks = node.locks
        head.findable = min(node.findable, common)
        put_above(head, node)
        node.slots, node.parent = node.slots[common:], head
        node.findable -= head.findable
        return head
