"""The caching allocator: blocks of cached segments, by best fit; segments are returned only if needed.

    malloc(bytes)   round up; small pool up to 1 MiB, else large
      1. best fit   the smallest free block of this stream and pool that is large enough
      2. a segment  after garbage collection, if that is set
      3. again      after freeing oversize free segments (`max_split_size_mb` only)
      4. again      after freeing every segment that is entirely free; else out of memory
    split           if the rest is worth it: 512 bytes (small), more than 1 MiB (large)
    free            merged with both neighbours immediately; the segment stays

Waste: the tail of a block below 512 bytes (small) or 1 MiB (large), and `inactive_split`: free blocks that
fit no request and keep their segment.
"""

from bisect import bisect_left

from kvsim.allocators.pytorch import expandable
from kvsim.allocators.pytorch.blocks import Block, Journal, Pool
from kvsim.allocators.pytorch.card import Card
from kvsim.allocators.pytorch.counters import Counters
from kvsim.allocators.pytorch.settings import (
    GRAIN,
    LARGE_SEGMENT,
    NO_LIMIT,
    SMALL,
    Settings,
    segment_bytes,
)
from kvsim.allocators.pytorch.snapshot import Segment, segments_of


class CachingAllocator:
    """Allocates bytes of a card to tensors, like `torch.cuda`.

    Parameters
    ----------
    total_bytes : int
        The card's memory.
    settings : Settings
        Settings of PYTORCH_CUDA_ALLOC_CONF.
    fraction : float, optional
        Share of the memory that may be used (`torch.cuda.set_per_process_memory_fraction`); None: all
        of it, and no garbage collection.

    Attributes
    ----------
    card, counters : Card, Counters
        What was taken from the card; what torch reports.
    pools : tuple of Pool
        The small and the large one.
    allocated : set of Block
        Blocks held by tensors.
    journal : Journal or None
        Records blocks before they change.
    """

    def __init__(
        self, total_bytes: int, settings: Settings | None = None, fraction: float | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.card = Card(total_bytes)
        self.counters = Counters()
        self.allowed_bytes = None if fraction is None else int(fraction * total_bytes)
        self._small, self._large = self.pools = Pool(small=True), Pool(small=False)
        self.allocated: set[Block] = set()
        self.journal: Journal | None = None
        self._ages = fraction is not None and self.settings.collect_above > 0

    # -- allocating ------------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0) -> Block | None:
        """Allocate a block for `size` bytes (1 or more); None: out of memory."""
        rounded = self.settings.round_size(size)
        pool = self._small if rounded <= SMALL else self._large
        block = self._best_fit(pool, stream, rounded) or self._from_card(pool, stream, rounded)
        if block is None:
            self.counters.ooms += 1
            return None
        return self._allocate(block, rounded, size)

    def free(self, block: Block) -> None:
        """Free a block and merge it with its free neighbours."""
        counters, small = self.counters, block.pool.small
        before, after = block.prev, block.next
        if self.journal is not None:
            self.journal.touch(block, before, after, before and before.prev, after and after.next)
        self.allocated.remove(block)
        block.allocated = False
        counters.allocated.add(-block.size, small)
        counters.requested.add(-block.requested, small)
        blocks = size = 0
        for neighbour in (before, after):
            absorbed = block.absorb(neighbour)
            if absorbed:
                blocks -= 1
                size -= absorbed
        block.pool.add(block)
        if block.range is not None:
            return
        if block.is_split:
            blocks += 1
            size += block.size
        if size:
            counters.inactive_split_bytes.add(size, small)
        if blocks:
            counters.inactive_split.add(blocks, small)

    def empty_cache(self) -> None:
        """Free every segment that is entirely free."""
        self.counters.syncs += 1
        for pool in (self._large, self._small):
            free = pool.free()
            for block in free:
                if block.range is None and not block.is_split:
                    self._give_back(block)
            for block in free:
                if block.range is not None:
                    expandable.give_back(self.card, self.counters, block)

    # -- looking ------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """All segments by address."""
        return segments_of([*self._small.free(), *self._large.free(), *self.allocated])

    # -- finding ------------------------------------------------------------------------------

    def _best_fit(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Take the smallest free block that serves out of its pool."""
        pool.searches += self._ages
        free = pool.free_of(stream)
        place = bisect_left(free, (size, -1))
        if place == len(free):
            return None
        block = free[place][2]
        if block.range is not None:  # an expandable segment counts with the size it may reach
            while place + 1 < len(free) and _may_become(free[place + 1][2]) < _may_become(block):
                place += 1
                block = free[place][2]
        limit = self.settings.max_split_bytes
        if block.size >= (limit if size < limit else size + LARGE_SEGMENT):
            return None
        pool.remove(block)
        return block

    def _from_card(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Allocate a new segment, or grow an expandable one: directly, or after freeing others."""
        if self._ages:
            self._collect()
        block = self._segment(pool, stream, size)
        if block is None and self._give_oversize_back(pool, stream, size):
            block = self._segment(pool, stream, size)
        if block is None:
            self.empty_cache()
            self.counters.retries += 1
            block = self._segment(pool, stream, size)
        return block

    def _segment(self, pool: Pool, stream: int, size: int) -> Block | None:
        wanted = segment_bytes(size)
        if self.allowed_bytes is not None and self.counters.reserved.current + wanted > self.allowed_bytes:
            return None
        if self.settings.expandable:
            return expandable.take(self.card, self.counters, pool, stream, size)
        address = self.card.malloc(wanted)
        if address is None:
            return None
        self.counters.segments.add(1, pool.small)
        self.counters.reserved.add(wanted, pool.small)
        self.counters.device_allocs += 1
        return Block(pool, stream, address, wanted)

    def _allocate(self, block: Block, size: int, requested: int) -> Block:
        """Split the excess off a block that is not in a pool, and allocate the rest."""
        counters, pool = self.counters, block.pool
        if self.journal is not None:
            self.journal.touch(block, block.prev)
        left, was_split = block.size - size, block.is_split
        if left >= GRAIN and self._worth_splitting(pool, size, left):
            rest, block = block, block.cut(size)
            pool.add(rest)
            if block.range is None:
                counters.inactive_split_bytes.add(-size if was_split else left, pool.small)
                if not was_split:
                    counters.inactive_split.add(1, pool.small)
        elif was_split and block.range is None:
            counters.inactive_split_bytes.add(-block.size, pool.small)
            counters.inactive_split.add(-1, pool.small)
        block.allocated = True
        block.requested = requested
        self.allocated.add(block)
        counters.allocated.add(block.size, pool.small)
        counters.requested.add(requested, pool.small)
        return block

    def _worth_splitting(self, pool: Pool, size: int, left: int) -> bool:
        if pool.small or self.settings.expandable:
            return left >= GRAIN
        return size < self.settings.max_split_bytes and left > SMALL

    # -- freeing segments ---------------------------------------------------------------------

    def _give_back(self, block: Block) -> None:
        """Return a segment to the card, given the free block that covers it."""
        pool = block.pool
        pool.remove(block)
        self.card.free(block.addr)
        self.counters.segments.add(-1, pool.small)
        self.counters.reserved.add(-block.size, pool.small)
        self.counters.device_frees += 1

    def _give_oversize_back(self, pool: Pool, stream: int, size: int) -> bool:
        """Free the smallest oversize segment that makes room for `size`, or else several, largest first."""
        limit = self.settings.max_split_bytes
        if limit == NO_LIMIT or self.settings.expandable:
            return False
        wanted = max(size, limit)
        free = pool.free_of(stream)
        place = bisect_left(free, (wanted, -1))
        if place < len(free):
            self._give_back(free[place][2])
            return True
        given = 0
        while given < wanted and free and free[-1][0] >= limit:
            given += free[-1][0]
            self._give_back(free[-1][2])
        return given >= wanted

    def _collect(self) -> None:
        """Free unsplit large segments that were unused for long, until below the threshold."""
        assert self.allowed_bytes is not None
        too_much = self.counters.reserved.current - int(self.settings.collect_above * self.allowed_bytes)
        old = [block for block in self._large.free() if not block.is_split]
        searches = self._large.searches
        total_age = sum(searches - block.born for block in old)
        while too_much > 0 and old:
            mean_age = total_age / len(old)
            given = [block for block in old if searches - block.born >= mean_age]
            old = [block for block in old if searches - block.born < mean_age]
            for block in given:
                too_much -= block.size
                total_age -= searches - block.born
                self._give_back(block)


def _may_become(block: Block) -> int:
    """Bytes of a free block plus the unmapped one behind it."""
    behind = block.next
    return block.size + (behind.size if behind is not None and not behind.mapped else 0)
