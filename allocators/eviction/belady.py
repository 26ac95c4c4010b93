"""Belady: evict the block whose next use is farthest away. No policy can do better; none can know it.

    next use  a: 7   b: never   c: 12   d: 9      b leaves, then c

It must know the future (`foresee`), so it serves as a bound for other policies. Like them, it inserts every
miss.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from kvsim.allocators.eviction.base import NONE, Eviction
from kvsim.allocators.records import InvariantError


class Belady(Eviction):
    """Evicts the block whose next use is latest."""

    idea = "the block whose next use is farthest away leaves: the bound"
    used_by = "nobody: it needs the future"
    source = "Belady, A study of replacement algorithms, IBM Systems Journal 1966"
    checked = "libCacheSim 0.3.5"
    offline = True
    stack = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: dict[int, int] = {}  # block -> its next use
        self._of: dict[int, int] = {}  # next use -> its block
        self._farthest: list[int] = []  # next uses, negated; some are stale
        self._uses: Sequence[int] = ()
        self._now = 0

    def foresee(self, uses: Sequence[int]) -> None:
        self._uses, self._now = uses, 0

    def touch(self, block: int) -> Sequence[int]:
        del self._of[self.held[block]]
        self._note(block)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = NONE
        if len(self.held) == self.capacity:
            of, farthest = self._of, self._farthest
            use = -heappop(farthest)
            while use not in of:
                use = -heappop(farthest)
            victim = of.pop(use)
            del self.held[victim]
            left = (victim,)
        self._note(block)
        return left

    def _note(self, block: int) -> None:
        if self._now == len(self._uses):
            raise InvariantError(f"call {self._now + 1} of belady, but {len(self._uses)} were foreseen")
        use = self._uses[self._now]
        self._now += 1
        self.held[block] = use
        self._of[use] = block
        heappush(self._farthest, -use)
