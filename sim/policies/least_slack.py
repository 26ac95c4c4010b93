"""Least slack: the request that can wait least goes first: time to its deadline less the work left by then.

    due in   9 s   5 s        EDF: the second
    prefill  8 s   1 s        slack 1 s and 4 s: the first

A request with no slack left goes behind all others. All slacks shrink alike, so the order of the rest stays.

Source: Mok, Fundamental design problems of distributed systems for the hard-real-time environment (1983);
vllm-project/vllm, pull 53571.
"""

from kvsim.sim.policies.deadlines import ByDeadline
from kvsim.sim.serving.request import Request


class LeastSlack(ByDeadline):
    """Orders requests by slack."""

    idea = "the least slack first; requests that cannot meet theirs last"
    needs = "slo_ttft_s or deadline_s; the cost of a prefill"
    source = "Mok 1983; vllm pull 53571"

    def key(self, request: Request, now_ps: int) -> tuple[bool, int]:
        late_ps = self.late[request]
        return now_ps >= late_ps, late_ps
