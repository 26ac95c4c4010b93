"""Random: any replica, with equal probability."""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class Random(Router):
    """Chooses any replica."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """A replica drawn by the seed."""
        return int(self.rng.integers(len(replicas)))
