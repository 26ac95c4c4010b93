"""2Q: new blocks wait in a FIFO; blocks requested again soon after leaving it go into an LRU.

    A1in [ a b c ]  A1out ( x y z )  Am [ e f g ]      a is evicted and remembered; y returns: into Am

A use in A1in changes nothing. A1in has a quarter of the capacity, A1out remembers half as many as fit.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Eviction
from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class TwoQOptions:
    """Options of `twoq`."""

    in_share: float = option(
        "Share of the capacity for blocks that are new.", default=0.25, value="SHARE", least=0, most=1
    )
    out_share: float = option(
        "Blocks that are remembered, as a share of the capacity.", default=0.5, value="SHARE", least=0
    )


class TwoQ(Eviction):
    """Evicts new blocks first, and keeps those that returned."""

    idea = "new blocks wait in a FIFO; what returns after it goes into an LRU"
    used_by = "PostgreSQL 8.0"
    source = "Johnson and Shasha, 2Q, VLDB 1994"
    checked = "libCacheSim 0.3.5"
    declares: ClassVar[type] = TwoQOptions

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, TwoQOptions)
        self.held: dict[int, bool] = {}  # block -> whether it is in the LRU
        self._most_new = int(capacity * self.options.in_share)
        self._most_out = int(capacity * self.options.out_share)
        self._new: OrderedDict[int, None] = OrderedDict()
        self._out: OrderedDict[int, None] = OrderedDict()
        self._main: OrderedDict[int, None] = OrderedDict()

    def touch(self, block: int) -> Sequence[int]:
        if self.held[block]:
            self._main.move_to_end(block)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        back = block in self._out
        if back:
            del self._out[block]
        left = self._evict() if len(self.held) == self.capacity else NONE
        self.held[block] = back
        (self._main if back else self._new)[block] = None
        return left

    def _evict(self) -> tuple[int, ...]:
        if len(self._new) > self._most_new or not self._main:
            victim = self._new.popitem(last=False)[0]
            if self._most_out:
                self._out[victim] = None
                if len(self._out) > self._most_out:
                    self._out.popitem(last=False)
        else:
            victim = self._main.popitem(last=False)[0]
        del self.held[victim]
        return (victim,)
