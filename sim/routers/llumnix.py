"""Llumnix: the replica with the highest freeness: how many tokens more each of its requests may have.

    freeness = (capacity - used - what the head of the queue needs) / (running + that head)

So a queue lowers it below 0, and whoever waits behind the head counts nothing, as in the paper: they are the
*virtual usage* of a replica. Headroom for requests of high priority, and for replicas that leave, is not
modelled. Follows Sun et al., Llumnix, OSDI '24, and its code (`remaining_steps`), which counts in blocks.
"""

from collections.abc import Sequence
from math import inf
from operator import truediv

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


def freeness(replica: Seen) -> float:
    """Tokens that each request of a replica may still add; infinite where there is none."""
    head = replica.head_tokens
    requests = replica.running + (head > 0)
    free = replica.capacity_tokens - replica.used_tokens - head
    found: float = truediv(free, requests) if requests else inf
    return found


class Llumnix(Router):
    """The freest."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The highest freeness; of equals the first."""
        return max(range(len(replicas)), key=lambda place: freeness(replicas[place]))
