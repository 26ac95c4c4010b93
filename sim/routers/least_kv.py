"""Least KV: the replica with the emptiest KV memory; ties go to the one with fewer requests."""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class LeastKv(Router):
    """Chooses the emptiest memory."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The smallest allocated share; replicas with a queue that waits for memory come last."""
        return min(
            range(len(replicas)),
            key=lambda place: (
                replicas[place].waiting > 0,
                replicas[place].used_share,
                replicas[place].requests,
            ),
        )
