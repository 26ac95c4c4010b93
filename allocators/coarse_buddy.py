"""Buddy with chunks of at least 16 slots.

    |#### tokens ####|~~ reserved ~~|...... internal: up to the next power of two, at least 16 ......|

Waste per sequence: that of `buddy`, plus `16 - bound` for sequences that need less. The buddy allocator in
the PagedAttention paper's baselines works on blocks of 16 slots; `sim reproduce` uses this one for them.
"""

from kvsim.allocators.buddy import Buddy

SMALLEST_ORDER = 4


class CoarseBuddy(Buddy):
    """Power-of-two chunks of at least 16 slots."""

    @staticmethod
    def _order(tokens: int, bound: int) -> int:
        return max(Buddy._order(tokens, bound), SMALLEST_ORDER)
