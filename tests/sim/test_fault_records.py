"""What is recorded of fleets whose replicas die: events of each request, and maps through all lives."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.apart import apart, deaths, run
from support.cases import COSTS, draw_case

import kvsim
from kvsim.reports.memory_map import MemoryMap
from kvsim.sim.build import build_engine
from kvsim.sim.record import metrics
from kvsim.sim.serving.fleet import FleetConfig

from .test_fleet_records import rows_of
from .test_migration_in_changing_fleets import drawn as migrating

SCHEDULERS = ("vllm-v1@0.11.0", "vllm-v1@0.33.0", "vllm-v0", "nano-vllm", "orca", "static", "sglang")


def with_its_cost(engine, case):
    """The engine, whose replicas all have the cost of the case, in each of their lives."""
    make = engine.lives._make

    def prepared(replica):
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
        return replica

    engine.lives._make = lambda place: prepared(make(place))
    for replica in engine.replicas:
        prepared(replica)
    return engine


def with_deaths(rng, case, scenario):
    """The scenario with deaths during its run."""
    end_ps = with_its_cost(build_engine(scenario, case.work), case).run().end_ps
    return replace(scenario, fleet=replace(scenario.fleet, fail=deaths(rng, 3, end_ps)))


def tables(engine):
    """The events and the map of a fleet, as a run writes them."""
    events, maps = [], []
    for lives in engine.lives.lives:
        events.append(metrics.in_turn([metrics.event_table(life.server.events) for life in lives]))
        maps.append(metrics.maps_in_turn([metrics.map_table(life.recorder.memory_map) for life in lives]))
    return metrics.together(events), metrics.together(maps)


def check_events(events, engine):
    """Each request is sent again as often as it was lost, and lost tokens add up."""
    kinds = np.array(events["event"].texts)[events["event"].codes]
    lost, sent = (events["request"][kinds == kind] for kind in ("lost", "send"))
    again = engine.log.times_resent()
    rows = len(engine.workload)
    again = np.zeros(rows, np.int64) if again is None else again
    assert np.bincount(lost, minlength=rows).tolist() == again.tolist()
    there = np.bincount(sent, minlength=rows)
    finished = engine.log.finished
    assert (there[finished] >= again[finished]).all()
    assert (np.diff(events["time_s"]) >= 0).all()
    assert events["resent"].max(initial=0) == again.max(initial=0)


def both_ways(case, scenario):
    """Rows of events and maps in steps and in spans, which change no number; how many requests were lost."""
    told, lost = [], 0
    for span in (1, 1 << 20):
        bare = with_its_cost(build_engine(scenario, case.work, max_span=span), case).run()
        watched = build_engine(scenario, case.work, max_span=span, events=True, map_instants=12)
        result = with_its_cost(watched, case).run()
        for name, column in bare.requests.items():
            assert column.tolist() == result.requests[name].tolist(), name
        events, maps = tables(watched)
        if watched.deaths is not None:
            check_events(events, watched)
            lost = watched.deaths.lost.resent
        told.append((rows_of(events), rows_of(maps)))
    return *told, lost


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_events_and_maps_of_fleets_with_deaths_are_the_same_in_spans_and_in_steps(scheduler):
    lost = 0
    for seed in range(400, 406):
        rng = Random(seed)
        case = draw_case(rng, scheduler)
        scenario = replace(case.scenario, fleet=FleetConfig(replicas=3, router="least-requests"))
        one, other, found = both_ways(case, with_deaths(rng, case, scenario))
        assert one == other, seed
        lost += found
    assert lost > 5


def test_events_of_requests_that_migrate_are_the_same_in_spans_and_in_steps():
    lost = 0
    for seed in range(10):
        rng = Random(seed)
        case, fleet = migrating(rng, seed % 2 == 0)
        scenario = replace(case.scenario, fleet=replace(fleet, replicas=3))
        one, other, found = both_ways(case, with_deaths(rng, case, scenario))
        assert one == other, seed
        lost += found
    assert lost > 5


def test_events_of_prefill_and_decode_apart_are_the_same_in_spans_and_in_steps():
    lost = 0
    for seed in range(500, 512):
        rng = Random(seed)
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        deployment, case = apart(rng, case, rng.randint(1, 2), rng.randint(1, 3))
        _, plain = run(deployment, case, 1 << 20)
        fail = deaths(rng, deployment.fleet.replicas, plain.end_ps)
        if not fail:
            continue
        deployment = replace(deployment, fleet=replace(deployment.fleet, fail=fail))
        told = []
        for span in (1, 1 << 20):
            engine, _ = run(deployment, case, span, events=True)
            events, _ = tables(engine)
            check_events(events, engine)
            told.append(rows_of(events))
            lost += engine.deaths.lost.resent
        assert told[0] == told[1], seed
    assert lost > 10


ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "replicas": 2,
    "num_prompts": 200,
    "request_rate": 20.0,
    "router": "least-requests",
    "kv_tokens": 40_000,
}


def test_lost_tokens_of_events_add_up_to_those_of_the_summary():
    found = kvsim.simulate(**ASKED, fail="replica=1:at=4:for=2", record_map=20)
    events = found.events
    lost = events[events["event"] == "lost"]
    assert lost["tokens"].sum() == found.summary.faults.lost_kv_tokens > 0
    assert set(lost["reason"]) == {"replica 1"} and set(lost["replica"]) == {1}
    again = events[events["event"] == "send"]
    assert set(again["replica"]) == {0} and set(again["time_s"]) == {4}
    assert sorted(again["request"]) == sorted(lost["request"])


def test_the_map_frees_the_blocks_of_a_dead_replica(tmp_path):
    found = kvsim.simulate(**ASKED, fail="replica=1:at=4:for=2", record_map=60)
    found.save(tmp_path / "run")
    timeline, recorded = found.columns.timeline, MemoryMap.read(tmp_path / "run" / "map.parquet", 1)
    before, at, back = recorded.at(3.999), recorded.at(4), recorded.at(7)
    assert before.filled.sum() > 0 and back.filled.sum() > 0
    assert (at.size.sum(), at.filled.sum(), at.cached.any()) == (40_000, 0, False)
    assert 4 in recorded.instants
    here, compared = timeline["replica"] == 1, 0
    for at_s in np.intersect1d(recorded.instants[:-1], timeline["time_s"][here]):
        row = np.searchsorted(timeline["time_s"][here], at_s, side="right") - 1
        compared += 1
        assert recorded.at(at_s).filled.sum() == timeline["token"][here][row], at_s
    assert compared > 5
