"""Mooncake's Conductor: the replica at which the first token is predicted to come first.

    first token   its queue, computed + the part of the prompt that is not cached there, computed beside
                  its decodes
    decode        the replica whose steps are predicted to be shortest with this request

The least is chosen, the first of equals. So a cached prefix is used unless the queue in front of it takes
longer than computing the prefix again elsewhere.

Source: Qin et al., Mooncake (FAST '25), section 6, Algorithm 1. Left out: its second branch, which copies the
longest prefix to where it is shorter by more than `kvcache_balancing_threshold`; a tier that replicas share
loads it instead. That requests are refused whose first token would come too late is the policy
`early-rejection`. Step times are those of the run's clock, where Mooncake fits them; prompts in a queue count
as equal ones, and attention to what is cached as nothing.
"""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class Conductor(Router):
    """The earliest first token, or the shortest steps."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica with the least time."""
        times_s = [self.time_s(request, replica) for replica in replicas]
        return times_s.index(min(times_s))

    def time_s(self, request: Request, replica: Seen) -> float:
        """Until the first token there; of a decode replica, the time of a step with this request."""
        if replica.role == "decode":
            return replica.step_s(0, 0, replica.running + 1, replica.decode_tokens + request.prompt_tokens)
        queued, missed = replica.prefill_tokens, request.prompt_tokens - replica.cached_tokens(request)
        queue_s = replica.step_s(max(replica.waiting, 1), queued, 0, 0) if queued else 0.0
        return queue_s + replica.step_s(1, missed, replica.running, replica.decode_tokens)
