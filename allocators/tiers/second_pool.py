"""A second pool of blocks, below the GPU's memory: freed blocks can be found until they are reused.

    copied to    taken from the head of the queue; its old text is forgotten
    copied       known by its text, and free: the last of the queue
    hit          out of the queue while it is held

Like the host memory of vLLM 0.33.0's SimpleCPUOffloadConnector. A row of blocks is freed from its first block
on, so the start of a text is forgotten before its end.
"""

from collections.abc import Iterable

from kvsim.allocators.options import CacheRules
from kvsim.allocators.prefix_pool import PrefixPool


class SecondPool:
    """Blocks 0 to `blocks - 1`, their texts and holders.

    Attributes
    ----------
    references : dict of int
        Held block -> number of holders.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.pool = PrefixPool(blocks, CacheRules())
        self.references: dict[int, int] = {}
        self._keys: dict[int, int] = {}  # keys, by block

    @property
    def free(self) -> int:
        """Blocks without a holder, including those with a text."""
        return self.pool.free

    @property
    def held(self) -> int:
        """Blocks that have a text or are being copied to."""
        return self.blocks - self.pool.free + self.pool.cached

    def find(self, keys: list[int]) -> list[int]:
        """The blocks of these keys, up to the first miss."""
        found: list[int] = []
        for key in keys:
            block = self.pool.find(key, 1)
            if not block:
                break
            found += block
        return found

    def knows(self, key: int) -> bool:
        """Whether a block is known by this key."""
        return bool(self.pool.find(key, 1))

    def misses(self, key: int, count: int) -> list[int]:
        """Which of the next `count` keys have no block, the last first."""
        return self.pool.unknown(key, count)[::-1]

    def know(self, keys: int) -> None:
        """Make room for `keys` keys in total."""
        self.pool.know(keys)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to blocks that were found."""
        for block in blocks:
            if block in self.references:
                self.references[block] += 1
            else:
                self.pool.take(self._keys[block], block)
                self.references[block] = 1

    def take(self, count: int) -> tuple[list[int], int]:
        """Take `count` free blocks, which must exist; also returns how many of them had a text."""
        cached = self.pool.cached
        blocks = self.pool.allocate(count)
        for block in blocks:
            self._keys.pop(block, None)
            self.references[block] = 1
        return blocks, cached - self.pool.cached

    def enter(self, block: int, key: int) -> None:
        """Let look-ups find a block by its text."""
        self._keys[block] = key
        self.pool.enter(key, [block])

    def leave(self, blocks: Iterable[int]) -> None:
        """Remove a holder from these blocks; the first is freed first."""
        for block in blocks:
            count = self.references[block] - 1
            if count:
                self.references[block] = count
                continue
            del self.references[block]
            self.pool.give_back([block], self._keys.get(block))
