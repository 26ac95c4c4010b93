"""Which pool each group draws its blocks from, and whether there is room: one pool for all, or one for each.

    one pool     |f|w|w|f|s|w| |f| | |      blocks of equal bytes, any group takes any
    split        |f|f|f| | | |w|w| |s| |    each group has a share of its own, whoever needs more

Large pages that are cut into small ones of each kind (Jenga): large_pool.py.
"""

from collections.abc import Sequence

from kvsim.allocators.hybrid.pool import BlockPool, Blocks


class Memory:
    """The pools of some groups.

    Attributes
    ----------
    pools : list of Blocks
        One for each group; groups that share one name it alike.
    """

    def __init__(self, pools: Sequence[Blocks]) -> None:
        self.pools = list(pools)

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        """Whether each group can have so many blocks, those free ones included that it hits.

        Parameters
        ----------
        needed : sequence of int
            Blocks of each group.
        hits : sequence of sequence of int
            The blocks that each group hits; they may be in use.
        spare : int
            Blocks that must stay free.
        """
        raise NotImplementedError

    def fits(self, needed: Sequence[int]) -> bool:
        """Whether empty pools have room for it."""
        raise NotImplementedError

    def tick(self) -> None:
        """Another call begins: what it lets go is used later than what was let go before."""


class OnePool(Memory):
    """All groups draw from one pool."""

    def __init__(self, groups: int, blocks: int, caching: bool) -> None:
        self.pool = BlockPool(blocks, caching)
        super().__init__([self.pool] * groups)

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        """Whether the sum is free."""
        return sum(needed) + spare <= self.pool.free

    def fits(self, needed: Sequence[int]) -> bool:
        """Whether there are so many."""
        return sum(needed) <= self.pool.blocks


class SplitPools(Memory):
    """Each group has a pool of so many blocks."""

    def __init__(self, blocks: Sequence[int], caching: bool) -> None:
        super().__init__([BlockPool(count, caching) for count in blocks])

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        """Whether each pool has its group's."""
        return all(
            max(count, pool.evictable(found)) + spare <= pool.free
            for count, found, pool in zip(needed, hits, self.pools, strict=True)
        )

    def fits(self, needed: Sequence[int]) -> bool:
        """Whether each pool has so many."""
        return all(count <= pool.blocks for count, pool in zip(needed, self.pools, strict=True))
