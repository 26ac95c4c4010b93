"""QLM: groups of requests with similar deadlines; groups by deadline, within a group by arrival.

    due in   1.2 s  1.7 s | 4.1 s  4.9 s      groups of a second: 1.7 s may go before 1.2 s, if it came first

Decisions are made for groups, which keeps the order stable and cheap. Within a group no request overtakes.

Source: Patke et al., Queue management for SLO-oriented LLM serving (SoCC '24), section 5, "request groups";
QLM-project/QLM, qlm/scheduler/scheduler.py (`_update_all_slos` rounds the rest of an SLO down to
`slo_granularity`; `_reorder_edf`, the default). Left out: the order by a linear program, which pays off if
models must be swapped; here one server has one model.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.deadlines import ByDeadline, DeadlineOptions
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class GroupOptions(DeadlineOptions):
    """How similar the deadlines of a group are."""

    slo_granularity: float = option(
        "Seconds within which deadlines count as one group.", default=1.0, value="S", above=0
    )


class Qlm(ByDeadline):
    """Orders groups by deadline."""

    idea = "groups of similar deadlines, the earliest first; within a group by arrival"
    needs = "slo_ttft_s or deadline_s"
    source = "SoCC '24; QLM-project/QLM, qlm/scheduler/scheduler.py"
    declares = GroupOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._granularity_ps = max(1, round(self.own(GroupOptions).slo_granularity * PS_PER_S))

    def key(self, request: Request, now_ps: int) -> int:
        return self.due_ps(request) // self._granularity_ps

    def turns_ps(self, request: Request) -> int | None:
        return None

    def waits(self, request: Request) -> None:
        """Nothing is kept per request."""

    def entered(self, request: Request) -> None:
        """Nothing to forget."""
