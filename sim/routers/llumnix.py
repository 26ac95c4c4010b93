"""Llumnix: the replica with the highest freeness: the tokens that each of its requests may still add.

    freeness = (capacity - used - what the head of the queue needs) / (running + that head)

What the head of the queue needs is the paper's *virtual usage*: a queue can make freeness negative. Requests
behind the head do not count, as in the paper. Headroom for requests of high priority, and for replicas that
leave, is not modelled. Follows Sun et al., Llumnix, OSDI '24, and its code (`remaining_steps`), which counts
in blocks.
"""

from collections.abc import Sequence
from math import inf
from operator import truediv

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


def freeness(replica: Seen) -> float:
    """Tokens that each request of a replica may still add; infinite if it has none."""
    head = replica.head_tokens
    requests = replica.running + (head > 0)
    free = replica.capacity_tokens - replica.used_tokens - head
    found: float = truediv(free, requests) if requests else inf
    return found


class Llumnix(Router):
    """Chooses the replica with the highest freeness."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica with the highest freeness; ties go to the first."""
        return max(range(len(replicas)), key=lambda place: freeness(replicas[place]))
