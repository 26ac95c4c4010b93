"""Common to policies by deadline: when the first or the last token of a request is due."""

from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import Policy
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class DeadlineOptions:
    """The goal of requests for which the trace names none."""

    usual_slo: float = option(
        "Seconds to the first token if the trace names no goal.",
        default=10.0,
        value="S",
        above=0,
        doc="when a request's first token is due if the trace has no `slo_ttft_s` and no `deadline_s`",
    )


class ByDeadline(Policy):
    """Knows when a request is due: `slo_ttft_s` to the first token, else `deadline_s` to the last."""

    family = "deadlines"
    why = "they were due earlier, or it was too late for this one"
    declares: ClassVar[type] = DeadlineOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self.late: dict[Request, int] = {}  # waiting request -> when its deadline can no longer be met
        self._usual_ps = round(self.own(DeadlineOptions).usual_slo * PS_PER_S)

    def timeless(self) -> bool:
        return True

    def due_ps(self, request: Request) -> int:
        """When the request is due."""
        facts = request.facts
        goal_ps = facts.deadline_ps if facts.slo_ttft_ps is None else facts.slo_ttft_ps
        return request.arrival_ps + (self._usual_ps if goal_ps is None else goal_ps)

    def work_ps(self, request: Request) -> int:
        """Time its remaining work takes alone: the prefill, or all up to the last token if that is due."""
        found = self.prefill_ps(request.known_tokens)
        if request.facts.slo_ttft_ps is None and request.facts.deadline_ps is not None:
            steps = request.output_tokens - self.generated(request)
            found += steps * self.decode_ps(request.known_tokens)
        return found

    def waits(self, request: Request) -> None:
        self.late[request] = max(self.due_ps(request) - self.work_ps(request) + 1, 0)

    def turns_ps(self, request: Request) -> int | None:
        return self.late[request]

    def entered(self, request: Request) -> None:
        del self.late[request]
