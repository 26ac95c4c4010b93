"""Each kind of request has its own reuse times: evict the block that is least likely to be reused.

    kind   reused  after, mean     first of its queue   within the next 60 s
    chat     60 %       40 s       a, used 90 s ago      4.9 %
    file     10 %       20 s       b, used  5 s ago      7.4 %      a leaves

The probability that a block is used within its next `life` is that of an exponential distribution with the
mean of its kind, times the share of its kind that is reused: share * (exp(-age / mean) - exp(-(age + life) /
mean)). Within a kind it falls with age, so only the first block of each queue is considered; of blocks used
at the same time, the one latest in its prompt is first. `life` is the mean time from last use to eviction.
The means cover everything seen so far, whereas the paper fits them to a sample from time to time. With one
kind it is LRU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp

from kvsim.allocators.eviction.base import NONE, Chain, Eviction


@dataclass
class _Kind:
    """Statistics of a kind of requests, and its blocks."""

    uses: int = 0
    reuses: int = 0
    reused_after_ms: int = 0
    queue: list[tuple[int, int, int, int]] = field(default_factory=list)
    """last use, -place, call, block; some are stale"""


class WorkloadAware(Eviction):
    """Evicts the block least likely to be used soon, given the statistics of its kind."""

    idea = "the block least likely to come back leaves, as its kind comes back"
    used_by = "Alibaba Cloud; proposed for vLLM"
    source = "Wang et al., KVCache cache in the wild, ATC 2025"
    informed = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: dict[int, tuple[int, int, int]] = {}  # block -> kind, last use, call
        self._kinds: dict[int, _Kind] = {}
        self._chain = Chain(())
        self._places: dict[int, int] = {}
        self._evicted = self._lasted_ms = self._calls = 0

    def meet(self, chain: Chain) -> None:
        self._chain = chain
        self._places = {block: place for place, block in enumerate(chain.blocks)}

    def touch(self, block: int) -> Sequence[int]:
        kind, used_ms, _ = self.held[block]
        seen = self._kinds[kind]
        seen.reuses += 1
        seen.reused_after_ms += self._chain.now_ms - used_ms
        self._use(block)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = (self._evict(),) if len(self.held) == self.capacity else NONE
        self._use(block)
        return left

    def _use(self, block: int) -> None:
        kind, now_ms = self._chain.kind, self._chain.now_ms
        place = -self._places.get(block, 0)
        self._calls += 1
        self.held[block] = (kind, now_ms, self._calls)
        seen = self._kinds.setdefault(kind, _Kind())
        seen.uses += 1
        heappush(seen.queue, (now_ms, place, self._calls, block))

    def _evict(self) -> int:
        first = [(at, kind) for kind, seen in self._kinds.items() if (at := self._first(kind, seen))]
        if len(first) > 1:
            first.sort(key=lambda each: (self._chance(each[1], each[0][0]), each))
        used_ms, _, _, victim = heappop(self._kinds[first[0][1]].queue)
        self._evicted += 1
        self._lasted_ms += self._chain.now_ms - used_ms
        del self.held[victim]
        return victim

    def _first(self, kind: int, seen: _Kind) -> tuple[int, int, int, int] | None:
        """The first block of a kind's queue that is still held and was not used since it was queued."""
        queue, held = seen.queue, self.held
        while queue:
            used_ms, _, call, block = queue[0]
            if held.get(block) == (kind, used_ms, call):
                return queue[0]
            heappop(queue)
        return None

    def _chance(self, kind: int, used_ms: int) -> float:
        """Probability that a block of the kind is used within its next life."""
        if not self._evicted:
            return 0.0
        seen = self._kinds[kind]
        mean_ms = seen.reused_after_ms / seen.reuses if seen.reused_after_ms else self._mean_ms()
        age_ms, life_ms = self._chain.now_ms - used_ms, self._lasted_ms / self._evicted
        share = (seen.reuses + 1) / (seen.uses + 2)
        return share * (exp(-age_ms / mean_ms) - exp(-(age_ms + life_ms) / mean_ms))

    def _mean_ms(self) -> float:
        """The mean over all kinds, for a kind with no reuse so far."""
        reuses = sum(each.reuses for each in self._kinds.values())
        return max(1.0, sum(each.reused_after_ms for each in self._kinds.values()) / max(reuses, 1))
