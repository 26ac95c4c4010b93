"""T-LRU: first evict what the next turn can recompute within its goal for the first token; then LRU.

    a conversation of 6 blocks, 1 more expected, goal: at most 3 to compute

    [ 0 1 2 3 | 4 5 ]      4 blocks must stay (6 + 1 - 3); the last 2 are safe to evict, and go first

The goal is a number of tokens: what a server computes in the time allowed for the first token. A block whose
request is unknown must stay, so without requests this is LRU.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Chain, Eviction
from kvsim.allocators.option import option

Queue = OrderedDict[int, None]


@dataclass(frozen=True, kw_only=True)
class TLruOptions:
    """Options of `t-lru`."""

    threshold_tokens: int = option(
        "Tokens that a turn may compute within its goal.", default=4096, value="N", least=0
    )
    next_prompt_tokens: int = option(
        "Tokens that the next turn is expected to add.", default=200, value="N", least=0
    )


class TLru(Eviction):
    """Evicts tails that are quickly recomputed, then the least recently used block."""

    idea = "tails that the next turn computes anew within its goal leave first"
    used_by = "SGLang (tlru); proposed for vLLM"
    source = "Zhang et al., Tail-optimized caching for LLM inference, NeurIPS 2025"
    declares: ClassVar[type] = TLruOptions
    informed = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self._safe: Queue = OrderedDict()
        self._needed: Queue = OrderedDict()
        self.held: dict[int, Queue] = {}  # block -> its queue
        self._safe_now: set[int] = set()

    def meet(self, chain: Chain) -> None:
        assert isinstance(self.options, TLruOptions)
        tokens = len(chain.blocks) * chain.block_tokens
        needed = tokens + self.options.next_prompt_tokens - self.options.threshold_tokens
        self._safe_now = set(chain.blocks[max(0, -(-needed // chain.block_tokens)) :])

    def touch(self, block: int) -> Sequence[int]:
        del self.held[block][block]
        self._put(block)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = NONE
        if len(self.held) == self.capacity:
            victim = (self._safe or self._needed).popitem(last=False)[0]
            del self.held[victim]
            left = (victim,)
        self._put(block)
        return left

    def _put(self, block: int) -> None:
        queue = self._safe if block in self._safe_now else self._needed
        queue[block] = None
        self.held[block] = queue
