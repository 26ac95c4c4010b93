"""Which candidates of a beam search survive a step: drawn at random, because traces hold no scores.

    uniform      every survivor draws its parent among all candidates, each as likely
    replace:P    with probability P one candidate is dropped, and another one also takes its place

Both keep `width` candidates alive. They are assumptions, named in every result. With `uniform`, all
candidates descend from one within about 2 * width steps, so that they share nearly everything; the smaller
P, the longer candidates stay separate.

All searches draw from one stream of random numbers, step by step, and in turn within a step. So drops can be
predicted as long as the same groups search:

    draws      .71 .93 .02 .31 .64 .55 ...      replace:0.1, two searches a, b
    searches    a   b   a   '---'   b           in the second step a drops a candidate: two draws say which
    counted     0   1   2           3
"""

from bisect import bisect_left

import numpy as np
from mypy_extensions import mypyc_attr

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Beam

DRAWS_AT_ONCE = 4096

Pair = tuple[int, int]
"""Places of a candidate that is dropped, and of the one that is duplicated instead."""


Drop = tuple[int, int, list[Pair]]
"""A search that drops candidates after a step: (steps done by then, counted from the start of the
look-ahead; which search; its pairs)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Survivors:
    """Draws which candidates are replaced by others.

    Parameters
    ----------
    beam : Beam
        Width, process and seed.

    Attributes
    ----------
    at : int
        Searches that have drawn so far.

    Raises
    ------
    KvsimError
        If the process is unknown or its parameter is not a probability.
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
        self.at = 0
        self._width = beam.width
        self._uniform = name == "uniform"
        self._rng = np.random.default_rng(beam.seed)
        self._left = np.empty(0)  # draws left over, too few for the next search
        self._known = 0  # searches whose draws are known
        self._dropping: list[int] = []  # searches that drop candidates, ascending
        self._pairs: list[list[Pair]] = []  # and the pairs they drop
        self._next = 0  # index of the next one in both lists
        self._ahead = 0  # index of the next one to look ahead at
        self._searches = self._end = 0  # number of searches, and end of the look-ahead

    def drops(self, searches: int, steps: int) -> list[Drop]:
        """Look ahead: the drops of `searches` searches in `steps` steps."""
        self.look_ahead(searches, steps)
        found: list[Drop] = []
        while self.next_drop(found) is not None:
            pass
        return found

    def look_ahead(self, searches: int, steps: int) -> None:
        """These searches go on for `steps` steps: `next_drop` returns their drops."""
        self._searches, self._end = searches, self.at + searches * steps
        self._ahead = self._next

    def next_drop(self, found: list[Drop]) -> Drop | None:
        """The next of these drops, which is appended to `found`; None: there are no more."""
        dropping, index = self._dropping, self._ahead
        while index == len(dropping):
            if self._known >= self._end:
                return None
            self._draw()
        search = dropping[index]
        if search >= self._end:
            return None
        self._ahead = index + 1
        search -= self.at
        step = search // self._searches + 1
        place = search % self._searches
        drop = step, place, self._pairs[index]
        found.append(drop)
        return drop

    def pass_over(self, searches: int) -> None:
        """This many searches have drawn."""
        self.at += searches
        index = bisect_left(self._dropping, self.at, self._next)
        if index > DRAWS_AT_ONCE:
            del self._dropping[:index], self._pairs[:index]
            index = 0
        self._next = index

    def _draw(self) -> None:
        """Draw for more searches."""
        drawn = np.concatenate((self._left, self._rng.random(DRAWS_AT_ONCE)[::-1]))
        width, at, known = self._width, 0, self._known
        if self._uniform:
            draws = drawn.tolist()
            for at in range(0, len(draws) - width + 1, width):
                self._note(pairs_of([int(draw * width) for draw in draws[at : at + width]]))
            self._left = drawn[at + width :]
            return
        hits = np.flatnonzero(drawn < self._share)
        whole = hits[hits + 3 <= len(drawn)]
        dropped = (drawn[whole + 1] * width).astype(np.int64)
        others = (dropped + 1 + (drawn[whole + 2] * (width - 1)).astype(np.int64)) % width
        for hit, one, other in zip(whole.tolist(), dropped.tolist(), others.tolist(), strict=True):
            if hit >= at:  # else this draw picks a candidate
                known, at = known + hit - at, hit + 3
                self._dropping.append(known)
                self._pairs.append([(one, other)])
                known += 1
        later = hits[np.searchsorted(hits, max(at, len(drawn) - 2)) :]
        end = int(later[0]) if len(later) else len(drawn)
        self._known, self._left = known + end - at, drawn[end:]

    def _note(self, pairs: list[Pair]) -> None:
        """The next search drops these candidates, or none."""
        if pairs:
            self._dropping.append(self._known)
            self._pairs.append(pairs)
        self._known += 1


def pairs_of(parents: list[int]) -> list[Pair]:
    """(dropped, duplicated instead) places, each in ascending order."""
    twice, dropped = list(parents), []
    for place in range(len(parents)):
        if place in twice:
            twice.remove(place)
        else:
            dropped.append(place)
    return list(zip(dropped, sorted(twice), strict=True))
