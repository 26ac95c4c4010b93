"""EWSJF: short prompts first, weighted by waits; prompts of similar lengths share a queue.

    queue 0   prompts below a step         score of a queue's head =
    queue 1   below two steps              wait x (1 + w ln(length + 1)) x step / (queue + 1)
    queue 2   ...                          the highest score is served

Each queue is served by arrival. Of equal waits, that in the queue of shorter prompts wins; the longer a head
has waited the more it counts, so no request starves.

Source: Sidik et al., EWSJF (arXiv 2601.21758), density-weighted scoring; vllm-project/vllm, pull 33392,
ewsjf_scheduler/scoring.py (SimpleScoreCalculator, weighting factor 0.5). There the borders of the queues are
learned (Refine-and-Prune) and the weight is tuned (Bayesian meta-optimizer); here both are options.
"""

from dataclasses import dataclass
from math import log

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import NEVER_PS, Policy
from kvsim.sim.policies.clients import ByClient
from kvsim.sim.serving.queues import Queue
from kvsim.sim.serving.request import Request

UNIT = 1_000_000
"""Weights are whole millionths, so that scores compare exactly."""


@dataclass(frozen=True, kw_only=True)
class EwsjfOptions:
    """The queues, and how length counts."""

    ewsjf_step: int = option("Prompt tokens by which the queues differ.", default=256, value="N", least=1)
    ewsjf_weight: float = option(
        "Weight of the logarithm of a prompt's length.",
        default=0.5,
        value="X",
        least=0,
        most=1000,
    )


class Ewsjf(Policy):
    """Weighted shortest job first over queues by length."""

    family = "work to prefill"
    why = "their prompts are shorter for their waits"
    idea = "queues by prompt length; the longest weighted wait of their heads, short ones first"
    source = "arXiv 2601.21758; vllm pull 33392, ewsjf_scheduler/scoring.py"
    declares = EwsjfOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(EwsjfOptions)
        self._step, self._weight = own.ewsjf_step, own.ewsjf_weight
        self._weights: dict[int, int] = {}  # by length

    def timeless(self) -> bool:
        return True

    def queue(self) -> Queue:
        self._queue = ByClient(self)
        return self._queue

    def group(self, request: Request) -> str:
        """The number of its queue."""
        return str(request.prompt_tokens // self._step)

    def emptied(self, client: str) -> None:
        """Nothing is kept per queue."""

    def weight(self, request: Request) -> int:
        """Weight of one picosecond of its wait."""
        length = request.prompt_tokens
        found = self._weights.get(length)
        if found is None:
            score = (1 + self._weight * log(length + 1)) * self._step / (length // self._step + 1)
            found = self._weights[length] = max(1, round(UNIT * score))
        return found

    def key(self, request: Request, now_ps: int) -> tuple[int, int]:
        return (request.arrival_ps - now_ps) * self.weight(request), request.index

    def _heads(self) -> list[tuple[tuple[int, int], str]]:
        now_ps = self.server.now_ps
        return sorted((self.key(queue[0][-1], now_ps), name) for name, queue in self._queue.waiting.items())

    def next_client(self) -> str:
        now_ps = self.server.now_ps
        return min((self.key(queue[0][-1], now_ps), name) for name, queue in self._queue.waiting.items())[1]

    def alike_until_ps(self) -> int:
        """When the head of another queue overtakes the first: their scores grow by their weights."""
        heads = [self._queue.waiting[name][0][-1] for _, name in self._heads()]
        first, until_ps = heads[0], NEVER_PS
        mine = self.weight(first)
        for other in heads[1:]:
            theirs = self.weight(other)
            if theirs > mine:
                meet = (theirs * other.arrival_ps - mine * first.arrival_ps) // (theirs - mine)
                until_ps = min(until_ps, meet)
        return until_ps
