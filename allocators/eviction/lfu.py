"""LFU: evict the block with the fewest uses since insertion; of several, the least recently used one.

uses  1: [ c ]   2: [ a d ]   7: [ b ]      evicted: c, then a
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction


class Lfu(Eviction):
    """Evicts the least frequently used block."""

    idea = "the block with the fewest uses leaves, the least recent of those"
    used_by = "LMCache, SGLang"
    source = "Matani et al., An O(1) algorithm for LFU, 2010"
    checked = "libCacheSim 0.3.5 and LMCache 0.5.6"
    # no stack property: a larger cache counts from an earlier arrival

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: dict[int, int] = {}  # block -> its uses
        self._by_uses: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._fewest = 1

    def touch(self, block: int) -> Sequence[int]:
        uses = self.held[block]
        self.held[block] = uses + 1
        alike = self._by_uses[uses]
        del alike[block]
        if not alike:
            del self._by_uses[uses]
            if uses == self._fewest:
                self._fewest = uses + 1
        self._by_uses[uses + 1][block] = None
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        held, left = self.held, NONE
        if len(held) == self.capacity:
            alike = self._by_uses[self._fewest]
            victim = alike.popitem(last=False)[0]
            if not alike:
                del self._by_uses[self._fewest]
            del held[victim]
            left = (victim,)
        held[block] = self._fewest = 1
        self._by_uses[1][block] = None
        return left
