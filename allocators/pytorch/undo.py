"""Undoing: what a caching allocator was before some calls, to come back to when one of them is refused.

Lists are copied whole, blocks are written down when they are first touched. Expandable segments cannot be
undone.
"""

from kvsim.allocators.pytorch.blocks import Journal
from kvsim.allocators.pytorch.caching import CachingAllocator


class Checkpoint:
    """The state of a caching allocator now.

    Parameters
    ----------
    allocator : CachingAllocator
        Writes down every block that it touches from now on, until `keep` or `restore`.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._blocks = allocator.journal = Journal()
        self._pools = [pool.saved() for pool in allocator.pools]
        self._card = allocator.card.saved()
        self._counters = allocator.counters.saved()
        self._allocated = allocator.allocated.copy()

    def keep(self) -> None:
        """What was done since stays."""
        self._allocator.journal = None

    def restore(self) -> None:
        """Come back to what was."""
        allocator = self._allocator
        allocator.journal = None
        self._blocks.restore()
        for pool, saved in zip(allocator.pools, self._pools, strict=True):
            pool.restore(saved)
        allocator.card.restore(self._card)
        allocator.counters.restore(self._counters)
        allocator.allocated = self._allocated
