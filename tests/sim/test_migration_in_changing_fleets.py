"""Migrations while replicas come, go and die: draining replicas empty, nothing is lost, modes agree."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.apart import deaths
from support.cases import draw_case, told

import kvsim
from kvsim.sim.build import build_engine
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.serving.llumnix import Llumnix
from kvsim.sim.workload import PS_PER_S

from .test_migration import keep_few, seen


def test_a_replica_that_drains_is_the_first_source_and_never_a_target():
    fleet = [seen(0, 900, 4, 500), seen(1, 100, 1), seen(2, 300, 2)]
    none = [False] * 5
    assert Llumnix().pairs(fleet, none, lambda _: False, [3]) == [(3, 1), (0, 2)]
    assert Llumnix().pairs(fleet, none, lambda _: False, [3, 4]) == [(3, 1), (4, 2)]
    assert Llumnix().pairs(fleet, [False] * 3 + [True, False], lambda _: False, [3, 4]) == [(4, 1), (0, 2)]


def outcome(case, fleet, max_span):
    """The results of a run, its migrations and changes; its memory is empty at the end."""
    engine = build_engine(replace(case.scenario, fleet=fleet), case.work, max_span=max_span, check=True)
    keep_few(engine, case.timeline_rows)
    make = engine.lives._make

    def small(place):
        replica = make(place)
        replica.recorder.timeline.most_rows = case.timeline_rows
        return replica

    engine.lives._make = small
    result = engine.run()
    assert set(np.flatnonzero(~result.finished)) == engine.log.rejected
    for replica in engine.replicas:
        memory = replica.server.memory
        assert not (replica.server.batch.moving or replica.input_queue.has_requests)
        assert not (memory.prefill_held or memory.internal or memory.allocator.used_slots)
    moves = [
        (move.request.index, move.source, move.target, move.copied, move.begin_ps, move.stop_ps, move.end_ps)
        for move in engine.migrations.moves
    ]
    changes = None if engine.scaler is None else engine.scaler.changes
    lost = None if engine.deaths is None else engine.deaths.lost
    return told(result), moves, engine.migrations.totals(), changes, lost


def drawn(rng, asynchronous):
    """A case of many short steps, and a fleet in which requests migrate."""
    case = draw_case(rng, "vllm-v1@0.33.0")
    engine = replace(case.engine, async_scheduling=asynchronous, allocator="paged", reserve=None)
    if engine.policy == "sjf":
        engine = replace(engine, policy="fcfs")
    case = replace(case, engine=engine, samples=False, kv_tokens=rng.choice([case.kv_tokens, 300, 1000]))
    count, router = rng.randint(2, 4), rng.choice(["round-robin", "llumnix", "least-kv"])
    every, source = rng.choice([0.007, 0.05]), rng.choice([-48, 0, 30, 250])
    last, stages, link = rng.choice([1, 2, 16]), rng.randint(1, 4), rng.choice(["0.01", "1", "400gb"])
    words = f"every={every},last={last},stages={stages},link={link},source={source},target={source}"
    return case, FleetConfig(replicas=count, router=router, migrate=f"llumnix:{words}")


def scaled(rng, fleet, end_s):
    """The fleet with a random policy."""
    steps = ",".join(f"{end_s * share / 4:.9f}={rng.randint(1, fleet.replicas)}" for share in (1, 2, 3))
    scale = rng.choice([
        f"schedule:0={fleet.replicas},{steps}",
        f"threshold:queue=1,kv=0.5,every={end_s / rng.choice([9, 30]):.9f},cool=0",
    ])  # fmt: skip
    return replace(fleet, scale=scale, startup_time=end_s / rng.choice([20, 100]), load_bandwidth=1e9)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kind", ["scaling", "deaths", "both"])
def test_all_are_served_and_fast_forward_equals_step_mode(kind, asynchronous, request):
    moved, given_up, died = 0, set(), 0
    for seed in range(request.config.getoption("--fuzz") or 40):
        rng = Random(f"{seed} {kind} {asynchronous}")
        case, fleet = drawn(rng, asynchronous)
        end_ps = build_engine(replace(case.scenario, fleet=fleet), case.work).run().end_ps
        if kind != "deaths":
            fleet = scaled(rng, fleet, end_ps / PS_PER_S)
        if kind != "scaling":
            fleet = replace(fleet, fail=deaths(rng, fleet.replicas, end_ps))
        one, other = outcome(case, fleet, 1), outcome(case, fleet, 1 << 20)
        assert {name for name in one[0] if one[0][name] != other[0][name]} == set(), seed
        assert one[1:] == other[1:], seed
        moved += one[2].migrations
        given_up |= one[2].given_up.keys()
        died += one[4].deaths if one[4] else 0
    assert moved > 30
    assert "died" in given_up or kind == "scaling"
    assert (died > 20) == (kind != "scaling")


def test_all_replicas_always_is_no_scaling():
    for seed in range(8):
        rng = Random(seed)
        case, fleet = drawn(rng, seed % 2 == 0)
        end_ps = build_engine(replace(case.scenario, fleet=fleet), case.work).run().end_ps
        fleet = replace(fleet, fail=deaths(rng, fleet.replicas, end_ps))
        plain = outcome(case, fleet, 1 << 20)
        fixed = outcome(case, replace(fleet, scale=f"schedule:0={fleet.replicas}"), 1 << 20)
        assert plain[0] == fixed[0], seed
        assert plain[1:3] == fixed[1:3], seed
        assert plain[4] == fixed[4]


ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "replicas": 4,
    "kv_tokens": 8000,
    "router": "round-robin",
    "num_prompts": 300,
    "request_rate": 8.0,
    "migrate": "llumnix",
}


def test_a_replica_that_drains_is_off_sooner_as_its_requests_leave():
    """Both runs stop two replicas at second 10; decoding on to the end takes far longer than copying."""
    off_s = {}
    for migrate in ("none", "llumnix"):
        run = kvsim.simulate(**{**ASKED, "kv_tokens": None, "migrate": migrate}, scale="schedule:0=4,10=2")
        assert run.summary.requests.finished == 300
        ended = [each["time_s"] for each in run.summary["scaling"]["changes"] if each["state"] == "off"]
        off_s[migrate] = max(ended) - 10
    assert len(ended) == 2
    assert off_s["llumnix"] < 0.5 * off_s["none"]
    moved = run.columns.requests["migration_end_s"]
    assert (moved > 10).sum() > 5
    last_s = np.nanmax(moved[moved < max(ended) + 1e-9])
    assert max(ended) >= last_s


def test_nothing_moves_on_to_a_replica_that_drains():
    """Over a slow link some are half way when their target is switched off."""
    asked = {**ASKED, "migrate": "llumnix:link=0.02,source=48,target=96,last=2", "startup_time": 1.0}
    told = kvsim.simulate(**asked, scale="schedule:0=4,10=2,20=4,25=2").summary["migration"]
    assert told["given_up"]["drains"] > 0
    assert told["migrations"] > 5


@pytest.mark.parametrize("dies", range(4))
def test_whoever_dies_each_token_is_generated_for_the_answer_or_counted_as_wasted(dies):
    run = kvsim.simulate(**ASKED, fail=f"replica={dies}:at=15:for=10")
    faults, rows = run.summary.faults, run.columns.requests
    assert run.summary.requests.finished == 300
    assert faults.resent_requests == rows["resent"].sum() > 0
    assert faults.wasted_output_tokens > 0
    assert run.summary["migration"]["migrations"] > 10
    started_over = (rows["resent"] > 0) & ~np.isnan(rows["migration_end_s"])
    assert (rows["migration_end_s"][started_over] > 15).all()  # earlier ones are of a request that is gone
