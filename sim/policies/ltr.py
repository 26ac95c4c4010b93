"""LTR: by a learned rank, running or not; a starving request is promoted for a quantum.

Waiting and running requests share one order: a better waiting one displaces a worse running one. One that has
waited for `--starvation` seconds goes before all others, and once admitted is not displaced until it has
`--starvation-quantum` tokens more.

Source: Fu et al., Efficient LLM scheduling by learning to rank (NeurIPS '24); hao-ai-lab/vllm-ltr,
vllm/core/scheduler.py (`_general_schedule` sorts waiting, running and swapped requests together by score).
There preempted requests are swapped, here they are recomputed; starvation is counted in seconds.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.displacing import Displacing
from kvsim.sim.policies.pars import StarvationOptions
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class LtrOptions(StarvationOptions):
    """How long a request stays promoted."""

    starvation_quantum: int = option(
        "Tokens that a promoted request gets before it may be displaced.", default=32, value="N", least=1
    )


class Ltr(Displacing):
    """Orders requests by rank, with preemption and promotion."""

    displaces_as = "its rank was lower"
    family = "predicted length"
    idea = "the lowest rank first, displacing worse ones; a starving request is promoted for a quantum"
    needs = "a predictor"
    source = "NeurIPS '24; hao-ai-lab/vllm-ltr, vllm/core/scheduler.py"
    declares = LtrOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(LtrOptions)
        self._patience_ps, self._quantum = round(own.starvation * PS_PER_S), own.starvation_quantum
        self._since: dict[Request, int] = {}  # when it arrived, or was last preempted
        self._until: dict[Request, int] = {}  # promoted until it has this many tokens

    def key(self, request: Request, now_ps: int) -> tuple[int, int]:
        since_ps = self._since.get(request)
        if since_ps is None:
            promoted = not self.displaceable(request)
        else:
            promoted = now_ps >= since_ps + self._patience_ps
        return (0, 0) if promoted else (1, self.said(request))

    def displaces_for(self, head: Request) -> str:
        ranked, _ = self.key(head, self.server.now_ps)
        return self.displaces_as if ranked else "it had starved"

    def mark(self, request: Request) -> int | None:
        return self.said(request) if self.displaceable(request) else None

    def marked_key(self, mark: int) -> tuple[int, int]:
        return 1, mark

    def turns_ps(self, request: Request) -> int:
        return self._since[request] + self._patience_ps

    def displaceable(self, request: Request) -> bool:
        until = self._until.get(request)
        return until is None or self.generated(request) >= until

    def alike_steps(self) -> int:
        """A promotion ends when the quantum is used up."""
        left = [self._until[r] - self.generated(r) for r in self.unlike if not self.displaceable(r)]
        return min(filter(None, (super().alike_steps(), *left)), default=0)

    def waits(self, request: Request) -> None:
        super().waits(request)
        self._since[request] = self.server.now_ps if request.preemptions else request.arrival_ps

    def entered(self, request: Request) -> None:
        super().entered(request)
        if self.server.now_ps >= self._since.pop(request) + self._patience_ps:
            self._until[request] = request.generated + self._quantum

    def finished(self, request: Request) -> None:
        super().finished(request)
        self._until.pop(request, None)
