"""Beam search in spans: looking ahead finds the same survivors as drawing step by step."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from support.cases import COSTS, draw_case, told
from support.settings import with_settings

from kvsim.sim.build import build_engine
from kvsim.sim.serving.beam import DRAWS_AT_ONCE, Survivors, pairs_of
from kvsim.sim.serving.beam_batch import BeamBatch
from kvsim.sim.workload import Beam


def in_steps(survivors: Survivors, searches: int, steps: int):
    """(step, search, pairs) of all draws that drop a candidate, one by one."""
    found = []
    for step in range(1, steps + 1):
        for each in range(searches):
            found += [(step, each, pairs) for _, _, pairs in survivors.drops(1, 1)]
            survivors.pass_over(1)
    return found


@pytest.mark.parametrize("searches", [1, 3, 7])
@pytest.mark.parametrize("process", ["uniform", "replace:0", "replace:0.01", "replace:0.3", "replace:1"])
def test_looking_ahead_draws_the_same_survivors(process, searches):
    steps = 2 * DRAWS_AT_ONCE // searches  # more than are drawn at once
    beam = Beam(4, process, 3)
    found = Survivors(beam).drops(searches, steps)
    assert found == in_steps(Survivors(beam), searches, steps)
    assert bool(found) == (process != "replace:0")


def test_looking_ahead_uses_nothing_up():
    survivors = Survivors(Beam(4, "replace:0.3", 3))
    first = survivors.drops(3, 2000)
    assert survivors.drops(3, 2000) == first
    step, place, _ = first[9]
    survivors.pass_over(3 * (step - 1) + place + 1)
    assert survivors.drops(1, 2000)[0][2] == first[10][2]


def test_each_candidate_is_dropped_as_often_as_the_process_says():
    for process, share in (("replace:0.2", 0.2 / 4), ("uniform", 0.75**4)):  # of four draws, each missed it
        drops = Survivors(Beam(4, process, 0)).drops(1, 20_000)
        dropped = Counter(place for _, _, pairs in drops for place, _ in pairs)
        assert all(abs(dropped[place] / 20_000 - share) < 0.01 for place in range(4))


@pytest.mark.parametrize(
    ("parents", "pairs"),
    [
        ([0, 1, 2, 3], []),
        ([3, 2, 1, 0], []),
        ([0, 0, 2, 2], [(1, 0), (3, 2)]),
        ([3, 3, 3, 1], [(0, 3), (2, 3)]),
        ([2, 2, 2, 2], [(0, 2), (1, 2), (3, 2)]),
    ],
)
def test_who_has_no_child_gives_way_to_who_has_several(parents, pairs):
    assert pairs_of(parents) == pairs


def run(case, max_span: int, check: bool):
    """The results of a run, without events, and the order of its free blocks at the end."""
    engine = build_engine(case.scenario, case.work, max_span=max_span, check=check)
    engine.replica.pricing.cost = COSTS[case.cost]()
    engine.replica.recorder.timeline.most_rows = case.timeline_rows
    result = engine.run()
    return told(result) | {"free": engine.replica.server.allocator.free_queue()}


@pytest.mark.parametrize(
    "process",
    ["uniform", *(pytest.param(f"replace:{share}", marks=pytest.mark.slow) for share in (0.1, 0.3, 1))],
)
def test_spans_that_go_on_behind_drops_are_its_steps_one_by_one(process, monkeypatch):
    behind = []
    branch = BeamBatch._branch

    def noted(batch, drops, due, clock):
        behind.append(len(drops))
        branch(batch, drops, due, clock)

    monkeypatch.setattr(BeamBatch, "_branch", noted)
    for seed in range(12):
        case = draw_case(Random(seed), "vllm-v0")
        engine = with_settings(case.engine, enable_prefix_caching=False, watermark=0.01)
        tokens = (case.kv_tokens, 600, 20_000)[seed % 3]
        width = 2 + seed % 3
        rows = [replace(row, answers=[3 * row.answers[0] + 20]) for row in case.rows]
        beam = Beam(width, process, seed)
        case = replace(case, engine=engine, kv_tokens=tokens, rows=rows, beam=beam, samples=False)
        one, other = run(case, 1 << 20, False), run(case, 1, True)
        assert {k for k, v in one.items() if other[k] != v} == set()
    assert len(behind) > 20 and max(behind) > 1


@pytest.mark.parametrize("seed", [1479, 1486])
def test_candidates_whose_pages_are_copied_at_once_own_their_last_page(seed):
    """Over `mlc` they have slots from the fork on that will never be written."""
    case = draw_case(Random(seed), "vllm-v0+mlc")
    fast, slow = (
        told(build_engine(case.scenario, case.work, max_span=span, check=True).run()) for span in (1 << 20, 1)
    )
    assert case.beam is not None and fast == slow
