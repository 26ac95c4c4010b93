"""An allocator's work besides allocation takes time: steps wait for it, or it runs while they compute."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, GPU, MODEL, draw_case, events_of, told
from support.pages import Forward, Mapped, Packed

from kvsim.sim.build import build_engine
from kvsim.sim.classes import name_of
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.record.metrics import kinds, request_table, summary
from kvsim.sim.workload import Workload

PS_PER_MS = 10**9
SCHEDULERS = ("vllm-v1@0.33.0", "vllm-v1@0.11.0", "orca")


def scenario(allocator, tokens=200, **engine):
    engine = EngineConfig(
        allocator=name_of(allocator), scheduler="vllm-v1@0.33.0", max_num_seqs=40, max_model_len=128, **engine
    )
    return Deployment(model=MODEL, gpu=GPU, engine=engine, kv_tokens=tokens, cost="constant:0.02")


def work(prompts, answers, gaps=None):
    arrival = np.cumsum(gaps or [0] * len(prompts)).astype(np.int64)
    return Workload("test", arrival, np.array(prompts), np.array(answers))


# -- both modes --------------------------------------------------------------------------------------


def run(case, allocator, max_span):
    engine = build_engine(
        replace(case.scenario, engine=replace(case.engine, allocator=name_of(allocator), reserve=None)),
        case.work,
        max_span=max_span,
        check=True,
        events=True,
        map_instants=20 if max_span > 1 else 0,
    )
    engine.replica.pricing.cost = COSTS[case.cost]()
    engine.replica.recorder.timeline.most_rows = case.timeline_rows
    return engine.run(), engine


@pytest.mark.slow
@pytest.mark.parametrize("allocator", [Mapped, Forward, Packed])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_fast_forward_equals_step_mode(scheduler, allocator):
    seen = dict.fromkeys(("maps", "unmaps", "steps waited", "idle", "copied"), 0)
    for seed in range(25):
        case = draw_case(Random(seed), scheduler)
        case.engine = replace(case.engine, enable_prefix_caching=False)
        (slow, one), (fast, other) = run(case, allocator, 1), run(case, allocator, 1 << 20)
        assert told(slow) | events_of(one) == told(fast) | events_of(other), seed
        assert slow.upkeep == fast.upkeep
        for sums in (slow.saturated, slow.unsaturated):
            parts = kinds(sums, slow.capacity_slots, ("idle",) * allocator.idles)
            assert min(parts.values()) >= 0, parts
            assert sum(parts.values()) == slow.capacity_slots * sums.time_ps
        for name in ("maps", "unmaps"):
            seen[name] += getattr(slow.upkeep, name)
        seen["steps waited"] += slow.upkeep.waited_ps
        seen["copied"] += slow.copied_slots
        seen["idle"] += slow.saturated.idle + slow.unsaturated.idle
    happens = {Mapped: 4, Forward: 3, Packed: 3}[allocator]
    assert [name for name, count in seen.items() if count][:happens] == list(seen)[:happens]
    assert bool(seen["idle"]) == allocator.idles
    assert bool(seen["copied"]) == allocator.moves_on_release


# -- the law -----------------------------------------------------------------------------------------


class Told(Mapped):
    """Counts its calls separately: in `after_step`, and elsewhere."""

    def __init__(self, capacity_slots):
        super().__init__(capacity_slots)
        self.inside_ns = 0

    @property
    def all_ns(self):
        return self.maps * self.map_ns + self.unmaps * self.unmap_ns

    def after_step(self, lengths):
        before = self.all_ns
        super().after_step(lengths)
        self.inside_ns += self.all_ns - before


class Clerk(CostModel):
    """Steps of 1 ms; records at each what the allocator has done so far."""

    source = "test"

    def __init__(self, allocator):
        self.allocator, self.rows = allocator, []

    def step_ps(self, shape):
        inside_ns = self.allocator.inside_ns
        self.rows.append((self.allocator.all_ns - inside_ns, inside_ns))
        return PS_PER_MS


def test_a_step_takes_what_it_waits_for_and_the_longer_of_compute_and_work_beside_it():
    engine = build_engine(
        scenario(Told, tokens=20_000), work([50, 3, 17, 90, 8] * 6, [9, 40, 3, 20, 33] * 6), step_log=True
    )
    engine.replica.pricing.cost = clerk = Clerk(engine.replica.server.allocator)
    result = engine.run()
    rows = np.array(clerk.rows) * 1_000
    waits, beside = np.diff(rows, axis=0, prepend=0).T
    assert result.steps["duration_ps"].tolist() == (np.maximum(beside, PS_PER_MS) + waits).tolist()
    assert (beside > PS_PER_MS).any()
    assert (beside < PS_PER_MS).any()
    assert (waits > 0).sum() > 3
    totals = result.upkeep
    assert totals.waited_ps == waits.sum()
    assert totals.hidden_ps + totals.exceeded_ps == beside.sum()
    assert totals.exceeded_ps == np.maximum(beside - PS_PER_MS, 0).sum()


def test_what_is_left_to_do_when_nobody_comes_costs_nobody_time():
    second_ps = 10**12
    engine = build_engine(scenario(Forward), work([16, 16], [2, 2], [0, second_ps]), step_log=True)
    result = engine.run()
    map_ps = 2 * 900_000 * 1_000
    step_ps = 20 * PS_PER_MS
    assert result.steps["duration_ps"].tolist() == [step_ps + map_ps, step_ps + map_ps // 2] * 2
    assert result.upkeep.unmaps == 3


def test_the_next_step_waits_for_what_a_release_unmaps():
    result = build_engine(scenario(Forward), work([8, 7], [1, 4]), step_log=True).run()
    waited = result.steps["duration_ps"] - 20 * PS_PER_MS
    calls_ps = np.array([2 * 900_000, 300_000, 900_000, 0]) * 1_000
    assert waited.tolist() == calls_ps.tolist()


def test_what_a_release_moves_is_in_the_work_of_the_next_step():
    shapes = []

    class Seen(CostModel):
        source = "test"

        def step_ps(self, shape):
            shapes.append(shape.copied_tokens)
            return PS_PER_MS

    engine = build_engine(scenario(Packed), work([8, 7], [1, 4]))
    engine.replica.pricing.cost = Seen()
    assert engine.run().copied_slots == sum(shapes) == 8


# -- limits and names --------------------------------------------------------------------------------


def test_who_finds_no_place_among_the_most_sequences_waits_and_that_is_no_fragmentation():
    result = build_engine(scenario(Mapped, tokens=2_000), work([8] * 30, [20] * 30)).run()
    assert result.max_running == 12
    assert result.fragmented_refusals == 0
    assert result.finished.all()


def test_results_have_a_seventh_kind_only_where_slots_may_be_idle():
    for allocator in (Mapped, Forward):
        result = build_engine(scenario(allocator), work([30, 9] * 4, [20, 50] * 4)).run()
        told_of = summary(result, request_table(result))
        assert ("idle" in result.timeline) == ("idle" in told_of["memory"]["average"]) == allocator.idles
        assert sum(told_of["memory"]["average"].values()) == pytest.approx(100)
        assert told_of["upkeep"]["maps"] > 0
    result = build_engine(
        replace(scenario(Mapped), engine=replace(scenario(Mapped).engine, allocator="paged")),
        work([30], [20]),
    ).run()
    assert "idle" not in result.timeline
    assert "upkeep" not in summary(result, request_table(result))
