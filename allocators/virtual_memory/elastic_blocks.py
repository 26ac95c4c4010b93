"""kvcached's blocks, cut from physical pages: mapped for the first block, unmapped after the last.

    page 0 |## block 0 ##|## block 1 ##|  . |     block of 3 straddles pages 0 and 1: never used
    page 1 |  . |## block 3 ##|## block 4 ##|     page p holds blocks ceil(p P / b) ... floor((p+1) P / b) - 1

*Allocate* n blocks: from those set aside (`reserve`); from a partly free page (page_choice.py); else from a
new page. Within a page, blocks are allocated in the order of its list. If a page is needed and there is none,
the blocks are put back and the call returns None. *Free*: blocks go to the end of their page's list; an empty
page returns to the pool; a page with one block stays mapped.

`resize` to less than is in use frees what was set aside and starts a shrink: only partly free pages are used
for allocation until few enough blocks are alive.

Source: kvcached/kv_cache_manager.py, csrc/page_allocator.cpp of ovg-project/kvcached e8e6406.
"""

from collections.abc import Iterable, Sequence

from kvsim.allocators.base import InvariantError
from kvsim.allocators.virtual_memory.hash_order import hash_order
from kvsim.allocators.virtual_memory.page_choice import best_page, fewest_free
from kvsim.allocators.virtual_memory.page_pool import NONE, PagePool

PAGE_GRAIN = 2 << 20
"""pages are multiples of this many bytes"""


class ElasticBlocks:
    """Blocks of `block_bytes` in the pages of a pool.

    Parameters
    ----------
    pool : PagePool
        The pages.
    page_bytes, block_bytes : int
        Size of one page and one block, in one layer's K.
    null_block : bool
        Whether block 0 is permanently set aside.

    Attributes
    ----------
    part_free : dict of list
        By partly free page: its free blocks in allocation order.
    full : dict
        Pages without a free block, in the order in which they became full.
    set_aside : list of int
        Blocks set aside by `reserve` and not yet allocated to a sequence.
    free_blocks : int
        Free blocks in partly free pages.
    shrinks_to : int or None
        Maximum live blocks when a shrink ends.
    """

    def __init__(self, pool: PagePool, page_bytes: int, block_bytes: int, null_block: bool = False) -> None:
        if block_bytes > page_bytes:
            fitting = -(-block_bytes // PAGE_GRAIN) * PAGE_GRAIN
            raise ValueError(
                f"a block of {block_bytes:,} bytes does not fit a page of {page_bytes:,}; "
                f"it would fit one of {fitting >> 20} MiB"
            )
        self.pool = pool
        self.page_bytes = page_bytes
        self.block_bytes = block_bytes
        self.null_block = null_block
        self.part_free: dict[int, list[int]] = {}
        self.full: dict[int, None] = {}
        self.set_aside: list[int] = []
        self.free_blocks = 0
        self.shrinks_to: int | None = None
        self._least = NONE  # the partly free page with the fewest free blocks, if known
        self._start()

    @property
    def blocks_per_page(self) -> int:
        """Whole blocks per page; if blocks straddle pages, some pages hold one fewer."""
        return self.page_bytes // self.block_bytes

    def blocks_of(self, page: int) -> range:
        """The blocks that lie entirely within a page."""
        first = -(-page * self.page_bytes // self.block_bytes)
        return range(first, (page + 1) * self.page_bytes // self.block_bytes)

    def page_of(self, block: int) -> int:
        """The page in which a block starts."""
        return block * self.block_bytes // self.page_bytes

    @property
    def available(self) -> int:
        """Allocatable blocks, as reported to the scheduler; too many if blocks straddle pages."""
        mapped = self.free_blocks + len(self.set_aside)
        if self.shrinks_to is not None:
            return mapped
        pages = min(self.pool.available, self.pool.physical_left + len(self.pool.reserved))
        return mapped + pages * self.blocks_per_page

    @property
    def allocated_blocks(self) -> int:
        """Live blocks as a shrink counts them, which includes unused parts of pages."""
        return (len(self.full) + len(self.part_free)) * self.blocks_per_page - self.free_blocks

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` blocks, or None."""
        if self.available < count:
            return None
        blocks = self.set_aside[:count]
        del self.set_aside[:count]
        prepared = len(blocks)
        self._least = NONE
        while len(blocks) < count:
            page = best_page(self.part_free, count - len(blocks))
            if page == NONE:
                page = self._new_page()
            if page == NONE:
                self.give_back(blocks[prepared:])
                self.set_aside[:0] = blocks[:prepared]
                return None
            blocks += self._allocate_of(page, count - len(blocks))
        return blocks

    def allocate_singly(self, count: int) -> list[int]:
        """`allocate(1)` `count` times, given room: page by page, as a started page has the fewest free."""
        blocks: list[int] = []
        while len(blocks) < count:
            if self.set_aside:
                blocks += self.allocate(1) or ()
                continue
            page = self._least if self._least in self.part_free else fewest_free(self.part_free)
            if page == NONE:
                page = self._new_page()
            if page == NONE:
                raise InvariantError(f"{count} blocks were to be had, {len(blocks)} are")
            blocks += self._allocate_of(page, count - len(blocks))
            self._least = page
        return blocks

    def _allocate_of(self, page: int, most: int) -> list[int]:
        """Take up to `most` free blocks of a page, which becomes the last partly free one, or full."""
        free = self.part_free.pop(page)
        taken = free[:most]
        del free[: len(taken)]
        self.free_blocks -= len(taken)
        if free:
            self.part_free[page] = free
        else:
            self.full[page] = None
        return taken

    def give_back(self, blocks: Sequence[int], order: Iterable[int] | None = None) -> None:
        """Free blocks; `order` is the order of their pages, by default that of the C++ map."""
        if not blocks:
            return
        groups: dict[int, list[int]] = {}
        for block in blocks:
            groups.setdefault(self.page_of(block), []).append(block)
        if order is None:
            order = hash_order(list(groups), len(blocks) // self.blocks_per_page + 1)
        empty = [page for page in order if self._give_back_to(page, groups[page])]
        if empty:
            self.pool.give_back(empty)
        if self.shrinks_to is not None and self.allocated_blocks <= self.shrinks_to:
            self.pool.resize(self.shrinks_to * self.block_bytes // self.page_bytes)
            self.shrinks_to = None

    def occupancy(self, page: int) -> int:
        """Blocks of a page that are allocated or set aside."""
        if page in self.full or page in self.part_free:
            return len(self.blocks_of(page)) - len(self.part_free.get(page, ()))
        return 0

    def reserve(self, count: int) -> bool:
        """Set aside `count` blocks in total, including those set aside before."""
        blocks = self.allocate(count)
        if blocks is None:
            return False
        self.set_aside += blocks
        return True

    def free_reserved(self) -> None:
        """Free the blocks set aside."""
        blocks, self.set_aside = self.set_aside, []
        self.give_back(blocks)

    def resize(self, range_bytes: int) -> bool:
        """Set the size of the range (of one layer's K); False if that must wait until blocks are freed."""
        if self.pool.resize(range_bytes // self.page_bytes):
            self.shrinks_to = None
            return True
        self.free_reserved()
        self.shrinks_to = range_bytes // self.block_bytes
        return False

    def clear(self) -> None:
        """Free and unmap everything."""
        self.free_reserved()
        self.pool.give_back([*self.part_free, *self.full])
        self.pool.trim()
        self.pool.sort_free()
        self.part_free.clear()
        self.full.clear()
        self.free_blocks = 0
        self.shrinks_to = None
        self._start()

    def _start(self) -> None:
        """Set block 0 aside if `null_block`; then start the thread."""
        ahead, self.pool.ahead = self.pool.ahead, False
        if self.null_block and self.allocate(1) != [0]:
            raise InvariantError("block 0 must be the first to be allocated")
        self.pool.ahead = ahead
        if ahead:
            self.pool.map_ahead()

    def _new_page(self) -> int:
        """Get a page from the pool; pages that hold no whole block are parked as full."""
        while (page := self.pool.take()) != NONE:
            blocks = self.blocks_of(page)
            if blocks:
                self.part_free[page] = list(blocks)
                self.free_blocks += len(blocks)
                return page
            self.full[page] = None
        return NONE

    def _give_back_to(self, page: int, blocks: list[int]) -> bool:
        """Return free blocks to a page, which becomes the last partly free one; True if it is now empty."""
        free = self.part_free.pop(page, [])
        self._least = NONE
        self.full.pop(page, None)
        free += blocks
        self.free_blocks += len(blocks)
        if len(free) == len(self.blocks_of(page)):
            self.free_blocks -= len(free)
            return True
        self.part_free[page] = free
        return False
