"""The most memory that running requests will ever need at once: LightLLM's rule of admission.

    each request    a: tokens that it holds, b: tokens that are still to come
    sorted by b, the longest to come first      need_i = a_1 + ... + a_i + i * b_i      peak = max need_i

When the i-th request ends, those before it, and it, have each grown by b_i, and those behind it are gone. So
`need_i` is the memory at that instant, and the peak is at the end of some request.
"""

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

OVERLAP_TOKENS = 6
"""Tokens that LightLLM adds to every answer: steps are decided ahead."""


class Expected(NamedTuple):
    """A request as the rule sees it: tokens that it holds with the next one, and those still to come."""

    held: int
    to_come: int


def expected(prompt: int, generated: int, stored: int, longest: int) -> Expected:
    """A request that may have `longest` tokens of an answer, of which `generated` are there."""
    held = max(prompt + generated, stored) + 1
    return Expected(held, max(0, longest - generated - 1) + OVERLAP_TOKENS)


def longest_answer(most: int, generated: int, usual: int) -> int:
    """The answer to expect while memory is idle: `usual`, or a tenth more than there is; at most `most`."""
    return min(most, max(int(1.1 * generated), usual))


class Peak:
    """Requests by what they have still to come, and the most memory that they will need at once."""

    def __init__(self, requests: Iterable[Expected] = ()) -> None:
        self._sorted = sorted((-each.to_come, each.held) for each in requests)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, request: Expected) -> int:
        """One more; returns the peak with it."""
        insort(self._sorted, (-request.to_come, request.held))
        return self.tokens()

    def tokens(self) -> int:
        """The peak: 0 without requests."""
        peak = total = 0
        for count, (minus_to_come, held) in enumerate(self._sorted, 1):
            total += held
            need = total - count * minus_to_come
            if need > peak:
                peak = need
        return peak
