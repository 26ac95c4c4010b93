"""MRU: the block that was used last leaves. Right for a loop that is longer than the cache, else hardly ever.

least recent [ a b c d ] most recent      d leaves
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
