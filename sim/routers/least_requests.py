"""Least requests: the replica with the fewest requests, waiting or running; ties go to the first.

With `router_choices`, or as `least-requests:2`, it looks at only so many replicas, drawn at random: the power
of two choices, which is nearly as even but does not ask all replicas.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.routers.options import Drawn
from kvsim.sim.serving.request import Request


class LeastRequests(Router):
    """Chooses the fewest requests, among all replicas or a random draw."""

    declares: ClassVar[type] = Drawn

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__("", rng, options)
        if argument and (not argument.isdecimal() or int(argument) < 1):
            raise KvsimError(
                "router least-requests takes how many replicas to draw, as in least-requests:2, "
                f"got {argument!r}"
            )
        self._choices = int(argument) if argument else self.own(Drawn).router_choices

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The least loaded replica."""
        if 0 < self._choices < len(replicas):
            places: list[int] = sorted(self.rng.choice(len(replicas), self._choices, replace=False).tolist())
            return min(places, key=lambda place: replicas[place].requests)
        loads = [replica.requests for replica in replicas]
        return loads.index(min(loads))
