"""MLFQ: queues with doubling quanta of time; who uses one up goes a queue down, nobody's length is known.

    Q0  10 ms   |a|b|          comes: joins the first queue whose quantum covers its prefill (skip-join)
    Q1  20 ms   |c|            has run for its quantum: one down      Q0 displaces Q1 displaces Q2
    Q2  40 ms   |d|e|          has waited for 3 s: back to Q0

Time counts while a request is in the batch. A displaced request is computed anew, or finds what the prefix
cache still has of it.

Source: Wu et al., Fast distributed inference serving (FastServe, arXiv 2305.05920), section 4.1;
LLMServe/FastServe, fastserve/scheduler.py (MLFQ: base_quantum 0.01, threshold 2, starvation_threshold 3).
There displaced requests keep their memory or are swapped ahead of time; promotion is looked at every 1,000
steps, here when it is due.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import NEVER_PS, Policy
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request, State


@dataclass(frozen=True, kw_only=True)
class MlfqOptions:
    """The queues."""

    mlfq_quantum: float = option(
        "Seconds of the first queue; each further one has twice as many.",
        default=0.01,
        value="S",
        above=0,
        doc="quantum of the first queue; that of each further one is twice as long",
    )
    mlfq_promotion: float = option(
        "Seconds of waiting after which a request is in the first queue again.",
        default=3.0,
        value="S",
        above=0,
        doc="who has waited so many seconds is in the first queue again",
    )


class Mlfq(Policy):
    """Multi-level feedback by time in the batch."""

    family = "time in the batch"
    idea = "doubling quanta, skip-join; who uses one up goes a queue down, who waits too long goes up"
    needs = "the cost of a prefill"
    source = "FastServe, arXiv 2305.05920; LLMServe/FastServe, fastserve/scheduler.py"
    declares = MlfqOptions
    preempts = True

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(MlfqOptions)
        self._quantum_ps = max(1, round(own.mlfq_quantum * PS_PER_S))
        self._patience_ps = round(own.mlfq_promotion * PS_PER_S)
        self._joined: dict[Request, int] = {}  # the queue in which its quanta began
        self._ran_ps: dict[Request, int] = {}  # in the batch since then, up to `_since_ps`
        self._since_ps: dict[Request, int] = {}  # when it began to wait, or to run

    def key(self, request: Request, now_ps: int) -> int:
        since_ps = self._since_ps[request]
        if request.state is State.WAITING:
            return 0 if now_ps >= since_ps + self._patience_ps else self._level(request, 0)[0]
        return self._level(request, now_ps - since_ps)[0]

    def _level(self, request: Request, more_ps: int) -> tuple[int, int]:
        """Its queue, and how much of that one's quantum is left."""
        level, left_ps = self._joined[request], self._ran_ps[request] + more_ps
        while left_ps >= self._quantum_ps << level:
            left_ps -= self._quantum_ps << level
            level += 1
        return level, (self._quantum_ps << level) - left_ps

    def turns_ps(self, request: Request) -> int | None:
        return self._since_ps[request] + self._patience_ps

    def alike_until_ps(self) -> int:
        """Somebody is promoted, or somebody who runs goes a queue down."""
        now_ps = self.server.now_ps
        down = [
            now_ps + self._level(r, now_ps - self._since_ps[r])[1]
            for r in self.server.running.values()
            if r.state is not State.FINISHED
        ]
        return min(super().alike_until_ps(), *down, NEVER_PS)

    def waits(self, request: Request) -> None:
        if request not in self._joined:
            self._since_ps[request] = request.arrival_ps
            self._join(request, self.prefill_ps(request.prompt_tokens))
            return
        now_ps = self.server.now_ps
        self._ran_ps[request] += now_ps - self._since_ps[request]
        self._since_ps[request] = now_ps

    def _join(self, request: Request, prefill_ps: int) -> None:
        level = 0
        while self._quantum_ps << level < prefill_ps:
            level += 1
        self._joined[request], self._ran_ps[request] = level, 0

    def entered(self, request: Request) -> None:
        now_ps = self.server.now_ps
        if now_ps >= self._since_ps[request] + self._patience_ps:
            self._join(request, 0)
        self._since_ps[request] = now_ps

    def finished(self, request: Request) -> None:
        for known in (self._joined, self._ran_ps, self._since_ps):
            del known[request]
