"""EDF: the earliest deadline first; requests that can no longer meet theirs go behind all others.

    due in   3 s   8 s   5 s (prefill takes 6 s: too late)     served   3 s, 8 s, then 5 s

The deadline is the trace's `slo_ttft_s`, else `deadline_s`, else `--usual-slo`. The cost model says what a
prefill takes by itself.

Source: Liu and Layland, Scheduling algorithms for multiprogramming in a hard-real-time environment (1973),
deadline-driven scheduling. Late ones going last is kvsim's: otherwise EDF serves only these under overload.
"""

from kvsim.sim.policies.deadlines import ByDeadline
from kvsim.sim.serving.request import Request


class Edf(ByDeadline):
    """Orders requests by deadline."""

    idea = "the earliest deadline first; requests that cannot meet theirs last"
    needs = "slo_ttft_s or deadline_s; the cost of a prefill"
    source = "Liu and Layland 1973"

    def key(self, request: Request, now_ps: int) -> tuple[bool, int]:
        return now_ps >= self.late[request], self.due_ps(request)
