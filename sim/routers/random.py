"""Random: any replica, each as likely."""

from collections.abc import Sequence

from kvsim.sim.request import Request
from kvsim.sim.routers.base import Router, Seen


class Random(Router):
    """Any of them."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """Drawn by the seed."""
        return int(self.rng.integers(len(replicas)))
