"""What allocators over a `ClassHeap` have in common: a sequence's whole reservation in one extent.

    |######~~~~~~..|               |####~~~~|         # tokens   ~ reserved   . rounding
     seq 7: bound 12, extent 14      seq 9: bound 8

Which extent is found, and whether loans are rounded up to their class, is for the heap (class_heap.py).
"""

from collections.abc import Iterator
from typing import ClassVar

from kvsim.allocators.base import Allocator, Holdings, Region
from kvsim.allocators.size_classes.class_heap import NONE, ClassHeap


class SizeClasses(Allocator):
    """One extent of `bound` slots per sequence, found by size classes.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena.
    bits, rounds, searches
        As of `ClassHeap`.
    """

    reserves: ClassVar[bool] = True

    def __init__(
        self, capacity_slots: int, bits: int, *, rounds: bool = True, searches: bool = False
    ) -> None:
        super().__init__(capacity_slots)
        self.heap = ClassHeap(capacity_slots, bits, rounds=rounds, searches=searches)
        self._nodes: Holdings[int] = Holdings()

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.heap.lent_size(max(tokens, bound))

    def fits(self, tokens: int, bound: int) -> bool:
        return self.heap.fits(max(tokens, bound))

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self.heap.serves(max(tokens, bound))

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._nodes.expect_new(seq, tokens)
        node = self.heap.take(max(tokens, bound))
        if node == NONE:
            return False
        self._nodes[seq] = node
        self.used_slots += self.heap.size[node]
        return True

    def capacity(self, seq: int) -> int:
        return self.heap.size[self._nodes[seq]]

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= self.capacity(seq)

    def release(self, seq: int) -> None:
        node = self._nodes[seq]
        del self._nodes[seq]
        self.used_slots -= self.heap.size[node]
        self.heap.give_back(node)

    def external_slots(self, need: int) -> int:
        return self.heap.too_small(need) if need else 0

    def largest_free_extent(self) -> int:
        return self.heap.largest()

    def regions(self) -> Iterator[Region]:
        owner = {node: (seq,) for seq, node in self._nodes.items()}
        for node in self.heap.extents():
            yield Region(self.heap.start[node], self.heap.size[node], owner.get(node, ()))
