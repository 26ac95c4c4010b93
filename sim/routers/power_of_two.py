"""Power of two: of two replicas drawn at random, the one with fewer requests; ties go to the first drawn.

As in SGLang's and vLLM's routers (`--policy power_of_two`; sgl-router/src/policies/power_of_two.rs). The load
is the router's own count of requests sent there and not yet answered.
"""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class PowerOfTwo(Router):
    """Chooses the less loaded of two."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The less loaded of two replicas drawn by the seed."""
        if len(replicas) == 1:
            return 0
        first, second = self.rng.choice(len(replicas), 2, replace=False).tolist()
        return int(first if replicas[first].requests <= replicas[second].requests else second)
