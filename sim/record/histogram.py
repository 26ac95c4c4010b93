"""A histogram of non-negative integers with weights, in bounded memory.

Values below 1,024 are exact; above, a bin is at most 0.2 % wide, and quantiles return its middle
(error <= 0.1 % below 2**53). Count, sum and maximum are exact. It is made for the gaps between tokens,
hundreds of millions in a long run, so values are added in bulk.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from kvsim.sim.record.products import sums_of_products
from kvsim.sim.workload import Int64Column

MANTISSA_BITS = 10
BINS = 64 << MANTISSA_BITS


class Histogram:
    """Weighted counts in bins of constant relative width."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.maximum = 0
        self._weights = np.zeros(BINS, dtype=np.int64)

    def add(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        self.count += other.count
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)
        self._weights += other._weights

    def add_spans(self, spans: Sequence[Sequence[int]], weights: Sequence[int]) -> None:
        """Count gaps: for each span, `weight` times those between 0 and its numbers in turn."""
        counts = list(map(len, spans))
        ends = np.fromiter(chain.from_iterable(spans), np.int64, sum(counts))
        self.add_ends(ends, np.array(counts), np.array(weights, np.int64))

    def add_ends(self, ends: Int64Column, lengths: Int64Column, weights: Int64Column) -> None:
        """The same for concatenated spans with these lengths."""
        behind = lengths.cumsum()
        self.count += int(weights @ lengths)
        self.total += sums_of_products(weights[None], ends[behind - 1])[0]
        gaps = np.diff(ends, prepend=0)
        firsts = behind - lengths
        gaps[firsts] = ends[firsts]
        repeated = weights.repeat(lengths)
        self.maximum = max(self.maximum, int(gaps.max(where=repeated > 0, initial=0)))
        shifts = np.maximum(np.frexp(gaps.astype(np.float64))[1] - MANTISSA_BITS, 0)
        bins = (shifts << MANTISSA_BITS) | (gaps >> shifts)
        found = np.bincount(bins, weights=repeated)  # float64: exact, as sums stay below 2**53
        self._weights[: len(found)] += found.astype(np.int64)

    def add_bins(self, bins: list[int], weights: list[int], count: int, total: int, maximum: int) -> None:
        """Count `count` gaps that are already binned, each bin once; they sum to `total`."""
        self.count += count
        self.total += total
        self.maximum = max(self.maximum, maximum)
        self._weights[bins] += np.array(weights, dtype=np.int64)

    def mean(self) -> float | None:
        """Exact mean; None if empty."""
        return self.total / self.count if self.count else None

    def bins(self) -> list[tuple[int, int]]:
        """(lower end, weight) of every nonempty bin, ascending."""
        used = np.flatnonzero(self._weights)
        lows = (used & ((1 << MANTISSA_BITS) - 1)) << (used >> MANTISSA_BITS)
        return list(zip(lows.tolist(), self._weights[used].tolist(), strict=True))

    def quantiles(self, shares: list[float]) -> list[float | None]:
        """The smallest values that at least the given shares (0..1) do not exceed; None if empty."""
        if not self.count:
            return [None] * len(shares)
        lows, weights = zip(*self.bins(), strict=True)
        at_or_below = np.cumsum(weights)
        last = len(lows) - 1
        return [
            _middle(lows[min(int(np.searchsorted(at_or_below, share * self.count)), last)], self.maximum)
            for share in shares
        ]


def _middle(low: int, maximum: int) -> float:
    """The middle of a bin, but at most the largest value seen."""
    width = 1 << max(low.bit_length() - MANTISSA_BITS, 0)
    return min(low + (width - 1) / 2, float(maximum))
