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

from collections.abc import Iterator
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.keeping import Keeping
from kvsim.sim.policies.levels import Levels
from kvsim.sim.policies.options import MlfqOptions
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


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
        quantum_ps, patience_ps = (
            max(1, round(own.mlfq_quantum * PS_PER_S)),
            round(own.mlfq_promotion * PS_PER_S),
        )
        self.levels = Levels(self, quantum_ps, patience_ps)

    def key(self, request: Request, now_ps: int) -> int:
        return self.levels.level(request, now_ps)

    def behind(self, least: int, now_ps: int) -> Iterator[tuple[int, Request]]:
        return self.levels.behind(least, now_ps)

    def alike_until_ps(self) -> int:
        """Until a request is promoted, or a running one falls below the queue of the head."""
        levels, now_ps = self.levels, self.server.now_ps
        return min(levels.next_fall_ps(levels.least(), now_ps), levels.next_turn_ps())

    def finished(self, request: Request) -> None:
        self.levels.forget(request)
