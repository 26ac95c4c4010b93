"""Which candidates of a beam search survive a step: drawn at random, as traces hold no scores.

    uniform      every survivor draws its parent among all candidates, each as likely
    replace:P    with probability P one candidate is dropped, and another one takes its place as well

Both keep `width` candidates alive. They are assumptions, named in every result. `uniform` lets all
candidates descend from one within about 2 * width steps, so that they share nearly everything; the smaller
P, the longer candidates go their own way.

All searches draw from one stream of random numbers, step by step, in each step one after the other. So who
will be dropped can be foreseen, as long as the same groups search:

    draws     .71 .93 .02 .31 .64 .55 ...      replace:0.1, two searches a, b
    searches   a   b   a   '---'   b           in the second step a drops a candidate: two draws say which
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from mypy_extensions import mypyc_attr

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Beam

DRAWS_AT_ONCE = 4096

Pair = tuple[int, int]
"""Places of a candidate that is dropped, and of the one that goes on twice instead."""


class Drop(NamedTuple):
    """A search that may drop candidates after a step."""

    step: int
    """how many steps are over then, counted from where one looks ahead"""
    place: int
    """which of the searches"""
    pairs: list[Pair]
    """who is dropped; maybe nobody"""
    drawn: int
    """searches that have drawn by then, this one included"""
    at: int
    """the next draw"""


@mypyc_attr(allow_interpreted_subclasses=True)
class Survivors:
    """Draws which candidates give way to others.

    Parameters
    ----------
    beam : Beam
        Width, process and seed.

    Attributes
    ----------
    at : int
        The next draw.

    Raises
    ------
    KvsimError
        When the process is unknown or its parameter is no probability.
    """

    def __init__(self, beam: Beam) -> None:
        name, _, parameter = beam.process.partition(":")
        if name not in ("uniform", "replace") or (name == "uniform" and parameter):
            raise KvsimError(f"beam_process must be uniform or replace:PROBABILITY, got {beam.process!r}")
        self._share = 1.0
        if name == "replace":
            try:
                self._share = float(parameter)
            except ValueError:
                self._share = -1.0
            if not 0 <= self._share <= 1:
                raise KvsimError(
                    f"beam_process replace needs a probability from 0 to 1, got {beam.process!r}"
                )
        self.width = beam.width
        self.at = 0
        self._uniform = name == "uniform"
        self._rng = np.random.default_rng(beam.seed)
        self._draws: list[float] = []
        self._hits: list[int] = []  # places of those below the share, ascending

    def drops(self, searches: int, steps: int) -> Iterator[Drop]:
        """Look ahead: the drops of so many searches in so many steps."""
        at, drawn, most = self.at, 0, searches * steps
        while True:
            missed = self.misses(at, most - drawn)
            drawn += missed
            if drawn == most:
                return
            pairs, at = self.pairs(at + missed)
            yield Drop(drawn // searches + 1, drawn % searches, pairs, drawn + 1, at)
            drawn += 1

    def misses(self, at: int, most: int) -> int:
        """Searches before the first that may drop a candidate, of at most so many that draw from `at` on."""
        if self._uniform:
            return 0
        while True:
            hits = self._hits
            found = bisect_left(hits, at)
            if found < len(hits):
                return min(hits[found] - at, most)
            if at + most <= len(self._draws):
                return most
            self._draw()

    def pairs(self, at: int) -> tuple[list[Pair], int]:
        """Whom the search drops that draws at `at`, as `misses` said; and the draw behind it."""
        width = self.width
        behind = at + (width if self._uniform else 3)
        while behind > len(self._draws):
            self._draw()
        if self._uniform:
            return pairs_of(self.parents(at)), behind
        dropped = int(self._draws[at + 1] * width)
        return [(dropped, (dropped + 1 + int(self._draws[at + 2] * (width - 1))) % width)], behind

    def parents(self, at: int) -> list[int]:
        """For each of the next candidates, the place of its parent among the old."""
        return [int(draw * self.width) for draw in self._draws[at : at + self.width]]

    def pass_to(self, at: int) -> None:
        """All draws before this one are used up."""
        if at > DRAWS_AT_ONCE:
            del self._draws[:at]
            self._hits = [hit - at for hit in self._hits if hit >= at]
            at = 0
        self.at = at

    def _draw(self) -> None:
        drawn, known = self._rng.random(DRAWS_AT_ONCE)[::-1], len(self._draws)
        self._draws += drawn.tolist()
        self._hits += (np.flatnonzero(drawn < self._share) + known).tolist()


def pairs_of(parents: list[int]) -> list[Pair]:
    """Who is dropped, and who goes on twice instead, both in order of their places."""
    twice, dropped = list(parents), []
    for place in range(len(parents)):
        if place in twice:
            twice.remove(place)
        else:
            dropped.append(place)
    return list(zip(dropped, sorted(twice), strict=True))
