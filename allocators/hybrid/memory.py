"""The pools from which groups get pages: addresses, and whether there is room.

one pool      |f|w|w|f|s|w| |f| | |          pages of equal bytes, any group takes any
split         |f|f|f| | | |w|w| |s| |        each group has a share of its own, regardless of demand
large pages   | f f f | w w w w w | f f . |  each cut into small pages of one group (large_pages.py)
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from kvsim.allocators.hybrid.large_pages import LargePages, Small
from kvsim.allocators.hybrid.pool import BlockPool, Blocks


class Memory:
    """The pools of some groups.

    Attributes
    ----------
    pools : list of Blocks
        One per group; groups that share a pool have the same object.
    sizes : list of int
        Slots per page of each group.
    slots : int
        Slots of all pages together.
    used_by, kept_by, idle_by : list of int
        Pages of each group in use, cached, and empty in parts of the arena that no other group can use.
    """

    def __init__(self, pools: Sequence[Blocks], sizes: Sequence[int], slots: int) -> None:
        self.pools, self.sizes, self.slots = list(pools), list(sizes), slots
        self.used_by, self.kept_by = pools[0].used_by, pools[0].kept_by

    def slots_of(self, pages: Sequence[int]) -> int:
        """The slots of so many pages of each group."""
        return sum(map(mul, pages, self.sizes))

    @property
    def idle_by(self) -> Sequence[int]:
        return [0] * len(self.pools)

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        """Whether each group can get this many blocks, including the free ones that it hits.

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
        """Whether empty pools would have room."""
        raise NotImplementedError

    def place(self, group: int, page: int) -> int:
        """The first slot of a page."""
        raise NotImplementedError

    def apart(self, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """(name, slots) of each group's own part of the arena, by address; none if all groups share it."""
        return ()

    def tick(self) -> None:
        """Start another call: its releases count as more recent than earlier ones."""

    def begun(self) -> Sequence[tuple[int, int]]:
        """(first slot, slots) of parts reserved for one group, by address; their empty slots are idle."""
        return ()


class OnePool(Memory):
    """All groups allocate from one pool."""

    def __init__(self, groups: int, blocks: int, caching: bool, page_slots: int = 1) -> None:
        self.pool = BlockPool(blocks, caching, [0] * groups, [0] * groups)
        super().__init__([self.pool] * groups, [page_slots] * groups, blocks * page_slots)

    def slots_of(self, pages: Sequence[int]) -> int:
        return sum(pages) * self.sizes[0]

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        """Whether the pool has as many free blocks as all groups need together."""
        return sum(needed) + spare <= self.pool.free

    def fits(self, needed: Sequence[int]) -> bool:
        return sum(needed) <= self.pool.blocks

    def place(self, group: int, page: int) -> int:
        return (page - 1) * self.sizes[group]


class SplitPools(Memory):
    """A separate pool of `blocks` blocks for each group."""

    def __init__(self, blocks: Sequence[int], sizes: Sequence[int], caching: bool) -> None:
        slots = [count * size for count, size in zip(blocks, sizes, strict=True)]
        self._slots, self._starts = slots, [0, *accumulate(slots)]
        counts = [0] * len(blocks), [0] * len(blocks)
        super().__init__([BlockPool(count, caching, *counts) for count in blocks], sizes, sum(slots))

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        return all(
            max(count, pool.evictable(found)) + spare <= pool.free
            for count, found, pool in zip(needed, hits, self.pools, strict=True)
        )

    def fits(self, needed: Sequence[int]) -> bool:
        return all(count <= pool.blocks for count, pool in zip(needed, self.pools, strict=True))

    def place(self, group: int, page: int) -> int:
        return self._starts[group] + (page - 1) * self.sizes[group]

    def apart(self, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
        return tuple(zip(names, self._slots, strict=True))


class SmallPages(Blocks):
    """The small pages of one kind: block = large page * small pages in one + place + 1.

    A release passes the length of the text that ends in the page. So, of pages last used together, the ends
    of prefixes are evicted first, for all kinds.
    """

    def __init__(
        self, arena: LargePages, kind: int, caching: bool, used_by: list[int], kept_by: list[int]
    ) -> None:
        self._arena, self._kind, self._each = arena, kind, arena.kinds[kind].each
        super().__init__(arena.count * self._each, caching, used_by, kept_by)

    def page(self, block: int) -> Small:
        """The small page of a block."""
        return divmod(block - 1, self._each)

    def block(self, page: Small) -> int:
        """The block of a small page."""
        return page[0] * self._each + page[1] + 1

    def _choose(self, owner: int) -> int:
        page = self._arena.take(self._kind, owner)
        if page is None:
            raise RuntimeError(f"no small page of kind {self._kind} is left")
        self.free -= 1
        return self.block(page)

    def _unlink(self, block: int) -> None:
        self._count(block, -1)
        self._arena.hit(self.page(block))
        self.free -= 1

    def _set_free(self, unknown: Sequence[int], known: Sequence[int]) -> None:
        for block in unknown:
            self._arena.release(self.page(block))
        for block in known:
            page = self.page(block)
            self._arena.use(page, self.key_tokens[block])
            self._arena.release(page, keep=True)
            self._count(block, 1)
        self.free += len(unknown) + len(known)

    def was_evicted(self, page: Small) -> None:
        """Called by the arena when it evicts a cached page."""
        self.forget(self.block(page))


class LargePageMemory(Memory):
    """A pool for each kind over one arena.

    Parameters
    ----------
    capacity, page_sizes : int, sequence of int
        Both in the same unit; a remainder below one large page is left out.
    caching : bool
        Whether prefixes are kept.
    packs : bool
        Whether free pages in other requests' large pages are taken before free large pages.
    """

    def __init__(self, capacity: int, page_sizes: Sequence[int], caching: bool, packs: bool = False) -> None:
        self.arena = LargePages(capacity, page_sizes, self._evicted, packs)
        if self.arena.count < len(page_sizes):
            raise ValueError(
                f"capacity_slots must hold a large page of {self.arena.large_bytes:,}, the least common "
                f"multiple of pages of {' and '.join(f'{size:,}' for size in page_sizes)}, for each kind, "
                f"got {capacity:,}"
            )
        counts = [0] * len(page_sizes), [0] * len(page_sizes)
        self.kinds = [SmallPages(self.arena, kind, caching, *counts) for kind in range(len(page_sizes))]
        super().__init__(self.kinds, page_sizes, self.arena.count * self.arena.large_bytes)

    def _evicted(self, kind: int, page: Small) -> None:
        self.kinds[kind].was_evicted(page)

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        """Whether all kinds can get their pages in some order; the arena then follows such an order."""
        woken = [
            [pool.page(block) for block in found if block and pool.references[block] == 0]
            for pool, found in zip(self.kinds, hits, strict=True)
        ]
        wanted = [max(0, count - len(found)) + spare for count, found in zip(needed, woken, strict=True)]
        room = self.arena.room(wanted, woken)
        if room:
            self.arena.plan(wanted)
        return room

    def fits(self, needed: Sequence[int]) -> bool:
        """Whether this many pages would fit, each kind in large pages of its own."""
        large = (-(-count // kind.each) for count, kind in zip(needed, self.arena.kinds, strict=True))
        return sum(large) <= self.arena.count

    def tick(self) -> None:
        """Advance the clock: later releases count as more recent."""
        self.arena.tick()

    def place(self, group: int, page: int) -> int:
        large, place = self.kinds[group].page(page)
        return large * self.arena.large_bytes + place * self.sizes[group]

    def begun(self) -> Sequence[tuple[int, int]]:
        size = self.arena.large_bytes
        return [(large * size, size) for large in self.arena.begun()]

    @property
    def idle_by(self) -> Sequence[int]:
        pages = zip(self.arena.kinds, self.used_by, self.kept_by, strict=True)
        return [kind.begun * kind.each - used - kept for kind, used, kept in pages]
