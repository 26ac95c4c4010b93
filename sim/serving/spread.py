"""How the contexts of decoding sequences differ: the longest one, and their sum in whole tiles, at any clock.

A context is `base + clock`, so all grow alike and the longest stays the longest. The bases are in a heap;
sequences that left are dropped when they reach its top.

In `tile` steps each context begins exactly one new tile. So the sum of the contexts, each rounded up to whole
tiles, is exact when the clock is a multiple of `tile`. In between it grows by one token per sequence and
step, which is right on average.
"""

from heapq import heappop, heappush

from kvsim.sim.cost.step_cost import Spread


class Contexts:
    """The contexts of all sequences that decode.

    Parameters
    ----------
    tile : int
        Tokens of a tile, to whole multiples of which each context is rounded up.
    """

    def __init__(self, tile: int) -> None:
        self.tile = tile
        self._count = 0
        self._counted = 0  # the `at` for which `_rounded` holds, a multiple of the tile
        self._rounded = 0
        self._longest: list[int] = []  # heap of negative bases, some of which have left
        self._left: dict[int, int] = {}

    def add(self, base: int) -> None:
        """A sequence begins to decode."""
        self._count += 1
        self._rounded -= (base + self._counted) // -self.tile * self.tile
        heappush(self._longest, -base)

    def remove(self, base: int) -> None:
        """A sequence stops."""
        self._count -= 1
        self._rounded += (base + self._counted) // -self.tile * self.tile
        if base == -self._longest[0]:
            heappop(self._longest)
            self._drop_left()
        else:
            self._left[base] = self._left.get(base, 0) + 1

    def _drop_left(self) -> None:
        """Drop sequences that have left from the top of the heap."""
        longest, left = self._longest, self._left
        while longest and -longest[0] in left:
            base = -heappop(longest)
            left[base] -= 1
            if not left[base]:
                del left[base]

    def at(self, at: int) -> Spread:
        """The spread when each context is its base plus `at`, which never falls from one call to the next."""
        steps = at - self._counted
        if steps >= self.tile:
            whole = steps // self.tile * self.tile
            self._counted += whole
            self._rounded += whole * self._count
            steps -= whole
        found = at - self._longest[0], self._rounded + steps * self._count
        return tuple.__new__(Spread, found)  # what Spread(*found) does, at a quarter of its price
