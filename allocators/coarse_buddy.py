"""Buddy with a smallest chunk: nothing below 128 slots is ever split off.

    |#### tokens ####|~~ reserved ~~|...... internal: up to the next power of two, at least 128 ......|

Waste of a sequence: that of `buddy`, and `128 - bound` for those that need less. Real allocators have a
smallest chunk, of which papers rarely tell; `sim reproduce` measures how much hangs on it.
"""

from allocators.buddy import Buddy

SMALLEST_ORDER = 7


class CoarseBuddy(Buddy):
    """Power-of-two chunks of at least 128 slots."""

    @staticmethod
    def _order(tokens: int, bound: int) -> int:
        return max(Buddy._order(tokens, bound), SMALLEST_ORDER)
