"""AIBrix's FIFO and LRU: a block is inserted first; an overfull cache then evicts to one below capacity.

    room for 4: [ a b c d ] and e comes in: [ a b c d e ], evicted down to 3: [ c d e ]

With whole blocks, one block of room is unused half of the time on average. The rest is as `fifo` and `lru`.
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction


class AibrixFifo(Eviction):
    """Evicts the oldest blocks, down to one below the capacity."""

    idea = "fifo that evicts down to one block below its room"
    used_by = "AIBrix (DRAM)"
    source = "AIBrix 0.8.0, l1/eviction_policy/fifo.py"
    checked = "aibrix_kvcache 0.8.0"
    leaves_room = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: OrderedDict[int, None] = OrderedDict()

    def touch(self, block: int) -> Sequence[int]:
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        held = self.held
        held[block] = None
        if len(held) <= self.capacity:
            return NONE
        return [held.popitem(last=False)[0] for _ in range(len(held) - self.capacity + 1)]


class AibrixLru(AibrixFifo):
    """Evicts the least recently used blocks, down to one below the capacity."""

    idea = "lru that evicts down to one block below its room"
    source = "AIBrix 0.8.0, l1/eviction_policy/lru.py"

    def touch(self, block: int) -> Sequence[int]:
        self.held.move_to_end(block)
        return NONE
