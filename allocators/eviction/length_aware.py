"""LFU that keeps prefixes: of the blocks with the fewest uses, evict the one latest in its prompt.

    uses 1: [ a at 0, b at 3, c at 9 ]   uses 2: [ d at 40 ]      evicted: c, then b, a, d

The paper describes it in half a sentence ("similar to LFU but prioritizing eviction of cache blocks occurring
later in requests"); this is our reading. Of blocks at the same place, the least recently used one is evicted.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from kvsim.allocators.eviction.base import NONE, Chain, Eviction

Entry = tuple[int, int, int, int]
"""Uses, negated place in the prompt, call, block: the smallest entry is evicted."""


class LengthAware(Eviction):
    """Evicts, of the blocks with the fewest uses, the one latest in a prompt."""

    idea = "LFU; of blocks used as often, the one latest in its prompt leaves"
    used_by = "Mooncake, in its study of caches"
    source = "Qin et al., Mooncake, arXiv 2407.00079, Table 1 (LengthAwareCache)"
    informed = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: dict[int, Entry] = {}
        self._order: list[Entry] = []  # some are stale
        self._places: dict[int, int] = {}
        self._calls = 0

    def meet(self, chain: Chain) -> None:
        self._places = {block: place for place, block in enumerate(chain.blocks)}

    def touch(self, block: int) -> Sequence[int]:
        self._enter(block, self.held[block][0] + 1)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = NONE
        if len(self.held) == self.capacity:
            held = self.held
            entry = heappop(self._order)
            while held.get(entry[-1]) is not entry:
                entry = heappop(self._order)
            del held[entry[-1]]
            left = (entry[-1],)
        self._enter(block, 1)
        return left

    def _enter(self, block: int, uses: int) -> None:
        self._calls += 1
        self.held[block] = entry = (uses, -self._places.get(block, 0), self._calls, block)
        heappush(self._order, entry)
