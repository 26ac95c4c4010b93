"""Evict the block that saves the fewest tokens: those from its start to the prompt's end, aged over time.

    prompt [ a b c d ]      a saves 4 blocks, d 1; after 60 s without a use half as much, after 120 s a third

Of blocks with equal scores, the least recently used one is evicted. A block of an unknown request saves only
itself, so without requests this is LRU. The proposal averages the savings of a block that is stored again,
which never happens here.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Chain, Eviction
from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class CostAwareOptions:
    """Options of `cost-aware`."""

    half_life_s: float = option(
        "Seconds without a use after which a block counts half.", default=60.0, value="S", above=0
    )


class CostAware(Eviction):
    """Evicts the block that is cheapest to recompute, discounted by age.

    Blocks with equal savings stay in the order of their last uses, so the next victim is the first of one of
    these queues; their scores change only with time.
    """

    idea = "the block that saves the fewest tokens leaves; age halves them"
    used_by = "proposed for LMCache"
    source = "LMCache, pull request 4459, cost_aware_policy.py"
    declares: ClassVar[type] = CostAwareOptions
    informed = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, CostAwareOptions)
        self.held: dict[int, int] = {}  # block -> blocks it saves
        self._by_saved: dict[int, OrderedDict[int, tuple[int, int]]] = {}  # saved -> block -> last use, call
        self._half_life_ms = self.options.half_life_s * 1000
        self._saves: dict[int, int] = {}
        self._now_ms = self._calls = 0
        self._first: list[tuple[float, int, int, int]] = []  # the first of each queue, with its current score
        self._first_known = False

    def meet(self, chain: Chain) -> None:
        length = len(chain.blocks)
        self._saves = {block: length - place for place, block in enumerate(chain.blocks)}
        if chain.now_ms != self._now_ms:
            self._now_ms, self._first_known = chain.now_ms, False

    def touch(self, block: int) -> Sequence[int]:
        saved = self.held[block]
        alike = self._by_saved[saved]
        first = next(iter(alike)) == block
        del alike[block]
        self._use(block, saved)
        if first:
            self._enter_first(saved)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = (self._evict(),) if len(self.held) == self.capacity else NONE
        saved = self._saves.get(block, 1)
        self.held[block] = saved
        alike = self._by_saved.setdefault(saved, OrderedDict())
        self._use(block, saved)
        if len(alike) == 1:
            self._enter_first(saved)
        return left

    def _use(self, block: int, saved: int) -> None:
        self._calls += 1
        self._by_saved[saved][block] = (self._now_ms, self._calls)

    def _evict(self) -> int:
        if not self._first_known:
            self._first = [self._score(saved) for saved, alike in self._by_saved.items() if alike]
            heapify(self._first)
            self._first_known = True
        while True:
            _, call, saved, block = heappop(self._first)
            alike = self._by_saved[saved]
            if alike.get(block, (0, 0))[1] == call:
                break
        del alike[block], self.held[block]
        self._enter_first(saved)
        return block

    def _enter_first(self, saved: int) -> None:
        if self._first_known and self._by_saved[saved]:
            heappush(self._first, self._score(saved))

    def _score(self, saved: int) -> tuple[float, int, int, int]:
        block, (used_ms, call) = next(iter(self._by_saved[saved].items()))
        return saved / (1 + (self._now_ms - used_ms) / self._half_life_ms), call, saved, block
