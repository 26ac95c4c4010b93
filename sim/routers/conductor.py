"""Mooncake's Conductor: the replica with the earliest predicted first token.

    first token   its queue, computed + the part of the prompt that is not cached there, computed beside
                  its decodes
    decode        the replica whose steps are predicted to be shortest with this request

The minimum is chosen; ties go to the first replica. So a cached prefix is used unless the queue takes longer
than computing the prefix again elsewhere.

Source: Qin et al., Mooncake (FAST '25), section 6, Algorithm 1. Left out: its second branch, which copies the
longest prefix to replicas whose own is shorter by more than `kvcache_balancing_threshold`; here a tier shared
by replicas loads it. Refusing requests whose first token would come too late is a separate policy,
`early-rejection`. Step times come from the run's clock, whereas Mooncake fits them. Prompts in a queue count
as equally long, and attention to cached tokens takes no time.
"""

from collections.abc import Sequence

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class Conductor(Router):
    """Chooses the earliest first token, or the shortest steps."""

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica with the shortest time."""
        times_s = [self.time_s(request, replica) for replica in replicas]
        return times_s.index(min(times_s))

    def time_s(self, request: Request, replica: Seen) -> float:
        """Seconds until the first token there; on a decode replica, of a step with this request."""
        if replica.role == "decode":
            return replica.step_s(0, 0, replica.running + 1, replica.decode_tokens + request.prompt_tokens)
        queued, missed = replica.prefill_tokens, request.prompt_tokens - replica.cached_tokens(request)
        queue_s = replica.step_s(max(replica.waiting, 1), queued, 0, 0) if queued else 0.0
        return queue_s + replica.step_s(1, missed, replica.running, replica.decode_tokens)
