"""FIFO: evict the block inserted first, used or not.

oldest [ a b c d ] newest      a is evicted
"""

from collections import deque
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction


class Fifo(Eviction):
    """Evicts in order of arrival."""

    idea = "the block that came first leaves first, used or not"
    used_by = "LMCache, SGLang"
    source = "Belady, A study of replacement algorithms, IBM Systems Journal 1966"
    checked = "libCacheSim 0.3.5 and LMCache 0.5.6"

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: set[int] = set()
        self._queue: deque[int] = deque()

    def touch(self, block: int) -> Sequence[int]:
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = NONE
        if len(self.held) == self.capacity:
            oldest = self._queue.popleft()
            self.held.remove(oldest)
            left = (oldest,)
        self.held.add(block)
        self._queue.append(block)
        return left
