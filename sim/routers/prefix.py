"""Prefix: the replica that has the longest part of the prompt in its cache, unless it is overloaded.

As production routers do it (SGLang's cache-aware policy), with its limits: when the largest load exceeds the
smallest by more than ABSOLUTE requests and by more than the factor RELATIVE, or when less than SHARE of the
prompt is cached anywhere, the request goes to the least loaded. Ties go to the least loaded, too.
"""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request

ABSOLUTE = 32
RELATIVE = 1.1
SHARE = 0.5


class LongestPrefix(Router):
    """The longest cached prefix, then the smallest load."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The one with most of the prompt."""
        loads = [replica.requests for replica in replicas]
        least, most = min(loads), max(loads)
        if most - least > ABSOLUTE and most > RELATIVE * least:
            return loads.index(least)
        cached = [replica.cached_tokens(request) for replica in replicas]
        if max(cached) < SHARE * request.prompt_tokens:
            return loads.index(least)
        return min(range(len(replicas)), key=lambda place: (-cached[place], loads[place]))
