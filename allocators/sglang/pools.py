"""SGLang's pools: a list of free tokens, a list of free pages, and two of them for models with windows.

    TokenPool   [ 7 8 9 | 3 1 ]   taken from the front, freed to the end: slots of one token
    PagePool    [ 3 1 | 7 8 9 ]   taken from the front, freed to the front: pages of several tokens

Page 0 is padding, so slots start at the page size. A sequence first fills its last page. With `need_sort`,
freed pages wait in a separate list; when the free list is too short, both are merged and sorted.

A refused call returns None and changes nothing, except that the two lists may be merged. Source: SGLang
0.5.23, `mem_cache/allocator/token.py` and `paged.py`.
"""

from collections import deque
from collections.abc import Sequence


class PagePool:
    """Pages numbered from 1, of `page_size` slots each: page p holds the slots from `p * page_size` on.

    Parameters
    ----------
    pages, page_size : int
        Number of pages, and slots per page.
    need_sort : bool
        Whether freed pages are set aside, and allocated in numerical order.
    """

    in_front = True
    """Whether freed pages are allocated next, not last."""

    def __init__(self, pages: int, page_size: int, need_sort: bool = False) -> None:
        self.pages = pages
        self.page_size = page_size
        self.need_sort = need_sort
        self.free: deque[int] = deque(range(1, pages + 1))
        self.staged: list[int] = []

    @property
    def available(self) -> int:
        """Slots that can be allocated."""
        return (len(self.free) + len(self.staged)) * self.page_size

    # -- pages --------------------------------------------------------------------------------

    def take(self, pages: int, at_most: int | None = None) -> list[int] | None:
        """Take the next `pages` pages; None: there are fewer.

        The lists are merged if the free one is shorter than `at_most`, a quick upper bound of `pages`.
        """
        if len(self.free) < (pages if at_most is None else at_most):
            self._merge()
        free = self.free
        if pages > len(free):
            return None
        return [free.popleft() for _ in range(pages)]

    def give(self, pages: Sequence[int]) -> None:
        """Free pages, each once, in this order."""
        if self.need_sort:
            self.staged += pages
        elif self.in_front:
            self.free.extendleft(reversed(pages))
        else:
            self.free += pages

    def _merge(self) -> None:
        if self.staged:
            self.free = deque(sorted([*self.free, *self.staged]))
            self.staged = []


class TokenPool(PagePool):
    """One-token pages: freed ones are allocated last."""

    in_front = False

    def __init__(self, slots: int, need_sort: bool = False) -> None:
        super().__init__(slots, 1, need_sort)

    def take(self, pages: int, at_most: int | None = None) -> list[int] | None:
        """As in the base; the lists are merged only if necessary."""
        return super().take(pages)


def pool_of(pages: int, page_size: int, need_sort: bool = False) -> PagePool:
    """The pool that SGLang uses for a page size."""
    return TokenPool(pages, need_sort) if page_size == 1 else PagePool(pages, page_size, need_sort)
