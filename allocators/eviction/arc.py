"""ARC: an LRU of blocks used once, an LRU of blocks used more often, and a border that adapts to misses.

    B1 ( left T1 )  T1 [ used once ]  |p|  T2 [ used again ]  B2 ( left T2 )

A miss found in B1 means that T1 was too small, one found in B2 that T2 was: the target `p` of T1 moves by the
ratio of the other ghost list's length to this one's, at least 1. Both ghost lists together hold as many
blocks as fit in the cache.
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvsim.allocators.eviction.base import NONE, Eviction

Queue = OrderedDict[int, None]


class Arc(Eviction):
    """Evicts from the list that is above its target."""

    idea = "an LRU of blocks used once and one of the others; the border learns"
    used_by = "vLLM (CPU tier, in its manner), ZFS"
    source = "Megiddo and Modha, ARC, FAST 2003"
    checked = "libCacheSim 0.3.5"

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: dict[int, bool] = {}  # block -> whether it was used again
        self._once: Queue = OrderedDict()
        self._again: Queue = OrderedDict()
        self._left_once: Queue = OrderedDict()
        self._left_again: Queue = OrderedDict()
        self._target = 0.0

    def touch(self, block: int) -> Sequence[int]:
        if self.held[block]:
            self._again.move_to_end(block)
        else:
            del self._once[block]
            self.held[block] = True
            self._again[block] = None
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        full = len(self.held) == self.capacity
        left = NONE
        if block in self._left_once:
            grow = max(len(self._left_again) / len(self._left_once), 1)
            self._target = min(self._target + grow, self.capacity)
            del self._left_once[block]
            again = True
        elif block in self._left_again:
            grow = max(len(self._left_once) / len(self._left_again), 1)
            self._target = max(self._target - grow, 0)
            del self._left_again[block]
            again = True
            if full:
                left = self._replace(len(self._once) >= self._target)
                full = False
        else:
            again = False
            if full:
                left = self._make_room()
                full = False
        if full:
            left = self._replace(len(self._once) > self._target)
        self.held[block] = again
        (self._again if again else self._once)[block] = None
        return left

    def _make_room(self) -> tuple[int, ...]:
        """Make room for a block in neither ghost list."""
        if len(self._once) + len(self._left_once) >= self.capacity:
            if not self._left_once:
                victim = self._once.popitem(last=False)[0]
                del self.held[victim]
                return (victim,)
            self._left_once.popitem(last=False)
        elif self.capacity + len(self._left_once) + len(self._left_again) >= 2 * self.capacity:
            self._left_again.popitem(last=False)
        return self._replace(len(self._once) > self._target)

    def _replace(self, from_once: bool) -> tuple[int, ...]:
        source, memory = self._again, self._left_again
        if self._once and (from_once or not self._again):
            source, memory = self._once, self._left_once
        victim = source.popitem(last=False)[0]
        memory[victim] = None
        del self.held[victim]
        return (victim,)
