"""Exact sums of slots times picoseconds, in bulk if 64 bits suffice."""

from operator import mul
from typing import Any, Final

import numpy as np

Times = np.ndarray[tuple[int], np.dtype[Any]]
"""Picoseconds: int64, or Python integers if 64 bits may not suffice."""

FITS: Final = 1 << 62
PART_BITS: Final = 21
PART: Final = (1 << PART_BITS) - 1


def sums_of_products(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]], times_ps: Times) -> list[int]:
    """For each row, the sum of its numbers times these times, none of which is negative.

    Times are split into three parts of 21 bits, so that sums fit in 64 bits.
    """
    most = int(rows.max(initial=0)) * len(times_ps)
    if times_ps.dtype != np.int64 or most << PART_BITS >= FITS:
        return [sum(map(mul, row, times_ps.tolist())) for row in rows.tolist()]
    parts = np.stack((times_ps & PART, times_ps >> PART_BITS & PART, times_ps >> 2 * PART_BITS), axis=1)
    return [
        low + (middle << PART_BITS) + (high << 2 * PART_BITS) for low, middle, high in (rows @ parts).tolist()
    ]
