"""Asynchronous scheduling on the clock: a step is decided when the previous one begins; arrivals wait."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, draw_case, told
from support.serving import serve, workload

from kvsim.allocators.paged import Paged
from kvsim.sim.build import build_engine
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S, Clients

ROUTERS = ("round-robin", "least-requests", "least-kv")


def first_tokens(rows, waits=None, **options):
    work = replace(workload(rows), waits=waits)
    result = serve(work, Paged(64 * 16, 16), "vllm-v1", max_model_len=256, **options)
    return (result.requests["first_token_ps"] / PS_PER_S).tolist()


def test_who_comes_while_a_step_is_computed_enters_the_one_after_the_next():
    """One second per step: at 2.5 the step that starts at 3 is decided, so the first token is there at 5."""
    rows = [(0, 10, 9), (2.5, 10, 2), (3.0, 10, 2)]
    assert first_tokens(rows) == [1, 4, 4]
    assert first_tokens(rows, hears_late=True) == [1, 5, 5]


def test_an_idle_engine_decides_at_once():
    rows = [(0.5, 10, 2), (4.25, 10, 1), (4.25, 20, 1), (4.5, 10, 1)]
    assert first_tokens(rows, hears_late=True) == [1.5, 5.25, 5.25, 6.25]


def test_of_a_closed_loop_too():
    """The second client's answer is there at 2, and its next prompt at 2.5, in the third step."""
    think = np.array([0, 0, PS_PER_S // 2], dtype=np.int64)
    rows = [(0, 10, 9), (0, 10, 2), (0, 10, 2)]
    assert first_tokens(rows, Clients(2, think), hears_late=True) == [1, 1, 5]
    assert first_tokens(rows, Clients(2, think)) == [1, 1, 4]


def outcome(case, fleet, max_span, work=None):
    work = work or case.work
    engine = build_engine(replace(case.scenario, fleet=fleet), work, max_span=max_span, check=True)
    for replica in engine.replicas:
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
        replica.input_queue.late = True
    return told(engine.run())


@pytest.mark.parametrize("replicas", [1, 3])
def test_fast_forward_equals_step_mode(replicas):
    for seed in range(60):
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        fleet = FleetConfig(replicas=replicas, router=ROUTERS[seed % 3]) if replicas > 1 else FleetConfig()
        fast, slow = (outcome(case, fleet, span) for span in (1 << 20, 1))
        assert {name for name in fast if fast[name] != slow[name]} == set(), seed


def test_waiting_for_answers_in_both_modes():
    rng = np.random.default_rng(1)
    for seed in range(40):
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        think = rng.integers(0, 40 * PS_PER_S, len(case.work))
        if case.work.samples is not None or case.work.beam is not None:
            continue
        work = replace(case.work, arrival_ps=np.zeros_like(case.work.arrival_ps), waits=Clients(3, think))
        for fleet in (FleetConfig(), FleetConfig(replicas=2, router="least-requests")):
            fast, slow = (outcome(case, fleet, span, work) for span in (1 << 20, 1))
            assert {name for name in fast if fast[name] != slow[name]} == set(), (seed, fleet.replicas)
