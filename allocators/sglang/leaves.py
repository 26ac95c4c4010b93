"""The leaves of SGLang's radix trees, in a strategy's eviction order.

    heap   (key of a, a) (key of b, b) (older key of a, a) ...     stale keys are skipped

A node is requeued whenever its key may have changed. One that has since been locked or has gained children is
skipped too: it is requeued when it is a leaf without a lock.
"""

from heapq import heappop, heappush
from typing import Generic, TypeVar

from kvsim.allocators.sglang.eviction import Strategy
from kvsim.allocators.sglang.nodes import Node

N = TypeVar("N", bound=Node)


class Leaves(Generic[N]):
    """Evictable nodes, the smallest key first; of equal keys, the older node."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._heap: list[tuple[tuple[int, ...], int, N]] = []

    def may_go(self, node: N) -> bool:
        """Whether a node is a leaf without a lock."""
        return not (node.locks or node.children)

    def queue(self, node: N) -> None:
        """Queue a node for eviction, if it may be evicted."""
        if not self.may_go(node):
            return
        key = self.strategy(node)
        if node.queued != key:
            node.queued = key
            heappush(self._heap, (key, node.serial, node))

    def next(self) -> N | None:
        """The next leaf to evict; None if there is none."""
        while self._heap:
            key, _, leaf = heappop(self._heap)
            if leaf.queued != key:  # requeued since, under another key
                continue
            leaf.queued = None
            if self.may_go(leaf):
                return leaf
        return None
