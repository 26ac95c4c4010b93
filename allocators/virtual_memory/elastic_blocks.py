"""kvcached's blocks, cut out of physical pages: mapped when the first is allocated, unmapped after the last.

    page 0 |## block 0 ##|## block 1 ##|  . |     block of 3 straddles pages 0 and 1: never used
    page 1 |  . |## block 3 ##|## block 4 ##|     page p holds blocks ceil(p P / b) ... floor((p+1) P / b) - 1

*Allocate* n blocks: from those set aside (`reserve`); from a partly free page (page_choice.py); else from a
new page. In a page blocks go in the order of its list. Where a page is wanted and there is none, blocks go
back to where they came from and the answer is None. *Free*: blocks go to the end of their page's list; an
empty page goes back to the pool; a page with one block stays mapped.

`resize` to less than is in use gives back what was set aside and starts a shrink: nothing but partly free
pages is allocated until few enough blocks live.

Source: kvcached/kv_cache_manager.py, csrc/page_allocator.cpp of ovg-project/kvcached e8e6406.
"""

from collections.abc import Iterable, Sequence

from kvsim.allocators.base import InvariantError
from kvsim.allocators.virtual_memory.hash_order import hash_order
from kvsim.allocators.virtual_memory.page_choice import best_page, fewest_free
from kvsim.allocators.virtual_memory.page_pool import NONE, PagePool

PAGE_GRAIN = 2 << 20
"""pages are multiples of so many bytes"""


class ElasticBlocks:
    """Blocks of `block_bytes` in the pages of a pool.

    Parameters
    ----------
    pool : PagePool
        The pages.
    page_bytes, block_bytes : int
        Of one page and one block, in one layer's K.
    null_block : bool
        Whether block 0 is set aside for good.

    Attributes
    ----------
    part_free : dict of list
        Of pages that are partly free: their free blocks in the order in which they will be allocated.
    full : dict
        Pages without a free block, in the order in which they became full.
    set_aside : list of int
        Blocks allocated to nobody yet, by `reserve`.
    free_blocks : int
        Of pages that are partly free.
    shrinks_to : int or None
        Blocks that may live when a shrink ends.
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
        self._least = NONE  # a page that is partly free and has fewer free blocks than any other, if known
        self._start()

    @property
    def blocks_per_page(self) -> int:
        """Whole blocks of a page; where blocks straddle, some pages hold one less."""
        return self.page_bytes // self.block_bytes

    def blocks_of(self, page: int) -> range:
        """The blocks that lie in a page as a whole."""
        first = -(-page * self.page_bytes // self.block_bytes)
        return range(first, (page + 1) * self.page_bytes // self.block_bytes)

    def page_of(self, block: int) -> int:
        """The page in which a block begins."""
        return block * self.block_bytes // self.page_bytes

    @property
    def available(self) -> int:
        """Blocks that could be had, as the scheduler is told; too many where blocks straddle."""
        mapped = self.free_blocks + len(self.set_aside)
        if self.shrinks_to is not None:
            return mapped
        pages = min(self.pool.available, self.pool.physical_left + len(self.pool.reserved))
        return mapped + pages * self.blocks_per_page

    @property
    def allocated_blocks(self) -> int:
        """Blocks that live, as a shrink counts them: unused parts of pages included."""
        return (len(self.full) + len(self.part_free)) * self.blocks_per_page - self.free_blocks

    def allocate(self, count: int) -> list[int] | None:
        """Allocate so many blocks, or None."""
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
        """`allocate(1)` so many times, for which there is room: page by page, as one begun has the fewest."""
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
        """The next free blocks of a page, so many at most; it becomes the last partly free one, or full."""
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
        """Take blocks back; `order` is that of their pages, by default the one that C++ gives them."""
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
        """Set blocks aside, so that so many are; those set aside before are among them."""
        blocks = self.allocate(count)
        if blocks is None:
            return False
        self.set_aside += blocks
        return True

    def free_reserved(self) -> None:
        """Give back what was set aside."""
        blocks, self.set_aside = self.set_aside, []
        self.give_back(blocks)

    def resize(self, range_bytes: int) -> bool:
        """Make the range (of one layer's K) so large; False when that must wait until blocks come back."""
        if self.pool.resize(range_bytes // self.page_bytes):
            self.shrinks_to = None
            return True
        self.free_reserved()
        self.shrinks_to = range_bytes // self.block_bytes
        return False

    def clear(self) -> None:
        """Take everything back and unmap it."""
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
        """Set block 0 aside where that is wanted; then the thread starts."""
        ahead, self.pool.ahead = self.pool.ahead, False
        if self.null_block and self.allocate(1) != [0]:
            raise InvariantError("block 0 must be the first to be allocated")
        self.pool.ahead = ahead
        if ahead:
            self.pool.map_ahead()

    def _new_page(self) -> int:
        """A page from the pool that has a block; those that have none are parked as full."""
        while (page := self.pool.take()) != NONE:
            blocks = self.blocks_of(page)
            if blocks:
                self.part_free[page] = list(blocks)
                self.free_blocks += len(blocks)
                return page
            self.full[page] = None
        return NONE

    def _give_back_to(self, page: int, blocks: list[int]) -> bool:
        """Add free blocks to a page, which becomes the last that is partly free; True: it is empty now."""
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
