"""A radix tree over texts, whose nodes hold slots: one of its own for each token.

    (root) --- system --- a
                     '--- b --- more of b

A text is a list of runs: tokens first, first + 1, ... of a stream. Work goes by runs and nodes, not by
tokens. A node is locked while it has holders: the sequences that end there, and the children that are
locked. All others can be evicted, leaf by leaf, the one used least recently first. How many slots are
locked, cached or free is for the owner of the tree to count.

This is the tree of RadixAttention's paper and no more: looking up changes nothing, private text is a leaf
that nobody finds, the oldest leaf goes. SGLang's own is another (sglang/tree.py): a lookup splits nodes and
counts as use, nodes have times, hits and priorities, private text is found again by its owner, pages have
several tokens. Results of `radix` and of `sglang` differ for that, so there are two.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from kvsim.allocators.base import Content, InvariantError, Run
from kvsim.allocators.records import Found
from kvsim.allocators.runs import cut
from kvsim.allocators.text_tree import Key, find, nodes_below, put_above


class Node:
    """A piece of text that follows its parent's, and the slots that hold it.

    A node without runs holds private text: its parent only counts it, so that nobody finds it. The root is
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
        self.last = 0  # access
        self.queued = False  # for eviction
        self.children: dict[Key, Node] = {}  # by their first token
        self.private = 0  # how many nodes with private text follow


class RadixMatch(Found):
    """A path down the tree to `common` tokens of `node`, as it was after so many accesses."""

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
        Counts every change that may evict, split, lock or unlock: what `find` tells is good as long as
        this stays the same.
    """

    def __init__(self) -> None:
        self.root = Node(0, None, (), [])
        self.root.locks = 1  # it is never evicted
        self.accesses = 0
        self._nodes = 0  # made so far
        self._leaves: list[tuple[int, int, Node]] = []  # a heap: (access when it was queued, serial, node)

    def find(self, text: Content, most: int) -> tuple[Node, int, int]:
        """What of a text's first `most` tokens is there, as `text_tree.find` tells it."""
        return find(self.root, text, most)

    def touch(self, node: Node, common: int) -> Node:
        """Touch a path, and split its last node behind `common` tokens; returns the node that ends there."""
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
        """A new node, to be locked at once."""
        self._nodes += 1
        node = Node(self._nodes, parent, runs, slots)
        node.last = self.accesses
        if runs:
            parent.children[runs[0][:2]] = node
        else:
            parent.private += 1
        return node

    def leave(self, parent: Node, slots: list[int]) -> None:
        """Keep private text that nobody uses any more, until it is the least recently used."""
        self._queue(self.add(parent, (), slots))

    def lock(self, node: Node) -> int:
        """Let one more sequence end here; how many slots that locks anew."""
        locked = 0
        node.locks += 1
        while node.locks == 1:
            locked += len(node.slots)
            node = node.parent
            node.locks += 1
        return locked

    def unlock(self, node: Node) -> tuple[int, int]:
        """Let one sequence less end here; how many slots that unlocks, those that can be found and others."""
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
        """The slots of text that can be found and that nobody uses now."""
        for node in nodes_below(self.root):
            if not node.locks:
                yield from node.slots

    def evict(self) -> Node:
        """Drop the leaf that was used least recently, of those without a lock."""
        while self._leaves:
            last, _, leaf = heappop(self._leaves)
            leaf.queued = False
            if leaf.last != last:  # touched since, so it may be locked or no leaf any more
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
        """Let a node be evicted in its turn, if it is a leaf without a lock."""
        if not (node.locks or node.children or node.private or node.queued):
            node.queued = True
            heappush(self._leaves, (node.last, node.serial, node))
