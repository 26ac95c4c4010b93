"""TensorRT-LLM's order of free blocks: lowest priority first, then the one freed first; leaves before others.

    priority 20   [ 7 ]               <- goes first
    priority 35   [ 3  9  1 ]         the default; a freed sequence comes back from its last block on
    priority 80   [ 4 ]               until its time is over, then back to 35

A block whose text begins longer texts that can still be found is no leaf, and goes when there is no leaf.
As `LRUEvictionPolicy` of cpp/tensorrt_llm/batch_manager/evictionPolicy.cpp; time is what the caller counts.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice

from kvsim.allocators.base import InvariantError

LOWEST, DEFAULT, HIGHEST = 0, 35, 100


class Retention:
    """Free blocks, and the priority of every block.

    Attributes
    ----------
    free : int
        How many are free.
    priority : list of int
        Of each block, in use or not.
    """

    def __init__(self, blocks: int) -> None:
        self.free = blocks
        self.priority = [DEFAULT] * blocks
        self._until: list[int | None] = [None] * blocks  # when its priority goes back to the default
        self._lasts: list[int | None] = [None] * blocks  # how long a priority lasts once it is free
        self._levels: dict[int, dict[int, None]] = {DEFAULT: dict.fromkeys(range(blocks))}
        self._expiring: list[tuple[int, int]] = []  # a heap: (time, block)
        self._now = 0

    def order(self) -> list[int]:
        """The free blocks by priority, then by when they were freed."""
        return [block for _, level in sorted(self._levels.items()) for block in level]

    def retain(self, block: int, priority: int, lasts: int | None = None) -> None:
        """Set the priority of a block in use: for ever, or so long from when it is free."""
        if not LOWEST <= priority <= HIGHEST:
            raise ValueError(f"priority must be {LOWEST} to {HIGHEST}, got {priority}")
        self.priority[block] = priority
        self._lasts[block] = lasts

    def give_back(self, block: int) -> None:
        """A block is free: the last of its priority."""
        self._levels.setdefault(self.priority[block], {})[block] = None
        self.free += 1
        lasts = self._lasts[block]
        if lasts is not None and self.priority[block] != DEFAULT:
            self._until[block] = self._now + lasts
            heappush(self._expiring, (self._now + lasts, block))

    def claim(self, block: int) -> None:
        """A free block is used again; it keeps its priority."""
        del self._levels[self.priority[block]][block]
        self._until[block] = None
        self.free -= 1

    def take(self, is_leaf: Callable[[int], bool]) -> int:
        """The next block to go, with the default priority from now on."""
        first: int | None = None
        for _, level in sorted(self._levels.items()):
            for block in level:
                if is_leaf(block):
                    return self._taken(block)
                first = block if first is None else first
        if first is None:
            raise InvariantError(f"a block must go, {self.free} are free")
        return self._taken(first)

    def take_first(self, count: int) -> list[int]:
        """The next blocks to go, where all are leaves, in their order; they must be there."""
        blocks: list[int] = []
        for _, level in sorted(self._levels.items()):
            blocks += islice(level, count - len(blocks))
        for block in blocks:
            del self._levels[self.priority[block]][block]
            self._until[block] = self._lasts[block] = None
            self.priority[block] = DEFAULT
        self.free -= count
        return blocks

    def refresh(self, now: int) -> None:
        """Time has passed: priorities that are over go back to the default, as if just freed."""
        self._now = now
        while self._expiring and self._expiring[0][0] <= now:
            until, block = heappop(self._expiring)
            if self._until[block] == until:
                self.claim(block)
                self.retain(block, DEFAULT)
                self.give_back(block)

    def _taken(self, block: int) -> int:
        self.claim(block)
        self.retain(block, DEFAULT)
        return block
