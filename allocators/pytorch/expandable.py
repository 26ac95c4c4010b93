"""Expandable segments: one virtual range per stream and pool, with pages mapped as it grows.

    range, 9/8 of the card   |= allocated =|.. free ..|= allocated =|~~~~~~~~ unmapped ~~~~~~~~~|
                              pages of 2 MiB (small pool) or 20 MiB (large pool) mapped so far

The lowest address is taken at which consecutive free and unmapped blocks suffice. A shortage unmaps the whole
pages of free blocks, wherever they are.
"""

from kvsim.allocators.pytorch.blocks import Block, Pool, Range
from kvsim.allocators.pytorch.card import Card
from kvsim.allocators.pytorch.counters import Counters
from kvsim.allocators.pytorch.settings import LARGE_SEGMENT, SMALL_SEGMENT


def take(card: Card, counters: Counters, pool: Pool, stream: int, size: int) -> Block | None:
    """Take a block of at least `size` bytes out of its pool; None if the card has too few pages.

    Pages mapped before the card refused stay mapped and free.
    """
    block = _lowest(card, pool, stream, size)
    if not block.mapped and not _map(card, counters, block, min(block.size, size)):
        return None
    while block.size < size:  # free, then unmapped: map the rest, which merges with the block before it
        rest = block.next
        assert rest is not None
        if not _map(card, counters, rest, min(size - block.size, rest.size)):
            return None
        block = rest
    pool.remove(block)
    return block


def give_back(card: Card, counters: Counters, block: Block) -> int:
    """Unmap the whole pages of a free block; returns their bytes."""
    within = block.range
    assert within is not None
    page = within.page_bytes
    first = -(-(block.addr - within.start) // page)
    end = (block.addr + block.size - within.start) // page
    if first >= end:
        return 0
    pool, start, size = block.pool, within.start + first * page, (end - first) * page
    pool.remove(block)
    card.release(end - first, page)
    before, after = start - block.addr, block.addr + block.size - (start + size)
    if before:
        pool.add(block.cut(before))
    if after:
        behind = Block(pool, block.stream, start + size, after, within)
        behind.link(block, block.next)
        pool.add(behind)
    block.addr, block.size, block.mapped = start, size, False
    block.absorb(block.prev)
    block.absorb(block.next)
    if block.is_split:
        pool.add(block)
    else:  # no page is left in the range
        card.unreserve(within.start)
    counters.reserved.add(-size, pool.small)
    counters.device_frees += 1
    return size


def _lowest(card: Card, pool: Pool, stream: int, size: int) -> Block:
    """The first of consecutive free or unmapped blocks of `size` bytes; a new range if there are none."""
    for unmapped in pool.unmapped_of(stream):
        before = unmapped.prev
        first = unmapped if before is None or before.allocated else before
        room = 0
        block: Block | None = first
        while block is not None and not block.allocated and room < size:
            room += block.size
            block = block.next
        if room >= size:
            return first
    page = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
    length = -(-(card.total_bytes + card.total_bytes // 8) // page) * page
    within = Range(card.reserve(length), length, page)
    whole = Block(pool, stream, within.start, length, within)
    whole.mapped = False
    pool.add(whole)
    return whole


def _map(card: Card, counters: Counters, block: Block, size: int) -> bool:
    """Map the pages for the first `size` bytes of an unmapped block, and merge it with free neighbours."""
    within, pool = block.range, block.pool
    assert within is not None
    pages = -(-size // within.page_bytes)
    if not card.create(pages, within.page_bytes):
        return False
    mapped = pages * within.page_bytes
    pool.remove(block)
    block.mapped = True
    if mapped < block.size:
        rest = Block(pool, block.stream, block.addr + mapped, block.size - mapped, within)
        rest.mapped = False
        rest.link(block, block.next)
        pool.add(rest)
        block.size = mapped
    block.absorb(block.prev)
    block.absorb(block.next)
    pool.add(block)
    counters.reserved.add(mapped, pool.small)
    counters.device_allocs += 1
    return True
