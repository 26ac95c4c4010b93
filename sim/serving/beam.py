"""Which candidates of a beam search survive a step: drawn at random, as traces hold no scores.

    uniform      every survivor draws its parent among all candidates, each as likely
    replace:P    with probability P one candidate is dropped, and another one takes its place as well

Both keep `width` candidates alive. They are assumptions, named in every result. `uniform` lets all
candidates descend from one within about 2 * width steps, so that they share nearly everything; the smaller
P, the longer candidates go their own way.
"""

from collections.abc import Callable

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Beam

DRAWS_AT_ONCE = 4096


class Survivors:
    """Draws the parents of the next candidates.

    Parameters
    ----------
    beam : Beam
        Width, process and seed.

    Raises
    ------
    KvsimError
        When the process is unknown or its parameter is no probability.
    """

    def __init__(self, beam: Beam) -> None:
        name, _, parameter = beam.process.partition(":")
        processes: dict[str, Callable[[], list[int] | None]]
        processes = {"uniform": self._uniform, "replace": self._replace}
        if name not in processes or (name == "uniform" and parameter):
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
        self._process = processes[name]
        self._rng = np.random.default_rng(beam.seed)
        self._draws: list[float] = []  # the last one is next
        self._hits: list[int] = []  # places of those below the share, the last one is next

    def steps_alike(self, beams: int) -> int:
        """Steps of so many searches up to and with the first that may drop a candidate."""
        return self._misses() // beams + 1

    def pass_over(self, draws: int) -> None:
        """Nobody was dropped so many times, as `steps_alike` said."""
        if draws:
            del self._draws[-draws:]

    def first_dropping(self, beams: int) -> int:
        """The first of so many searches that may drop a candidate; those before it are passed over."""
        first = min(self._misses(), beams)
        self.pass_over(first)
        return first

    def _misses(self) -> int:
        """The next draws at hand that drop nobody."""
        left, hits = len(self._draws), self._hits
        while hits and hits[-1] >= left:
            hits.pop()
        return left - 1 - hits[-1] if hits else left

    def parents(self) -> list[int] | None:
        """For each of the next candidates, the place of its parent among the old; None if all live on."""
        return self._process()

    def _uniform(self) -> list[int]:
        return [int(self._draw() * self.width) for _ in range(self.width)]

    def _replace(self) -> list[int] | None:
        draws = self._draws
        if (draws.pop() if draws else self._draw()) >= self._share:  # most often
            return None
        parents = list(range(self.width))
        dropped = int(self._draw() * self.width)
        parents[dropped] = (dropped + 1 + int(self._draw() * (self.width - 1))) % self.width
        return parents

    def _draw(self) -> float:
        if not self._draws:
            drawn = self._rng.random(DRAWS_AT_ONCE)
            self._draws, self._hits = drawn.tolist(), np.flatnonzero(drawn < self._share).tolist()
        return self._draws.pop()
