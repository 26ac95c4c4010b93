"""Jenga's large pages as the memory of groups: a pool of small pages for each kind, over one arena.

    block of a kind   large page * small pages in one + place + 1

Whoever releases a page says how long the text is that ends there, so that of pages last used together the
ends of prefixes go first, of every kind alike.
"""

from collections.abc import Sequence

from kvsim.allocators.hybrid.large_books import Small
from kvsim.allocators.hybrid.large_pages import LargePages
from kvsim.allocators.hybrid.memory import Memory
from kvsim.allocators.hybrid.pool import Blocks


class SmallPages(Blocks):
    """The small pages of one kind."""

    def __init__(self, arena: LargePages, kind: int, caching: bool) -> None:
        self._arena, self._kind, self._each = arena, kind, arena.each[kind]
        super().__init__(arena.count * arena.each[kind], caching)

    def page(self, block: int) -> Small:
        """Where a block is."""
        return divmod(block - 1, self._each)

    def block(self, page: Small) -> int:
        """The block that is there."""
        return page[0] * self._each + page[1] + 1

    def _choose(self, owner: int) -> int:
        page = self._arena.take(self._kind, owner)
        if page is None:
            raise RuntimeError(f"no small page of kind {self._kind} is left")
        self.free -= 1
        return self.block(page)

    def _unlink(self, block: int) -> None:
        self.cached -= self.is_cached(block)
        self._arena.hit(self.page(block))
        self.free -= 1

    def _set_free(self, unknown: Sequence[int], known: Sequence[int]) -> None:
        for block in unknown:
            self._arena.release(self.page(block))
        for block in known:
            page = self.page(block)
            self._arena.use(page, self.key_tokens[block])
            self._arena.release(page, keep=True)
            self.cached += self.is_cached(block)
        self.free += len(unknown) + len(known)

    def was_evicted(self, page: Small) -> None:
        """The arena gives up a cached page."""
        self.forget(self.block(page))


class LargePageMemory(Memory):
    """A pool for each kind over one arena.

    Parameters
    ----------
    capacity, page_sizes : int, sequence of int
        In one unit; what does not fill a large page is left out.
    caching : bool
        Whether prefixes are kept.
    packs : bool
        Whether free pages beside other requests' go before free large pages.
    """

    def __init__(self, capacity: int, page_sizes: Sequence[int], caching: bool, packs: bool = False) -> None:
        self.arena = LargePages(capacity, page_sizes, self._evicted, packs)
        if self.arena.count < len(page_sizes):
            raise ValueError(
                f"capacity_slots must hold a large page of {self.arena.large_bytes:,}, the least common "
                f"multiple of pages of {' and '.join(f'{size:,}' for size in page_sizes)}, for each kind, "
                f"got {capacity:,}"
            )
        self.kinds = [SmallPages(self.arena, kind, caching) for kind in range(len(page_sizes))]
        super().__init__(self.kinds)

    def _evicted(self, kind: int, page: Small) -> None:
        self.kinds[kind].was_evicted(page)

    def room(self, needed: Sequence[int], hits: Sequence[Sequence[int]], spare: int = 0) -> bool:
        """Whether all kinds find theirs, in some order; the arena then keeps to one that does."""
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
        """Whether so many would fit, each kind in large pages of its own."""
        large = (-(-count // each) for count, each in zip(needed, self.arena.each, strict=True))
        return sum(large) <= self.arena.count

    def tick(self) -> None:
        """What is let go from now on is used later."""
        self.arena.tick()
