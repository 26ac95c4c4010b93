"""S3-FIFO: a small FIFO for new blocks, a main FIFO for blocks used in it, and a ghost list of evicted ones.

    small 10 % [ a b ]  main 90 % [ c d e f ]  ghost ( x y )
    a was used twice or more: into main; else it is evicted and remembered. x returns: directly into main.

In main a used block goes round once more per use, at most three times. Small evicts as long as it has its
share.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Eviction
from kvsim.allocators.option import option

MOST_USES = 3


@dataclass(frozen=True, kw_only=True)
class S3FifoOptions:
    """Options of `s3-fifo`."""

    small_share: float = option(
        "Share of the capacity for new blocks.", default=0.1, value="SHARE", above=0, below=1
    )
    uses_to_main: int = option(
        "Uses in the small FIFO with which a block goes into the main one.", default=2, value="N", least=1
    )


class S3Fifo(Eviction):
    """Evicts quickly blocks that were not used while new."""

    idea = "a small FIFO for new blocks, a main one for what was used in it"
    used_by = "caches of web services"
    source = "Yang et al., FIFO queues are all you need, SOSP 2023"
    declares: ClassVar[type] = S3FifoOptions

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, S3FifoOptions)
        self.held: dict[int, int] = {}  # block -> uses since it entered its queue
        self._least_small = max(1, int(capacity * self.options.small_share))
        self._most_ghosts = capacity - self._least_small
        self._to_main = self.options.uses_to_main
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def touch(self, block: int) -> Sequence[int]:
        uses = self.held[block]
        if uses < MOST_USES:
            self.held[block] = uses + 1
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left, back = NONE, block in self._ghosts
        if back:
            del self._ghosts[block]
        if len(self.held) == self.capacity:
            left = self._evict()
        (self._main if back else self._small).append(block)
        self.held[block] = 0
        return left

    def _evict(self) -> tuple[int, ...]:
        while True:
            if len(self._small) < self._least_small and self._main:
                return self._evict_main()
            victim = self._small.popleft()
            if self.held[victim] < self._to_main:
                if self._most_ghosts:
                    self._ghosts[victim] = None
                    if len(self._ghosts) > self._most_ghosts:
                        self._ghosts.popitem(last=False)
                del self.held[victim]
                return (victim,)
            self.held[victim] = 0
            self._main.append(victim)

    def _evict_main(self) -> tuple[int, ...]:
        held, main = self.held, self._main
        victim = main.popleft()
        while held[victim]:
            held[victim] -= 1
            main.append(victim)
            victim = main.popleft()
        del held[victim]
        return (victim,)
