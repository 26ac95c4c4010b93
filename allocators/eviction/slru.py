"""SLRU: stacked LRU segments. A use moves a block up by one; overflow moves down by one.

    segment  0 [ a b ]  1 [ c d ]  2 [ e f ]  3 [ g h ]    a is evicted; a use of b: b to 1, c to 0

A new block enters the lowest segment with room, so the first blocks fill all segments. If the capacity is not
a multiple of the segments, the rest belongs to the lowest one, until a block falls into it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Eviction
from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class SlruOptions:
    """Options of `slru`."""

    segments: int = option("Segments of equal size.", default=4, value="N", least=1, most=64)


class Slru(Eviction):
    """Evicts the least recently used block of the lowest segment."""

    idea = "segments of LRU: a use lifts a block by one, overflow lowers it"
    used_by = "SGLang (two segments, by hits)"
    source = "Karedla et al., Caching strategies, IEEE Computer 1994"
    checked = "libCacheSim 0.3.5 (four segments)"
    declares: ClassVar[type] = SlruOptions
    leaves_room = True  # of the rest, once a block falls into the lowest segment

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, SlruOptions)
        count = min(self.options.segments, capacity)
        self.held: dict[int, int] = {}  # block -> its segment
        self._room = capacity // count
        self._segments: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(count)]

    def touch(self, block: int) -> Sequence[int]:
        segments, at = self._segments, self.held[block]
        if at == len(segments) - 1:
            segments[at].move_to_end(block)
            return NONE
        del segments[at][block]
        self.held[block] = at + 1
        segments[at + 1][block] = None
        return self._settle(at + 1)

    def insert(self, block: int) -> Sequence[int]:
        segments, held = self._segments, self.held
        left, at = NONE, 0
        if len(held) == self.capacity:
            left = self._evict()
        if len(segments[0]) >= self._room:
            room = self._room
            at = next((place for place, each in enumerate(segments) if len(each) < room), 0)
        held[block] = at
        segments[at][block] = None
        return left

    def _settle(self, at: int) -> tuple[int, ...]:
        """Move overflow down, segment by segment; overflow of the lowest one is evicted."""
        segments, left = self._segments, NONE
        while at and len(segments[at]) > self._room:
            block = segments[at].popitem(last=False)[0]
            at -= 1
            self.held[block] = at
            segments[at][block] = None
            while not at and len(segments[0]) > self._room:
                left += self._evict()
        return left

    def _evict(self) -> tuple[int, ...]:
        lowest = self._segments[0] or next(each for each in self._segments if each)
        victim = lowest.popitem(last=False)[0]
        del self.held[victim]
        return (victim,)
