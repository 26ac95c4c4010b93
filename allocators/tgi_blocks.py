"""TGI's free list of blocks: a list taken from its end; what comes back is put there.

    simple            [1 2 3 4 5 6 7]  -> 3 blocks: 5 6 7     back: [1 2 3 4 5 6 7]
    with a window     at most ceil(window / block) blocks, whose slots are used over and over, as a ring
    on Gaudi (HPU)    one slot more for every request; the lowest blocks first, in ascending order

Block 0 is never allocated: TGI keeps it for health checks. As `SimpleAllocator` of
text-generation-inference, backends/v3/src/block_allocator.rs.
"""

from collections.abc import Sequence
from itertools import cycle, islice


def slots_of(blocks: Sequence[int], block_size: int, tokens: int) -> list[int]:
    """The slots of so many tokens, which go round through the blocks where these are too few."""
    each = [slot for block in blocks for slot in range(block * block_size, (block + 1) * block_size)]
    return each[:tokens] if tokens <= len(each) else list(islice(cycle(each), tokens))


class FreeBlocks:
    """The free blocks 1 to `blocks - 1`.

    Attributes
    ----------
    free : list of int
        Taken from its end.
    """

    def __init__(self, blocks: int, block_size: int, window: int = 0, hpu: bool = False) -> None:
        self.free = list(range(1, blocks))
        self.block_size = block_size
        self.window = window
        self.hpu = hpu

    def blocks_needed(self, tokens: int) -> int:
        """Blocks of a request of so many tokens in all."""
        tokens += self.hpu
        return -(-(min(tokens, self.window) if self.window else tokens) // self.block_size)

    def take(self, count: int) -> list[int] | None:
        """So many blocks; None when there are fewer."""
        start = len(self.free) - count
        if start < 0:
            return None
        if self.hpu:
            self.free.sort(reverse=True)
        blocks = self.free[start:]
        del self.free[start:]
        return sorted(blocks) if self.hpu else blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """Take blocks back, which are the next to be allocated."""
        self.free += blocks
