"""Sequences that get several tokens per step: spans, ledger, gaps and the naive reference agree.

The scheduler draws for every sequence how many tokens each of its steps adds, from 1 to 4, as speculative
decoding does. Nothing else in the engine knows of it.
"""

from dataclasses import asdict
from random import Random

import numpy as np
import pytest
from support.counted import Counted
from support.naive import Uneven, assert_as_told, requests_of
from support.serving import engine_of, server_of

from kvsim.allocators.buddy import Buddy
from kvsim.allocators.paged import Paged
from kvsim.reference import Continuous
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.schedulers.orca import Orca
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import Workload

pytestmark = pytest.mark.slow

MAX_LEN = 256
ALLOCATORS = {
    "paged of 16": lambda slots: Paged(slots, 16),
    "paged of 2": lambda slots: Paged(slots, 2),
    "buddy": lambda slots: Buddy(slots),
}


def drawn(index, generated):
    """1 to 4 tokens per step, for the rest of this answer."""
    rng = Random(1000 * index + generated)
    while True:
        yield rng.randint(1, 4)


def drawing(scheduler):
    """The scheduler, with a drawn number of tokens per step for each sequence."""

    class Drawing(scheduler):
        def new_server(self, allocator, bound):
            progress = Counted(lambda request: drawn(request.index, request.generated))
            server = server_of(allocator, bound, progress)
            if scheduler is VllmV1:
                self.use(self.steps_of(server))
            return server

    return Drawing


def workload(seed, load):
    rng = np.random.default_rng(seed)
    arrival_ps = np.cumsum(rng.exponential(8e9 / load, 60)).astype(np.int64)
    return Workload("test", arrival_ps, rng.integers(1, 100, 60), rng.geometric(1 / 50, 60).clip(1, 150))


def run(work, make, scheduler, max_span):
    config = EngineConfig(max_num_seqs=24, max_num_batched_tokens=128, async_scheduling=False)
    chosen = drawing(scheduler)(config, MAX_LEN)
    server = chosen.new_server(make(1333), reservation("pow2", MAX_LEN))
    return engine_of(work, server, chosen, Uneven(), MAX_LEN, max_span=max_span, timeline_rows=16, check=True)


def facts(result):
    return {
        **{name: column.tolist() for name, column in result.requests.items()},
        **{f"timeline {name}": column.tolist() for name, column in result.timeline.items()},
        "integrals": (asdict(result.saturated), asdict(result.unsaturated)),
        "gaps": (result.token_gaps.bins(), result.token_gaps.total, result.token_gaps.count),
        "counts": (result.end_ps, result.step_count, result.max_running, result.peak_used_tokens),
        "preemptions": result.preemptions,
    }


@pytest.mark.parametrize("load", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("scheduler", [VllmV1, Orca])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_spans_steps_and_the_reference_agree_with_1_to_4_tokens_a_step(allocator, scheduler, load):
    make, preemptions = ALLOCATORS[allocator], 0
    for seed in range(5):
        work = workload(seed, load)
        engine = run(work, make, scheduler, 1 << 20)
        result = engine.run()
        assert facts(result) == facts(run(work, make, scheduler, 1).run())
        assert result.finished.all()
        preemptions += result.preemptions
        check_reference(work, make, "vllm-v1" if scheduler is VllmV1 else "orca", result)
    assert preemptions > 0 or load < 20 or allocator == "buddy"


class Speculating(Continuous):
    """The reference, in which each step of a decoding sequence adds the drawn number of tokens."""

    def advance(self, request, tokens):
        if not request.decoding:
            return tokens
        return min(next(request.draws), request.output - len(request.token_ps))

    def commit(self, request, now_ps):
        began = not request.decoding
        super().commit(request, now_ps)
        if request.decoding and began:
            request.draws = drawn(request.index, len(request.token_ps))


def check_reference(work, make, name, result):
    requests = requests_of(work)

    def bound(request):
        return min(MAX_LEN, request.prompt + 2 ** int(np.ceil(np.log2(request.output))))

    memory = make(1333)
    budget = {"budget": 128} if name == "vllm-v1" else {}
    told = Speculating(requests, memory, Uneven().step_ps, bound=bound, seats=24, **budget).run()
    assert_as_told(result, requests, told, memory.capacity_slots)
    assert result.token_gaps.count == int((work.output_tokens - 1).sum())


def test_a_span_takes_many_steps_at_once():
    work = Workload("test", np.array([0]), np.array([4]), np.array([100]))
    asked = []

    class Counting(drawing(VllmV1)):
        def schedule(self, server):
            asked.append(server.now_ps)
            super().schedule(server)

    config = EngineConfig(async_scheduling=False)
    chosen = Counting(config, MAX_LEN)
    server = chosen.new_server(Paged(1024, 64), reservation("max", MAX_LEN))
    result = engine_of(work, server, chosen, Uneven(), MAX_LEN, timeline_rows=2).run()
    assert result.step_count < 60  # 100 tokens, 2.5 a step
    assert len(asked) < result.step_count / 4
