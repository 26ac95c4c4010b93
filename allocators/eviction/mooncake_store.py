"""Mooncake Store's near-LRU: a read grants a lease; above a watermark, blocks leave by lease end.

    room for 20, of which 18 may be used; the lease is 10 s
    at 12 s   [ put at 0 s | put at 4 s | read at 1 s, leased to 11 s | ... | put now ]     the 19th
    left      [ read at 1 s | ... | put now ]            2 of 19: a twentieth plus the excess

A block that was put can be evicted immediately, a block that was read once its lease has ended, in the order
of these times. A put that finds no room at all is dropped. Mooncake checks every 10 ms and takes objects
shard by shard (1,024 shards, the first at random); here each put checks and there is one shard. The time is
that of the last announced request.

Not simulated: soft pins, with which a client marks an object when it puts it (SGLang 0.5.23 marks none; for
30 minutes, reads do not prolong them, other objects leave first); and promotion on hit, from the store's own
SSD to its memory, which is off by default (`--promotion_on_hit`) and needs two media in one store.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Chain, Eviction
from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class MooncakeStoreOptions:
    """Options of `mooncake-store`."""

    watermark: float = option(
        "Share of the room above which blocks leave.", default=0.9, value="X", above=0, most=1
    )
    share: float = option(
        "Share of the blocks that leave together.", default=0.05, value="X", above=0, most=1
    )
    lease_ms: int = option("How long a block that was read stays.", default=10_000, value="MS", least=0)


class MooncakeStore(Eviction):
    """Evicts a share of the blocks, by earliest lease end, when it is nearly full."""

    idea = "above a watermark a share leaves, by the end of its leases"
    used_by = "Mooncake Store"
    source = "Mooncake, mooncake-store/src/master_service.cpp (EvictionThreadFunc, BatchEvict)"
    declares: ClassVar[type] = MooncakeStoreOptions
    informed = True
    leaves_room = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, MooncakeStoreOptions)
        self._watermark, self._share = self.options.watermark, self.options.share
        self._lease_ms, self._now_ms = self.options.lease_ms, 0
        self.held: dict[int, int] = {}  # block -> when its lease ends
        self._put: OrderedDict[int, None] = OrderedDict()  # not read since, by lease end
        self._read: OrderedDict[int, None] = OrderedDict()  # read since, by lease end

    def meet(self, chain: Chain) -> None:
        self._now_ms = chain.now_ms

    def touch(self, block: int) -> Sequence[int]:
        self._put.pop(block, None)
        self._read.pop(block, None)
        self._read[block] = None
        self.held[block] = self._now_ms + self._lease_ms
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        if len(self.held) == self.capacity:  # the put fails and triggers an eviction
            return [block, *self._evict(self._share)]
        self.held[block] = self._now_ms
        self._put[block] = None
        above = len(self.held) / self.capacity - self._watermark
        return self._evict(above + self._share) if above > 0 else NONE

    def _evict(self, share: float) -> list[int]:
        """Evict a share of the blocks, as far as leases have ended."""
        held, left = self.held, []
        for _ in range(ceil(len(held) * share)):
            first = [next(iter(queue)) for queue in (self._put, self._read) if queue]
            block = min(first, key=held.__getitem__, default=None)
            if block is None or held[block] > self._now_ms:
                break
            del held[block], (self._put if block in self._put else self._read)[block]
            left.append(block)
        return left
