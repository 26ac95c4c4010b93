"""Least KV: the replica whose KV memory is the emptiest; of equal ones, that with fewer requests."""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class LeastKv(Router):
    """The emptiest memory."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The smallest share allocated; a queue that waits for memory comes after it."""
        return min(
            range(len(replicas)),
            key=lambda place: (
                replicas[place].waiting > 0,
                replicas[place].used_share,
                replicas[place].requests,
            ),
        )
