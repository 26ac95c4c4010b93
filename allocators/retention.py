"""TensorRT-LLM's order of free blocks: lowest priority first, then first freed; leaves before others.

    priority 20   [ 7 ]               <- goes first
    priority 35   [ 3  9  1 ]         the default; a freed sequence is reused from its last block on
    priority 80   [ 4 ]               until its time expires, then back to 35

A block whose text begins longer texts that can still be found is not a leaf; it goes only if no leaf is left.
Like `LRUEvictionPolicy` of cpp/tensorrt_llm/batch_manager/evictionPolicy.cpp; the caller counts time.
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
        Number of free blocks.
    priority : list of int
        Priority of each block, in use or not.
    """

    def __init__(self, blocks: int) -> None:
        self.free = blocks
        self.priority = [DEFAULT] * blocks
        self._until: list[int | None] = [None] * blocks  # when its priority returns to the default
        self._lasts: list[int | None] = [None] * blocks  # how long a priority lasts once the block is free
        self._levels: dict[int, dict[int, None]] = {DEFAULT: dict.fromkeys(range(blocks))}
        self._expiring: list[tuple[int, int]] = []  # a heap: (time, block)
        self._now = 0

    def order(self) -> list[int]:
        """The free blocks by priority, then by the time they were freed."""
        return [block for _, level in sorted(self._levels.items()) for block in level]

    def retain(self, block: int, priority: int, lasts: int | None = None) -> None:
        """Set the priority of a block in use: for ever, or for `lasts` after it is freed."""
        if not LOWEST <= priority <= HIGHEST:
            raise ValueError(f"priority must be {LOWEST} to {HIGHEST}, got {priority}")
        self.priority[block] = priority
        self._lasts[block] = lasts

    def give_back(self, block: int) -> None:
        """Free a block, as the last of its priority."""
        self._levels.setdefault(self.priority[block], {})[block] = None
        self.free += 1
        lasts = self._lasts[block]
        if lasts is not None and self.priority[block] != DEFAULT:
            self._until[block] = self._now + lasts
            heappush(self._expiring, (self._now + lasts, block))

    def claim(self, block: int) -> None:
        """Use a free block again; it keeps its priority."""
        del self._levels[self.priority[block]][block]
        self._until[block] = None
        self.free -= 1

    def take(self, is_leaf: Callable[[int], bool]) -> int:
        """Take the next block to evict and reset its priority to the default."""
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
        """Take the next `count` blocks in order, if all are leaves; they must exist."""
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
        """Advance time: blocks with expired priorities return to the default, as if just freed."""
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
