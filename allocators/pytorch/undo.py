"""Undo for a caching allocator: restores the state before some calls if one of them is refused.

Lists are copied whole; blocks are recorded when first touched. Expandable segments cannot be undone.
"""

from kvsim.allocators.pytorch.blocks import Journal
from kvsim.allocators.pytorch.caching import CachingAllocator


class Checkpoint:
    """The current state of a caching allocator.

    Parameters
    ----------
    allocator : CachingAllocator
        From now on every block that it touches is recorded, until `keep` or `restore`.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._blocks = allocator.journal = Journal()
        self._pools = [pool.saved() for pool in allocator.pools]
        self._card = allocator.card.saved()
        self._counters = allocator.counters.saved()
        self._allocated = allocator.allocated.copy()

    def keep(self) -> None:
        """Keep the changes made since."""
        self._allocator.journal = None

    def restore(self) -> None:
        allocator = self._allocator
        allocator.journal = None
        self._blocks.restore()
        for pool, saved in zip(allocator.pools, self._pools, strict=True):
            pool.restore(saved)
        allocator.card.restore(self._card)
        allocator.counters.restore(self._counters)
        allocator.allocated = self._allocated
