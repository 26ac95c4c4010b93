"""A second pool of blocks, below the GPU's memory: freed blocks are found until they are taken.

    copied to    taken from the head of the queue, whose old text is forgotten
    copied       known by its text, and free: the last of the queue
    hit          out of the queue while somebody holds it

As vLLM 0.33.0's SimpleCPUOffloadConnector keeps its host memory. Whoever frees a row of blocks frees the
first one first, so that of a text the beginning is forgotten before its end.
"""

from collections.abc import Iterable

from kvsim.allocators.options import CacheRules
from kvsim.allocators.prefix_pool import PrefixPool


class SecondPool:
    """Blocks 0 to `blocks - 1`, their texts and who holds them.

    Attributes
    ----------
    references : dict of int
        By block that is held: by how many.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.pool = PrefixPool(blocks, CacheRules())
        self.references: dict[int, int] = {}
        self._keys: dict[int, int] = {}  # of blocks that had one, by block

    @property
    def free(self) -> int:
        """Blocks that nobody holds, those with a text included."""
        return self.pool.free

    @property
    def held(self) -> int:
        """Blocks that have a text, or are being copied to."""
        return self.blocks - self.pool.free + self.pool.cached

    def find(self, keys: list[int]) -> list[int]:
        """The blocks of these keys, up to the first without one."""
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
        """Those of the next keys by which no block is known, the last first."""
        return self.pool.unknown(key, count)[::-1]

    def know(self, keys: int) -> None:
        """Make room for so many keys in all."""
        self.pool.know(keys)

    def hold(self, blocks: Iterable[int]) -> None:
        """Somebody more holds these blocks, which were found."""
        for block in blocks:
            if block in self.references:
                self.references[block] += 1
            else:
                self.pool.take(self._keys[block], block)
                self.references[block] = 1

    def take(self, count: int) -> tuple[list[int], int]:
        """Take so many blocks, of which there must be enough; and how many of them had a text."""
        cached = self.pool.cached
        blocks = self.pool.allocate(count)
        for block in blocks:
            self._keys.pop(block, None)
            self.references[block] = 1
        return blocks, cached - self.pool.cached

    def enter(self, block: int, key: int) -> None:
        """A block has its text."""
        self._keys[block] = key
        self.pool.enter(key, [block])

    def leave(self, blocks: Iterable[int]) -> None:
        """Somebody holds these blocks no more; the first is free first."""
        for block in blocks:
            count = self.references[block] - 1
            if count:
                self.references[block] = count
                continue
            del self.references[block]
            self.pool.give_back([block], self._keys.get(block))
