"""The leaves of SGLang's radix trees in the order in which a strategy lets them go.

    heap   (key of a, a) (key of b, b) (older key of a, a) ...     an old key is passed over

A node is queued anew whenever its key may have changed. One that was locked since, or has children now, is
passed over too: it is queued again when it is a leaf without a lock.
"""

from heapq import heappop, heappush

from kvsim.allocators.sglang.eviction import Strategy
from kvsim.allocators.sglang.nodes import Node


class Leaves:
    """Nodes that can be evicted, the smallest key first, the older node of two with equal keys."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._heap: list[tuple[tuple[int, ...], int, Node]] = []

    def may_go(self, node: Node) -> bool:
        """Whether it is a leaf without a lock."""
        return not (node.locks or node.children)

    def queue(self, node: Node) -> None:
        """Let a node be evicted in its turn, if it may."""
        if not self.may_go(node):
            return
        key = self.strategy(node)
        if node.queued != key:
            node.queued = key
            heappush(self._heap, (key, node.serial, node))

    def next(self) -> Node | None:
        """The leaf to evict next; None: there is none."""
        while self._heap:
            key, _, leaf = heappop(self._heap)
            if leaf.queued != key:  # queued anew since, with another key
                continue
            leaf.queued = None
            if self.may_go(leaf):
                return leaf
        return None
