"""How the contexts of decoding sequences differ: the longest, and their sum in whole tiles, at any clock.

A context is `base + clock`, so all grow alike and the longest stays the longest: a heap of bases, from which
those that left are dropped when they come to the top. A context begins a new tile whenever it passes a
multiple of `tile`, so a histogram of `base mod tile` tells how many do at which clock, and the rounded sum is
carried along in steps of the clock.
"""

from heapq import heappop, heappush

from sim.cost import Spread


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
        self._at = 0  # the context of base 0 that `_rounded` holds for
        self._rounded = 0
        self._begin = [0] * tile  # by base mod tile: what the rounded sum grows by when they begin a tile
        self._longest: list[int] = []  # heap of negative bases, some of which have left
        self._left: dict[int, int] = {}

    def add(self, base: int) -> None:
        """A sequence begins to decode."""
        tile = self.tile
        self._count += 1
        self._rounded -= (base + self._at) // -tile * tile
        self._begin[base % tile] += tile
        heappush(self._longest, -base)

    def remove(self, base: int) -> None:
        """A sequence stops."""
        tile = self.tile
        self._count -= 1
        self._rounded += (base + self._at) // -tile * tile
        self._begin[base % tile] -= tile
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

    def at(self, at: int) -> tuple[int, int]:
        """(longest, sum of the rounded) in the step in which a sequence of base 0 has a context of `at`.

        Never of an earlier step than was asked for before.
        """
        steps = at - self._at
        if steps:
            begin, tile = self._begin, self.tile
            if steps >= tile:
                self._rounded += steps // tile * sum(begin)
            for step in range(at - steps % tile, at):
                self._rounded += begin[-step % tile]
            self._at = at
        return at - self._longest[0], self._rounded

    def spread(self, at: int, steps: int) -> Spread:
        """The same of a span that begins with that step and has at most so many."""
        # a context that is a multiple of the tile now begins another one with the next token: those of
        # base = -at (mod tile) after this step, of one less after the next, ...
        begin, first = self._begin, -at % self.tile
        if steps <= first:
            return Spread(*self.at(at), begin[first : first - steps : -1])
        return Spread(*self.at(at), begin[first::-1] + begin[:first:-1])
