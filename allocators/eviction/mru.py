"""MRU: evict the block used last. Right for a loop longer than the cache, otherwise hardly ever.

least recent [ a b c d ] most recent      d is evicted
"""

from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE
from kvsim.allocators.eviction.lru import Lru


class Mru(Lru):
    """Evicts the most recently used block."""

    idea = "the block that was used last leaves"
    used_by = "LMCache, SGLang"
    source = "Chou and DeWitt, Buffer management strategies, VLDB 1985"
    checked = "LMCache 0.5.6"

    def insert(self, block: int) -> Sequence[int]:
        held = self.held
        left = (held.popitem()[0],) if len(held) == self.capacity else NONE
        held[block] = None
        return left
