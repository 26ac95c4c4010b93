"""A radix tree over texts, whose nodes hold one slot per token.

    (root) --- system --- a
                     '--- b --- more of b

A text is a list of runs: tokens first, first + 1, ... of a stream. Work is proportional to runs and nodes,
not to tokens. A node is locked while it has holders: the sequences that end there, and its locked children.
All other nodes can be evicted, leaf by leaf, the least recently used first. The owner of the tree counts the
locked, cached and free slots.

This is the tree of RadixAttention's paper and no more: lookups change nothing, private text is a leaf that no
lookup finds, the oldest leaf is evicted. SGLang's own differs (sglang/tree.py): a lookup splits nodes and
counts as use, nodes have times, hits and priorities, the owner finds its private text again, pages have
several tokens. Results of `radix` and of `sglang` therefore differ, so there are two.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from kvsim.allocators.base import Content, InvariantError, Run
from kvsim.allocators.records import Found
from kvsim.allocators.runs import cut
from kvsim.allocators.text_tree import Key, find, nodes_below, put_above


class Node:
    """A piece of text that follows its parent's, and the slots that hold it.

    A node without runs holds private text: its parent only counts it, so no lookup finds it. The root is
    its own parent.
    """

    __slots__ = (
        *("children", "end", "last", "locks", "parent"),
        *("private", "queued", "runs", "serial", "slots"),
    )

    def __init__(self, serial: int, parent: "Node | None", runs: Sequence[Run], slots: list[int]) -> None:
        self.serial = serial
        self.parent: Node = parent or self
        self.runs = runs
        self.slots = slots
        self.end: int = (parent.end if parent else 0) + len(slots)  # tokens from the root to its last
        self.locks = 0
        self.last = 0  # access number of the last touch
        self.queued = False  # for eviction
        self.children: dict[Key, Node] = {}  # children by their first token
        self.private = 0  # child nodes with private text


class RadixMatch(Found):
    """A path down the tree to `common` tokens of `node`, valid at `accesses` accesses."""

    __slots__ = ("common", "node")

    def __init__(self, node: Node, common: int, woken_slots: int, content: Content, accesses: int) -> None:
        super().__init__(node.parent.end + common, woken_slots, content, 0, accesses)
        self.node = node
        self.common = common


class RadixTree:
    """Texts and their slots.

    Attributes
    ----------
    accesses : int
        Counts every change that may evict, split, lock or unlock: a result of `find` is valid as long as
        this stays the same.
    """

    def __init__(self) -> None:
        self.root = Node(0, None, (), [])
        self.root.locks = 1  # never evicted
        self.accesses = 0
        self._nodes = 0  # nodes created so far
        self._leaves: list[tuple[int, int, Node]] = []  # a heap: (access when it was queued, serial, node)

    def find(self, text: Content, most: int) -> tuple[Node, int, int]:
        """Find a text's first `most` tokens, as `text_tree.find` does."""
        return find(self.root, text, most)

    def touch(self, node: Node, common: int) -> Node:
        """Touch a path and split its last node after `common` tokens; returns the node that ends there."""
        self.accesses += 1
        above = node
        while above is not self.root:
            above.last = self.accesses
            above = above.parent
        if common == len(node.slots):
            return node
        head = self.add(node.parent, cut(node.runs, 0, common), node.slots[:common])
        head.locks = min(node.locks, 1)
        put_above(head, node)
        node.slots, node.parent = node.slots[common:], head
        return head

    def add(self, parent: Node, runs: Sequence[Run], slots: list[int]) -> Node:
        """Add a node, which the caller must lock immediately."""
        self._nodes += 1
        node = Node(self._nodes, parent, runs, slots)
        node.last = self.accesses
        if runs:
            parent.children[runs[0][:2]] = node
        else:
            parent.private += 1
        return node

    def leave(self, parent: Node, slots: list[int]) -> None:
        """Keep unused private text until it is the least recently used."""
        self._queue(self.add(parent, (), slots))

    def lock(self, node: Node) -> int:
        """Add a sequence that ends here; returns how many slots become locked."""
        locked = 0
        node.locks += 1
        while node.locks == 1:
            locked += len(node.slots)
            node = node.parent
            node.locks += 1
        return locked

    def unlock(self, node: Node) -> tuple[int, int]:
        """Remove a sequence that ends here; returns the unlocked slots: (findable, private)."""
        idle = private = 0
        self.accesses += 1
        node.locks -= 1
        while not node.locks:
            if node.runs:
                idle += len(node.slots)
            else:
                private += len(node.slots)
            self._queue(node)
            node = node.parent
            node.locks -= 1
        return idle, private

    def idle_slots(self) -> Iterator[int]:
        """The slots of findable text that no sequence uses now."""
        for node in nodes_below(self.root):
            if not node.locks:
                yield from node.slots

    def evict(self) -> Node:
        """Remove the least recently used leaf without a lock."""
        while self._leaves:
            last, _, leaf = heappop(self._leaves)
            leaf.queued = False
            if leaf.last != last:  # touched since: it may be locked, or no longer a leaf
                self._queue(leaf)
                continue
            self.accesses += 1
            if leaf.runs:
                del leaf.parent.children[leaf.runs[0][:2]]
            else:
                leaf.parent.private -= 1
            self._queue(leaf.parent)
            return leaf
        raise InvariantError(f"a leaf must go, but none of {self._nodes} nodes made so far is left to evict")

    def _queue(self, node: Node) -> None:
        """Queue a node for eviction if it is a leaf without a lock."""
        if not (node.locks or node.children or node.private or node.queued):
            node.queued = True
            heappush(self._leaves, (node.last, node.serial, node))
