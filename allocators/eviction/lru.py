"""LRU: evict the block that was unused for the longest time.

least recent [ a b c d ] most recent      a is evicted; a use of b makes it [ a c d b ]
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction


class Lru(Eviction):
    """Evicts the least recently used block."""

    idea = "the block that was not used for the longest time leaves"
    used_by = "vLLM, SGLang, LMCache"
    source = "Mattson et al., Evaluation techniques, IBM Systems Journal 1970"
    checked = "libCacheSim 0.3.5 and LMCache 0.5.6"
    stack = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: OrderedDict[int, None] = OrderedDict()

    def touch(self, block: int) -> Sequence[int]:
        self.held.move_to_end(block)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        held = self.held
        left = (held.popitem(last=False)[0],) if len(held) == self.capacity else NONE
        held[block] = None
        return left
