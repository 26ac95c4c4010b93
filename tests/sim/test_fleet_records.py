"""What a fleet records of each request and each memory: the same as separate servers would."""

from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, draw_case, of_one_digit

import kvsim
from kvsim.sim.build import build_engine
from kvsim.sim.record import metrics
from kvsim.sim.record.events import Texts
from kvsim.sim.record.fleet_result import requests_of
from kvsim.sim.record.glance import glance
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import Workload

ROUTERS = ("round-robin", "random", "least-requests:2", "least-kv", "prefix")
SCHEDULERS = ("vllm-v1@0.11.0", "vllm-v1@0.33.0", "vllm-v0", "orca")


def served(case, work=None, max_span=1 << 20, map_instants=12, **fleet):
    engine = build_engine(
        replace(case.scenario, fleet=FleetConfig(**fleet)),
        case.work if work is None else work,
        max_span=max_span,
        events=True,
        map_instants=map_instants,
    )
    for replica in engine.replicas:
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
    engine.run()
    return engine


def rows_of(table):
    """The rows of a table, as texts, so that NaN equals NaN."""
    columns = [
        [column.texts[code] for code in column.codes]
        if isinstance(column, Texts)
        else [str(value) for value in column.tolist()]
        for column in table.values()
    ]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("seed", range(6))
def test_under_round_robin_what_happens_to_a_request_is_what_happens_on_a_server_of_its_own(scheduler, seed):
    case, replicas = of_one_digit(draw_case(Random(seed), scheduler)), 2
    engine = served(case, replicas=replicas)
    for place, replica in enumerate(engine.replicas):
        rows = np.arange(place, len(case.work), replicas)
        single = served(case, requests_of(case.work, rows)).replica
        expected, found = single.server.events.table()[0], replica.server.events.table()[0]
        for name in ("request", "by"):
            known = expected[name] >= 0
            expected[name][known] = rows[expected[name][known]]
        assert {name: column.tolist() for name, column in found.items()} == {
            name: column.tolist() for name, column in expected.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("router", ROUTERS)
def test_events_and_maps_are_the_same_in_spans_and_in_steps(scheduler, router):
    for seed in range(200, 204):
        case = draw_case(Random(seed), scheduler)
        told = []
        for max_span in (1, 1 << 20):
            engine = served(case, max_span=max_span, replicas=3, router=router, seed=seed)
            tables = [metrics.event_table(each.server.events) for each in engine.replicas]
            maps = [metrics.map_table(each.recorder.memory_map) for each in engine.replicas]
            told.append((rows_of(metrics.together(tables)), rows_of(metrics.together(maps))))
        assert told[0] == told[1], seed


def test_tables_of_replicas_come_together_in_order_of_time():
    codes = np.array([0, 1])
    one = {"time_s": np.array([0.0, 2.0]), "event": Texts(codes, ["admit", "finish"])}
    other = {"time_s": np.array([0.0, 1.0]), "event": Texts(codes, ["refuse", "admit"])}
    assert rows_of(metrics.together([one, other])) == [
        ("0.0", "admit", "0"),
        ("0.0", "refuse", "1"),
        ("1.0", "admit", "1"),
        ("2.0", "finish", "0"),
    ]
    assert metrics.together([one]) is one
    assert metrics.together([None, None]) is None


def test_a_replica_without_groups_of_layers_has_empty_names_of_them_in_the_map():
    """One that never had a request, beside one whose layers are kept in groups."""
    grouped = {"time_s": np.array([1.0, 4.0]), "layers": Texts(np.array([1, 0]), ["full", "window"])}
    plain = {"time_s": np.array([2.0])}
    found = metrics.together([grouped, plain])
    assert [found["layers"].texts[code] for code in found["layers"].codes] == ["window", "", "full"]
    assert found["replica"].tolist() == [0, 1, 0]


def test_who_looks_at_a_fleet_sees_all_its_replicas_together():
    case = draw_case(Random(3), "vllm-v1@0.33.0")
    engine = served(case, replicas=3)
    seen, capacity = glance(engine), engine.replica.server.allocator.capacity_slots
    assert seen.finished + seen.rejected == seen.requests == len(case.work)
    assert seen.capacity_slots == 3 * capacity
    assert seen.simulated_s == max(each.server.now_ps for each in engine.replicas) / 1e12
    assert seen.now["free"] + seen.now["cached"] == 3 * capacity
    assert seen.now["running"] == seen.now["waiting"] == 0
    for kind in ("token", "running", "waiting"):
        most = [max(getattr(row, kind) for row in each.recorder.timeline.rows()) for each in engine.replicas]
        place = list(type(engine.replica.recorder.timeline.rows()[0])._fields).index(kind)
        assert max(most) <= max(row[place] for row in seen.rows) <= sum(most)
    assert [row[0] for row in seen.rows] == sorted({row[0] for row in seen.rows})


def test_a_part_of_a_workload_has_its_rows_of_every_column():
    """A column of requests that is added to `Workload` is split, too."""
    rows = np.array([1, 3])
    n, column = 4, np.arange(10, 14)
    whole = Workload("w", column, column, column, priority=column, held_ps=column, labels={"session": column})
    found = requests_of(whole, rows)
    for field in fields(Workload):
        value = getattr(whole, field.name)
        if isinstance(value, np.ndarray) and len(value) == n:
            assert getattr(found, field.name).tolist() == [11, 13], field.name
    assert found.labels["session"].tolist() == [11, 13]
    assert found.heard_ps.tolist() == [22, 26]


def test_a_fleet_behind_a_front_end_is_reported_replica_by_replica():
    run = kvsim.simulate(
        model="llama-3.1-8b",
        gpu="h200",
        replicas=3,
        router="random",
        num_prompts=50,
        request_rate=float("inf"),
    )
    assert run.summary.requests.finished == 50
