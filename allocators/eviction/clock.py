"""CLOCK: FIFO with a second chance. A used block at the head goes round once more, without its mark.

oldest [ a* b c* d ] newest      a goes behind d and loses its mark, b leaves
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction


class Clock(Eviction):
    """Evicts, in order of arrival, blocks not used since they were last at the head."""

    idea = "first in, first out; a block used meanwhile goes round once more"
    used_by = "page caches of operating systems"
    source = "Corbató, A paging experiment with the Multics system, 1968"
    checked = "libCacheSim 0.3.5"

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: OrderedDict[int, bool] = OrderedDict()  # block -> whether it was used

    def touch(self, block: int) -> Sequence[int]:
        self.held[block] = True
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        held, left = self.held, NONE
        if len(held) == self.capacity:
            oldest, used = held.popitem(last=False)
            while used:
                held[oldest] = False
                oldest, used = held.popitem(last=False)
            left = (oldest,)
        held[block] = False
        return left
