"""W-TinyLFU: a small LRU window; blocks that leave it enter the main cache if used more than its victim.

    window 1 % [ a b ]  ->  a against c  ->  main: probation 20 % [ c d ], protected 80 % [ e f g ]

Uses are also counted for blocks outside the cache, up to 15; after ten times as many calls as the capacity,
all counts are halved. The paper counts in a sketch, which confuses some blocks with others; here counts are
exact.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Eviction
from kvsim.allocators.option import option

MOST_USES = 15
"""the maximum of four bits"""
SAMPLE = 10
"""calls between two halvings, in multiples of the capacity"""

Queue = OrderedDict[int, None]


@dataclass(frozen=True, kw_only=True)
class WTinyLfuOptions:
    """Options of `w-tinylfu`."""

    window_share: float = option(
        "Share of the capacity for the window.", default=0.01, value="SHARE", least=0, most=1
    )
    protected_share: float = option(
        "Share of the main cache for blocks used in it.", default=0.8, value="SHARE", least=0, most=1
    )


class WTinyLfu(Eviction):
    """Evicts the less used of the candidate and the victim."""

    idea = "a small LRU; what leaves it stays if it was used more than a victim"
    used_by = "Caffeine"
    source = "Einziger et al., TinyLFU, ACM Transactions on Storage 2017"
    declares: ClassVar[type] = WTinyLfuOptions

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, WTinyLfuOptions)
        self._window: Queue = OrderedDict()
        self._probation: Queue = OrderedDict()
        self._protected: Queue = OrderedDict()
        self.held: dict[int, Queue] = {}  # block -> its queue
        self._most_window = max(1, int(capacity * self.options.window_share))
        self._most_main = capacity - self._most_window
        self._most_protected = int(self._most_main * self.options.protected_share)
        self._uses: dict[int, int] = {}
        self._until_half = SAMPLE * capacity

    def touch(self, block: int) -> Sequence[int]:
        self._count(block)
        queue = self.held[block]
        if queue is not self._probation:
            queue.move_to_end(block)
            return NONE
        del queue[block]
        self._put(block, self._protected)
        if len(self._protected) > self._most_protected:
            self._put(self._protected.popitem(last=False)[0], self._probation)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        self._count(block)
        self._put(block, self._window)
        if len(self._window) <= self._most_window:
            return NONE
        comer = self._window.popitem(last=False)[0]
        if len(self._probation) + len(self._protected) < self._most_main:
            self._put(comer, self._probation)
            return NONE
        victim = comer
        source = self._probation or self._protected
        if source:
            victim = next(iter(source))
            if self._uses.get(comer, 0) > self._uses.get(victim, 0):
                del source[victim]
                self._put(comer, self._probation)
            else:
                victim = comer
        del self.held[victim]
        return (victim,)

    def _put(self, block: int, queue: Queue) -> None:
        queue[block] = None
        self.held[block] = queue

    def _count(self, block: int) -> None:
        uses = self._uses.get(block, 0)
        if uses < MOST_USES:
            self._uses[block] = uses + 1
        self._until_half -= 1
        if not self._until_half:
            self._uses = {each: count >> 1 for each, count in self._uses.items() if count > 1}
            self._until_half = SAMPLE * self.capacity // 2
