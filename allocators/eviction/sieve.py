"""SIEVE: a hand moves from the oldest block to the newest; it clears marks and evicts unmarked blocks.

    oldest [ a b* | c* d ] newest      the hand clears the mark of c and evicts d; then it restarts at a
                  hand

A block that the hand spares keeps its place; CLOCK would move it. Blocks that the hand has passed and blocks
ahead of it are two queues here.
"""

from collections import deque
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction


class Sieve(Eviction):
    """Evicts blocks not used since a hand passed them."""

    idea = "a hand passes from old to new: it spares what was used, in its place"
    used_by = "caches of web services"
    source = "Zhang et al., SIEVE is simpler than LRU, NSDI 2024"
    checked = "libCacheSim 0.3.5"

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: dict[int, bool] = {}  # block -> whether it was used
        self._passed: deque[int] = deque()
        self._ahead: deque[int] = deque()

    def touch(self, block: int) -> Sequence[int]:
        self.held[block] = True
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        held, left = self.held, NONE
        if len(held) == self.capacity:
            victim = self._next()
            while held[victim]:
                held[victim] = False
                self._passed.append(victim)
                self._turn()
                victim = self._next()
            self._turn()
            del held[victim]
            left = (victim,)
        held[block] = False
        self._ahead.append(block)
        return left

    def _next(self) -> int:
        return self._ahead.popleft()

    def _turn(self) -> None:
        """Move the hand from the newest block back to the oldest one."""
        if not self._ahead:
            self._passed, self._ahead = self._ahead, self._passed
