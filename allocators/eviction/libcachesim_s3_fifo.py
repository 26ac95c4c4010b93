"""S3-FIFO as in libCacheSim: until the cache first fills up, what overflows small goes into main.

    small 10 % [ a b ]  main 90 % [ c d e f ]      cache not full, small full: the next block goes into main

On traffic with little reuse the first blocks then stay for long. It evicts from main only if main is above
its share or small is empty, and counts uses in main beyond three until the block reaches the head. It refuses
a block that would fill all of small, so below 20 blocks it holds nothing. The rest is as `s3-fifo`.
"""

from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE
from kvsim.allocators.eviction.s3_fifo import MOST_USES, S3Fifo, S3FifoOptions


class LibCacheSimS3Fifo(S3Fifo):
    """Evicts like libCacheSim's S3FIFO.c."""

    idea = "s3-fifo; what overflows small before the cache is full goes into main"
    used_by = "libCacheSim"
    source = "libCacheSim 0.3.5, S3FIFO.c"
    checked = "libCacheSim 0.3.5"
    leaves_room = True  # below 20 blocks

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, S3FifoOptions)
        self._most_small = int(capacity * self.options.small_share)
        self._most_main = capacity - self._most_small
        self._most_ghosts = int(capacity * (1 - self.options.small_share))
        self._full = False

    def touch(self, block: int) -> Sequence[int]:
        self.held[block] += 1
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        if self._most_small <= 1:
            return (block,)
        left, back = NONE, block in self._ghosts
        if back:
            del self._ghosts[block]
        if len(self.held) == self.capacity:
            self._full = True
            left = self._evict()
        if back or (not self._full and len(self._small) >= self._most_small):
            self._main.append(block)
        else:
            self._small.append(block)
        self.held[block] = 0
        return left

    def _evict(self) -> tuple[int, ...]:
        held, small = self.held, self._small
        if len(self._main) <= self._most_main:
            while small:
                victim = small.popleft()
                if held[victim] < self._to_main:
                    del held[victim]
                    if self._most_ghosts:
                        self._ghosts[victim] = None
                        if len(self._ghosts) > self._most_ghosts:
                            self._ghosts.popitem(last=False)
                    return (victim,)
                held[victim] = 0
                self._main.append(victim)
        return self._evict_main()

    def _evict_main(self) -> tuple[int, ...]:
        held, main = self.held, self._main
        victim = main.popleft()
        while uses := held[victim]:
            held[victim] = min(uses, MOST_USES) - 1
            main.append(victim)
            victim = main.popleft()
        del held[victim]
        return (victim,)
