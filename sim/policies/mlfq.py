"""MLFQ: queues with doubling time quanta; a request that uses one up goes down a queue, lengths are unknown.

    Q0  10 ms   |a|b|          arrival: joins the first queue whose quantum covers its prefill (skip-join)
    Q1  20 ms   |c|            has run for its quantum: one down      Q0 displaces Q1 displaces Q2
    Q2  40 ms   |d|e|          has waited for 3 s: back to Q0

Time counts while a request is in the batch. A displaced request only gives up its seat: it keeps its memory
(keeping.py). When memory is short, the last request of the lowest queue loses its memory and is recomputed;
with `--mlfq-displaced recompute` every displaced request is, as by vLLM's preemption.

Source: Wu et al., Fast distributed inference serving (FastServe, arXiv 2305.05920), section 4.1;
LLMServe/FastServe, fastserve/scheduler.py (MLFQ: base_quantum 0.01, threshold 2, starvation_threshold 3).
`get_next_batch` fills the batch of each iteration anew: all that run are back in front of their queues
(`pop_finished_requests`), and the first of the queues are taken until `_check_add_to_cur_batch` finds no
seat, or no tokens for a prompt. So a step exchanges as many as it takes. `reserve_free_blocks` swaps out the
last of the lowest queue if blocks are short. There they are swapped, a little ahead of time; vLLM V1 swaps
nothing, so here they are recomputed. Promotion is checked every 1,000 steps there, here when it is due.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.keeping import Keeping
from kvsim.sim.policies.levels import Levels
from kvsim.sim.policies.running import Running
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request, State

LAST_ADMITTED = itemgetter(1)


@dataclass(frozen=True, kw_only=True)
class MlfqOptions:
    """The queues."""

    mlfq_quantum: float = option(
        "Seconds in the first queue; each further queue has twice as many.", default=0.01, value="S", above=0
    )
    mlfq_promotion: float = option(
        "Seconds of waiting after which a request returns to the first queue.",
        default=3.0,
        value="S",
        above=0,
    )
    mlfq_displaced: str = option(
        "A displaced request keeps its memory, if there is enough and it is in blocks, or is recomputed.",
        default="keep",
        allowed=("keep", "recompute"),
    )


class Mlfq(Keeping):
    """Multi-level feedback by time in the batch."""

    family = "time in the batch"
    why = "they were in higher queues"
    displaces_as = "it was in a higher queue"
    idea = "doubling quanta, skip-join; using one up demotes, waiting too long promotes"
    needs = "the cost of a prefill"
    source = "FastServe, arXiv 2305.05920; LLMServe/FastServe, fastserve/scheduler.py"
    declares = MlfqOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(MlfqOptions)
        self.keeps = own.mlfq_displaced == "keep"
        self._quantum_ps = max(1, round(own.mlfq_quantum * PS_PER_S))
        self._patience_ps = round(own.mlfq_promotion * PS_PER_S)
        self._reached_ps: dict[Request, int] = {}  # of waiting requests: how far up the scale
        self._since_ps: dict[Request, int] = {}  # of waiting requests: when they began to wait
        self._running = Running()  # by how far up the scale they are, less the clock
        self._admissions = 0

    def key(self, request: Request, now_ps: int) -> int:
        since_ps = self._since_ps.get(request)
        if since_ps is None:
            return self._level(self._running.mark(request) + now_ps)
        return 0 if now_ps >= since_ps + self._patience_ps else self._level(self._reached_ps[request])

    def _level(self, reached_ps: int) -> int:
        """The queue of a place on the scale: queue k spans 2^k to 2^(k + 1) quanta."""
        return (reached_ps // self._quantum_ps).bit_length() - 1

    def queue(self) -> Levels:
        self._queue = Levels(self)
        return self._queue

    def stands(self, request: Request) -> tuple[int, int]:
        return self._level(self._reached_ps[request]), self._since_ps[request] + self._patience_ps

    # -- running requests ---------------------------------------------------------------------

    def _first_below(self, level: int, now_ps: int) -> int:
        """The place of the first request in a lower queue than this one."""
        return self._running.first_from((self._quantum_ps << level + 1) - now_ps)

    def behind(self, least: int, now_ps: int) -> Iterator[tuple[int, Request]]:
        running, end = self._running.entries, len(self._running.entries)
        while end and (level := self._level(running[end - 1][0] + now_ps)) > least:
            start = self._first_below(level - 1, now_ps)
            queue = running[start:end]
            if end - start > 1:
                queue.sort(key=LAST_ADMITTED, reverse=True)
            for _, _, request in queue:
                if request.state is State.DECODE:
                    yield level, request
            end = start

    def alike_until_ps(self) -> int:
        """Until a request is promoted, or a running one falls below the queue of the head."""
        now_ps, level = self.server.now_ps, self.key(self.server.waiting[0], self.server.now_ps)
        until_ps = self._queue.next_turn_ps()
        for place in range(self._first_below(level, now_ps) - 1, -1, -1):
            less_clock, _, request = self._running.entries[place]
            if request.state is not State.FINISHED:
                return min(until_ps, (self._quantum_ps << level + 1) - less_clock)
        return until_ps

    # -- one request --------------------------------------------------------------------------

    def waits(self, request: Request) -> None:
        now_ps, mark = self.server.now_ps, self._running.take_out(request)
        if mark is not None:
            self._reached_ps[request], self._since_ps[request] = mark + now_ps, now_ps
            if request.state is State.ASIDE:
                self.keep(request)
            return
        reached_ps, prefill_ps = self._quantum_ps, self.prefill_ps(request.prompt_tokens)
        while reached_ps < prefill_ps:
            reached_ps *= 2
        self._reached_ps[request], self._since_ps[request] = reached_ps, request.arrival_ps

    def entered(self, request: Request) -> None:
        now_ps, reached_ps = self.server.now_ps, self._reached_ps.pop(request)
        if now_ps >= self._since_ps.pop(request) + self._patience_ps:
            reached_ps = self._quantum_ps
        self.forget(request)
        self._admissions += 1
        self._running.add(reached_ps - now_ps, self._admissions, request)

    def finished(self, request: Request) -> None:
        self._running.take_out(request)
