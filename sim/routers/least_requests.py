"""Least requests: the replica with the fewest requests, waiting or running; of equals the first.

With an option, `least-requests:2`, it looks only at so many replicas, drawn at random: the power of two
choices, nearly as even and without asking all of them.
"""

from collections.abc import Sequence

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class LeastRequests(Router):
    """The fewest requests of all, or of some that are drawn."""

    def __init__(self, option: str, rng: np.random.Generator) -> None:
        super().__init__("", rng)
        if option and (not option.isdecimal() or int(option) < 1):
            raise KvsimError(
                "router least-requests takes how many replicas to draw, as in least-requests:2, "
                f"got {option!r}"
            )
        self._choices = int(option or 0)

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The least loaded."""
        if 0 < self._choices < len(replicas):
            places: list[int] = sorted(self.rng.choice(len(replicas), self._choices, replace=False).tolist())
            return min(places, key=lambda place: replicas[place].requests)
        loads = [replica.requests for replica in replicas]
        return loads.index(min(loads))
