"""Power of two: of two replicas drawn at random, the one with fewer requests; of equals, the first drawn.

As in SGLang's and vLLM's routers (`--policy power_of_two`; sgl-router/src/policies/power_of_two.rs). The
load is what the router counts: requests that were sent there and are not answered.
"""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class PowerOfTwo(Router):
    """The less loaded of two."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """Drawn by the seed."""
        if len(replicas) == 1:
            return 0
        first, second = self.rng.choice(len(replicas), 2, replace=False).tolist()
        return int(first if replicas[first].requests <= replicas[second].requests else second)
