"""How the contexts of decoding sequences differ: the longest, and their sum in whole tiles, at any clock.

A context is `base + clock`, so all grow alike and the longest stays the longest: a heap of bases, from which
those that left are dropped when they come to the top.

In `tile` steps each context begins exactly one new tile. So the sum of the contexts, each rounded up to whole
tiles, is counted where the clock is a multiple of `tile`, and grows by a token a sequence and step between:
right there, and right in the mean in between.
"""

from heapq import heappop, heappush

from kvsim.sim.cost.step_cost import Spread


class Contexts:
    """The contexts of all sequences that decode.

    Parameters
    ----------
    tile : int
        What each context is rounded up to whole multiples of.
    """

    def __init__(self, tile: int) -> None:
        self.tile = tile
        self._count = 0
        self._counted = 0  # the `at` that `_rounded` holds for: a multiple of the tile
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
        """Keep at the top of the heap one that is still there."""
        longest, left = self._longest, self._left
        while longest and -longest[0] in left:
            base = -heappop(longest)
            left[base] -= 1
            if not left[base]:
                del left[base]

    def at(self, at: int) -> Spread:
        """The spread when each context is its base plus `at`.

        Never of an earlier step than was asked for before.
        """
        steps = at - self._counted
        if steps >= self.tile:
            whole = steps // self.tile * self.tile
            self._counted += whole
            self._rounded += whole * self._count
            steps -= whole
        found = at - self._longest[0], self._rounded + steps * self._count
        return tuple.__new__(Spread, found)  # what Spread(*found) does, at a quarter of its price
