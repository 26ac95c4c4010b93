"""GDSF for blocks of one size and cost: LFU with aging. A block's worth: its uses plus the age at the last.

    age 7   worth  8: [ c ]   9: [ a d ]   14: [ b ]      c leaves: the age becomes 8, a new block is worth 9

The age is the worth of the last evicted block. Of blocks of equal worth, the least recently used one is
evicted.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction


class Gdsf(Eviction):
    """Evicts the block with the smallest sum of uses and age at its last use."""

    idea = "uses, and the age at the last use, are a block's worth; least leaves"
    used_by = "Squid; RAGCache (with costs)"
    source = "Cherkasova, GreedyDual-Size-Frequency, HP Labs 1998"
    checked = "a second implementation of the paper"

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: dict[int, int] = {}  # block -> its worth
        self._uses: dict[int, int] = {}
        self._by_worth: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._age = 0

    def touch(self, block: int) -> Sequence[int]:
        self._forget(block)
        self._uses[block] += 1
        self._value(block)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = NONE
        if len(self.held) == self.capacity:
            by_worth = self._by_worth
            while self._age not in by_worth:
                self._age += 1
            victim = next(iter(by_worth[self._age]))
            self._forget(victim)
            del self._uses[victim]
            left = (victim,)
        self._uses[block] = 1
        self._value(block)
        return left

    def _value(self, block: int) -> None:
        worth = self._age + self._uses[block]
        self.held[block] = worth
        self._by_worth[worth][block] = None

    def _forget(self, block: int) -> None:
        worth = self.held.pop(block)
        alike = self._by_worth[worth]
        del alike[block]
        if not alike:
            del self._by_worth[worth]
