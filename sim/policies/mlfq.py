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

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import NEVER_PS, Policy
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request, State


@dataclass(frozen=True, kw_only=True)
class MlfqOptions:
    """The queues."""

    mlfq_quantum: float = option(
        "Seconds of the first queue; each further one has twice as many.", default=0.01, value="S", above=0
    )
    mlfq_promotion: float = option(
        "Seconds of waiting after which a request is in the first queue again.",
        default=3.0,
        value="S",
        above=0,
    )


class Mlfq(Policy):
    """Multi-level feedback by time in the batch."""

    family = "time in the batch"
    why = "they were in higher queues"
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
        self._running: list[dict[Request, int]] = []  # by queue: who runs, and its entry in the heap
        self._down: list[tuple[int, int, int, Request]] = []  # (when, entry, from which queue, who)
        self._entries = 0

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

    # -- who runs, by queue -------------------------------------------------------------------

    def rivals(self, least: int, now_ps: int) -> Iterator[Request]:
        self._move_down(now_ps)
        for level in range(len(self._running) - 1, least, -1):
            living = [r for r in self._running[level] if r.state is not State.FINISHED]
            yield from sorted(living, key=lambda r: -r.seq)

    def alike_until_ps(self) -> int:
        """Somebody is promoted, or somebody who runs goes a queue down."""
        self._move_down(self.server.now_ps)
        while self._down and (not self._is_in(self._down[0]) or self._down[0][-1].state is State.FINISHED):
            heappop(self._down)
        return min(super().alike_until_ps(), self._down[0][0] if self._down else NEVER_PS)

    def _run_in(self, request: Request, level: int, until_ps: int) -> None:
        while len(self._running) <= level:
            self._running.append({})
        self._entries += 1
        self._running[level][request] = self._entries
        heappush(self._down, (until_ps, self._entries, level, request))

    def _is_in(self, entry: tuple[int, int, int, Request]) -> bool:
        """Whether an entry of the heap still counts."""
        _, number, level, request = entry
        return self._running[level].get(request) == number

    def _move_down(self, now_ps: int) -> None:
        down = self._down
        while down and down[0][0] <= now_ps:
            entry = heappop(down)
            if self._is_in(entry):
                until_ps, _, level, request = entry
                del self._running[level][request]
                self._run_in(request, level + 1, until_ps + (self._quantum_ps << level + 1))

    def _stop(self, request: Request) -> None:
        for level in self._running:
            level.pop(request, None)

    # -- what happens to one ------------------------------------------------------------------

    def waits(self, request: Request) -> None:
        if request not in self._joined:
            self._since_ps[request] = request.arrival_ps
            self._join(request, self.prefill_ps(request.prompt_tokens))
            return
        now_ps = self.server.now_ps
        self._stop(request)
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
        level, left_ps = self._level(request, 0)
        self._run_in(request, level, now_ps + left_ps)

    def finished(self, request: Request) -> None:
        self._stop(request)
        for known in (self._joined, self._ran_ps, self._since_ps):
            del known[request]
