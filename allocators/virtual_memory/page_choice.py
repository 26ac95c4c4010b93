"""From which partly free page kvcached allocates: by best fit, so that other pages become empty.

free blocks of pages    a: 2   b: 5   c: 3   d: 3
wanted 3                c, the first of those with the fewest that hold all
wanted 7                b, the one with the most; then again, for the other 2
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from kvsim.allocators.virtual_memory.page_pool import NONE


def best_page(free: Mapping[int, Sequence[int]], count: int) -> int:
    """The page with the fewest free blocks that hold so many, else the most; the first of equals."""
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
    """The same for one block: the first page with the fewest."""
    if not free:
        return NONE
    sizes = list(map(len, free.values()))
    return next(islice(free, sizes.index(min(sizes)), None))
