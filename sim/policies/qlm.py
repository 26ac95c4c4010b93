"""QLM: groups of requests with like deadlines; groups by deadline, and in a group as they came.

    due in   1.2 s  1.7 s | 4.1 s  4.9 s      groups of a second: 1.7 s may go before 1.2 s, if it came first

A group is what one decides about: it keeps the order stable and cheap. Within it nobody overtakes.

Source: Patke et al., Queue management for SLO-oriented LLM serving (SoCC '24), section 5, "request groups";
QLM-project/QLM, qlm/scheduler/scheduler.py (`_update_all_slos` rounds what is left of an SLO down to
`slo_granularity`; `_reorder_edf`, the default). Left out: the order by a linear program, which pays where
models must be swapped; one server here has one model.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.deadlines import ByDeadline, DeadlineOptions
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class GroupOptions(DeadlineOptions):
    """How alike the deadlines of a group are."""

    slo_granularity: float = option(
        "Seconds within which deadlines count as one group.", default=1.0, value="S", above=0
    )


class Qlm(ByDeadline):
    """Groups by deadline."""

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
        """Nothing is kept of it."""

    def entered(self, request: Request) -> None:
        """Likewise."""
