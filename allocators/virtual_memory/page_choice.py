"""Chooses the partly free page from which kvcached allocates: best fit, so that other pages empty.

free blocks of pages    a: 2   b: 5   c: 3   d: 3
wanted 3                c, the first of the smallest pages that hold all
wanted 7                b, the largest; then again, for the other 2
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from kvsim.allocators.virtual_memory.page_pool import NONE


def best_page(free: Mapping[int, Sequence[int]], count: int) -> int:
    """The page with the fewest free blocks but at least `count`, else the most; the first of equals."""
    found, best, most, largest = NONE, 0, NONE, 0
    for page, blocks in free.items():
        size = len(blocks)
        if size >= count:
            if found == NONE or size < best:
                found, best = page, size
                if size == count:
                    break
        elif size > largest:
            most, largest = page, size
    return most if found == NONE else found


def fewest_free(free: Mapping[int, Sequence[int]]) -> int:
    """`best_page` for one block: the first page with the fewest free blocks."""
    if not free:
        return NONE
    sizes = list(map(len, free.values()))
    return next(islice(free, sizes.index(min(sizes)), None))
