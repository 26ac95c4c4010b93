"""AIBrix's S3-FIFO: small has 30 %, one use moves a block to main, and the ghost list never forgets.

    small 30 % [ a b ]  main 70 % [ c d e ]  ghost ( all that left small )

The ghost list counts the bytes of values that it has just discarded, so it always considers itself empty and
grows. An overfull cache evicts to one below capacity, like AIBrix's others. The new block is inserted
first.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Eviction
from kvsim.allocators.eviction.s3_fifo import MOST_USES
from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class AibrixS3FifoOptions:
    """Options of `aibrix-s3-fifo`."""

    small_share: float = option(
        "Share of the capacity for new blocks.", default=0.3, value="SHARE", above=0, below=1
    )
    uses_to_main: int = option(
        "Uses in the small FIFO with which a block goes into the main one.",
        default=1,
        value="N",
        least=1,
        most=3,
    )


class AibrixS3Fifo(Eviction):
    """Evicts like AIBrix's s3fifo.py."""

    idea = "s3-fifo with small at 30 %, one use to main, unlimited memory"
    used_by = "AIBrix (DRAM)"
    source = "AIBrix 0.8.0, l1/eviction_policy/s3fifo.py"
    checked = "aibrix_kvcache 0.8.0"
    declares: ClassVar[type] = AibrixS3FifoOptions
    leaves_room = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, AibrixS3FifoOptions)
        self.held: dict[int, int] = {}  # block -> uses since it entered its queue
        self._most_small = int(capacity * self.options.small_share)
        self._to_main = self.options.uses_to_main
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: set[int] = set()

    def touch(self, block: int) -> Sequence[int]:
        uses = self.held[block]
        if uses < MOST_USES:
            self.held[block] = uses + 1
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        if block in self._ghosts:
            self._ghosts.remove(block)
            self._main.append(block)
        else:
            self._small.append(block)
        self.held[block] = 0
        if len(self.held) <= self.capacity:
            return NONE
        left: list[int] = []
        while len(self.held) >= self.capacity:
            if len(self._small) > self._most_small or not self._main:
                self._one_of_small(left)
            else:
                self._one_of_main(left)
        return left

    def _one_of_small(self, left: list[int]) -> None:
        block = self._small.popleft()
        if self.held[block] >= self._to_main:
            self.held[block] = 0
            self._main.append(block)
            while len(self._main) > self.capacity - self._most_small:
                self._one_of_main(left)
        else:
            self._ghosts.add(block)
            del self.held[block]
            left.append(block)

    def _one_of_main(self, left: list[int]) -> None:
        block = self._main.popleft()
        if self.held[block]:
            self.held[block] -= 1
            self._main.append(block)
        else:
            del self.held[block]
            left.append(block)
