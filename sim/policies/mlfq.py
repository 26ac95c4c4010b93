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
last of the lowest queue if blocks are short, then the last of the batch, which that step does not execute.
There they are swapped, a little ahead of time; vLLM V1 swaps nothing, so here they are recomputed. Promotion
is checked every 1,000 steps there, here when it is due.
"""

from bisect import bisect_left
from collections.abc import Iterator
from operator import itemgetter
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.keeping import Keeping
from kvsim.sim.policies.levels import Levels
from kvsim.sim.policies.options import MlfqOptions
from kvsim.sim.policies.running import Running
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request, State

LAST_ADMITTED = itemgetter(1)


@mypyc_attr(allow_interpreted_subclasses=True)
class Mlfq(Keeping):
    """Multi-level feedback by time in the batch."""

    family: ClassVar[str] = "time in the batch"
    why: ClassVar[str] = "they were in higher queues"
    displaces_as: ClassVar[str] = "it was in a higher queue"
    idea: ClassVar[str] = "doubling quanta, skip-join; using one up demotes, waiting too long promotes"
    needs: ClassVar[str] = "the cost of a prefill"
    source: ClassVar[str] = "FastServe, arXiv 2305.05920; LLMServe/FastServe, fastserve/scheduler.py"
    declares: ClassVar[type] = MlfqOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(MlfqOptions)
        self.keeps = own.mlfq_displaced == "keep"
        self._quantum_ps = max(1, round(own.mlfq_quantum * PS_PER_S))
        self._patience_ps = round(own.mlfq_promotion * PS_PER_S)
        self._waits: dict[Request, tuple[int, int]] = {}  # how far up the scale, and when it is promoted
        self._running = Running()  # by how far up the scale they are, less the clock
        self._admissions = 0

    def key(self, request: Request, now_ps: int) -> int:
        waits = self._waits.get(request)
        if waits is None:
            return self._level(self._running.mark(request) + now_ps)
        return 0 if now_ps >= waits[1] else self._level(waits[0])

    def _level(self, reached_ps: int) -> int:
        """The queue of a place on the scale: queue k spans 2^k to 2^(k + 1) quanta."""
        return (reached_ps // self._quantum_ps).bit_length() - 1

    def queue(self) -> Levels:
        self._queue = Levels(self)
        return self._queue

    # -- running requests ---------------------------------------------------------------------

    def _first_below(self, level: int, now_ps: int) -> int:
        """The place of the first request in a lower queue than this one."""
        return self._running.first_from((self._quantum_ps << level + 1) - now_ps)

    def behind(self, least: int, now_ps: int) -> Iterator[tuple[int, Request]]:
        running, quantum_ps = self._running.entries, self._quantum_ps
        end, above = len(running), (quantum_ps << least + 1) - now_ps
        while end and running[end - 1][0] >= above:
            level = ((running[end - 1][0] + now_ps) // quantum_ps).bit_length() - 1
            start = bisect_left(running, ((quantum_ps << level) - now_ps,), 0, end)
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

    def stands(self, request: Request) -> tuple[int, int]:
        quantum_ps, mark = self._quantum_ps, self._running.take_out(request)
        if mark is not None:
            now_ps = self.server.now_ps
            reached_ps, promoted_ps = mark + now_ps, now_ps + self._patience_ps
        else:
            promoted_ps, prefill_ps = (
                request.arrival_ps + self._patience_ps,
                self.prefill_ps(request.prompt_tokens),
            )
            reached_ps = quantum_ps
            while reached_ps < prefill_ps:
                reached_ps *= 2
        self._waits[request] = reached_ps, promoted_ps
        return (reached_ps // quantum_ps).bit_length() - 1, promoted_ps

    def entered(self, request: Request) -> None:
        now_ps, (reached_ps, promoted_ps) = self.server.now_ps, self._waits.pop(request)
        if now_ps >= promoted_ps:
            reached_ps = self._quantum_ps
        self._admissions += 1
        self._running.add(reached_ps - now_ps, self._admissions, request)

    def finished(self, request: Request) -> None:
        self._running.take_out(request)
