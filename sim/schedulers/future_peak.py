"""The peak memory that running requests will ever need: LightLLM's admission rule.

    each request    a: tokens that it holds, b: tokens still to come
    sorted by b, longest first                  need_i = a_1 + ... + a_i + i * b_i      peak = max need_i

When the i-th request ends, it and those before it have each grown by b_i, and those after it are gone. So
`need_i` is the memory at that instant, and the peak is at the end of some request.
"""

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

OVERLAP_TOKENS = 6
"""Tokens that LightLLM adds to every answer, since steps are decided ahead."""


class Expected(NamedTuple):
    """What the rule knows of a request: tokens held, including the next one, and tokens still to come."""

    held: int
    to_come: int


def expected(prompt: int, generated: int, stored: int, longest: int) -> Expected:
    """A request with at most `longest` answer tokens, `generated` of which exist."""
    held = max(prompt + generated, stored) + 1
    return Expected(held, max(0, longest - generated - 1) + OVERLAP_TOKENS)


def longest_answer(most: int, generated: int, usual: int) -> int:
    """The answer length expected while memory is idle: `usual`, or a tenth more than exists, up to `most`."""
    return min(most, max(int(1.1 * generated), usual))


class Peak:
    """Requests ordered by tokens still to come, and the most memory that they will need at once."""

    def __init__(self, requests: Iterable[Expected] = ()) -> None:
        self._sorted = sorted((-each.to_come, each.held) for each in requests)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, request: Expected) -> int:
        """Add a request; returns the new peak."""
        insort(self._sorted, (-request.to_come, request.held))
        return self.tokens()

    def tokens(self) -> int:
        """The peak; 0 without requests."""
        peak = total = 0
        for count, (minus_to_come, held) in enumerate(self._sorted, 1):
            total += held
            need = total - count * minus_to_come
            if need > peak:
                peak = need
        return peak
