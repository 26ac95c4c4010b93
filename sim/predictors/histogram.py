"""Histogram: the mean length of the last 1,000 answers that were longer than this one is so far.

Before any answer is known, and for answers longer than all of these, the longest possible length is
predicted. So all requests that wait for their first token get the same prediction, and differ once they run:
this is the mean residual life, on which Gittins' index and Past-Future's admission are based.
"""

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate

from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request

PAST = 1000
"""Number of answers remembered."""


class Histogram(Predictor):
    """Learns from complete answers."""

    moves = True

    def __init__(self, argument: str, longest: int) -> None:
        super().__init__(argument, longest)
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums: list[int] = []

    def tokens(self, request: Request, generated: int) -> int:
        first = bisect_right(self._sorted, generated)
        longer = len(self._sorted) - first
        if not longer:
            return self.longest
        if not self._sums:
            self._sums = list(accumulate(self._sorted, initial=0))
        return -(-(self._sums[-1] - self._sums[first]) // longer)

    def finished(self, request: Request) -> None:
        if len(self._recent) == PAST:
            oldest = self._recent.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._recent.append(request.output_tokens)
        insort(self._sorted, request.output_tokens)
        self._sums = []
