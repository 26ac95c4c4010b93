"""Replicas that die and come back: requests are sent again, and nothing is answered twice or forgotten."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, draw_case, told

import kvsim
from kvsim import workloads
from kvsim.sim.build import build_engine
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.record.metrics import answered_tokens
from kvsim.sim.run import deployment_of, prepare
from kvsim.sim.serving.faults import NEVER_ALIVE, Fault, faults_of
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S

SCHEDULERS = ("vllm-v1@0.11.0", "vllm-v1@0.33.0", "vllm-v0", "nano-vllm", "orca", "static", "sglang")
ROUTERS = ("round-robin", "random", "least-requests", "least-kv", "prefix", "power-of-two")
REPLICAS = 3


def served(case, fail, router, max_span=1 << 20, seed=0):
    fleet = FleetConfig(replicas=REPLICAS, router=router, seed=seed, fail=fail)
    engine = build_engine(replace(case.scenario, fleet=fleet), case.work, max_span=max_span, check=True)
    for replica in engine.replicas:
        replica.pricing.cost = COSTS[case.cost]()
    if engine.deaths is not None:
        make = engine.lives._make

        def same_cost(place):
            replica = make(place)
            replica.pricing.cost = COSTS[case.cost]()
            return replica

        engine.lives._make = same_cost
    return engine.run(), engine


def drawn(rng, end_ps):
    """Some deaths during the run; at most one replica never comes back."""
    found, mortal = [], rng.randrange(REPLICAS)
    for place in range(REPLICAS):
        at_s = 0.0
        for _ in range(rng.randrange(3)):
            at_s += rng.random() * end_ps / PS_PER_S / 2 + 1e-6
            for_s = rng.random() * end_ps / PS_PER_S / 3 + 1e-6
            if place == mortal and rng.random() < 0.3:
                found.append(f"replica={place}:at={at_s:.12f}")
                break
            found.append(f"replica={place}:at={at_s:.12f}:for={for_s:.12f}")
            at_s += for_s
    return " ".join(found)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_whoever_dies_each_request_is_answered_once_and_all_tokens_are_counted(scheduler):
    deaths = 0
    for seed in range(12):
        rng = Random(seed)
        case, router = draw_case(rng, scheduler), rng.choice(ROUTERS)
        plain, engine = served(case, "", router, seed=seed)
        generated = sum(each.recorder.tally.tokens() for each in engine.lives.every)
        dropped = len(plain.finished) - int(plain.finished.sum())
        exact = not dropped and case.beam is None
        if exact:
            assert generated == answered_tokens(plain)[plain.finished].sum()
        fail = drawn(rng, plain.end_ps)
        result, engine = served(case, fail, router, seed=seed)
        assert result.finished.sum() + sum(result.rejected.values()) >= len(case.work)
        assert set(np.flatnonzero(~result.finished)) == engine.log.rejected
        generated = sum(each.recorder.tally.tokens() for each in engine.lives.every)
        assert generated >= answered_tokens(result)[result.finished].sum()
        if engine.deaths is not None:
            lost = engine.deaths.lost
            deaths += lost.deaths
            assert lost.resent == (0 if result.resent is None else result.resent.sum())
            assert [len(lives) - 1 for lives in engine.lives.lives] == [
                sum(fault.replica == place for fault in engine.deaths.died) for place in range(REPLICAS)
            ]
            if not lost.resent and exact:
                assert generated == answered_tokens(result)[result.finished].sum()
        whole_ps = result.saturated.time_ps + result.unsaturated.time_ps
        down_ps = 0 if engine.deaths is None else engine.deaths.lost.down_ps
        assert whole_ps >= REPLICAS * result.end_ps - down_ps
        for replica in engine.replicas:
            assert not replica.server.waiting
    assert deaths > 5


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_with_deaths_fast_forward_equals_step_mode(scheduler):
    for seed in range(100, 108):
        rng = Random(seed)
        case, router = draw_case(rng, scheduler), rng.choice(ROUTERS)
        fail = drawn(rng, served(case, "", router, seed=seed)[0].end_ps)
        (fast, one), (slow, other) = (
            served(case, fail, router, max_span=span, seed=seed) for span in (1 << 20, 1)
        )
        a, b = told(fast), told(slow)
        assert {name for name in a if a[name] != b[name]} == set(), seed
        if one.deaths is not None:
            assert one.deaths.lost == other.deaths.lost


def test_a_death_after_the_last_answer_changes_nothing():
    for seed in range(4):
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        plain, _ = served(case, "", "least-requests")
        late, engine = served(case, f"replica=1:at={plain.end_ps / PS_PER_S + 1}", "least-requests")
        one, other = told(plain), told(late)
        assert {name for name in one if one[name] != other[name]} == set()
        assert engine.deaths.lost.deaths == 0


ASKED = {"model": "llama-3.1-8b", "gpu": "l40s", "replicas": 2, "num_prompts": 200, "request_rate": 20.0}


def test_work_of_a_dead_replica_is_done_again_and_it_comes_back_empty():
    asked = {**ASKED, "enable_prefix_caching": True, "shared_prefix": "1x512"}
    plain, faulty = kvsim.simulate(**asked), kvsim.simulate(**asked, fail="replica=1:at=4:for=2")
    faults, rows = faulty.summary.faults, faulty.columns.requests
    again = rows["resent"] > 0
    assert (faults.deaths, faults.resent_requests, faults.down_s) == (1, again.sum(), 2)
    assert faults.lost_kv_tokens > faults.wasted_output_tokens > 0
    assert set(rows["replica"][again]) == {0}
    assert (rows["first_token_s"][again] > 4).all()
    assert (rows["arrival_s"][again] <= 4).all()
    while_down = (rows["arrival_s"] > 4) & (rows["arrival_s"] < 6)
    assert set(rows["replica"][while_down]) == {0}
    assert 1 in set(rows["replica"][rows["arrival_s"] > 6])
    assert faulty.summary.latency.ttft_s.p99 > plain.summary.latency.ttft_s.p99
    assert faulty.summary.requests.finished == 200
    timeline = faulty.columns.timeline
    then = (timeline["replica"] == 1) & (timeline["time_s"] > 4) & (timeline["time_s"] < 6)
    assert timeline["running"][then].sum() == timeline["cached"][then].sum() == 0


def test_requests_wait_at_the_router_while_nobody_is_alive():
    run = kvsim.simulate(**ASKED, fail=["replica=0:at=2:for=3", "replica=1:at=2:for=5"])
    rows = run.columns.requests
    meanwhile = (rows["arrival_s"] > 2) & (rows["arrival_s"] < 5)
    assert (rows["first_scheduled_s"][meanwhile] >= 5).all()
    assert run.summary.requests.finished == 200


def test_requests_are_rejected_when_nobody_will_ever_be_alive():
    run = kvsim.simulate(**ASKED, fail=["replica=0:at=2", "replica=1:at=3"])
    rows, requests = run.columns.requests, run.summary["requests"]
    assert requests["rejected_reasons"] == {NEVER_ALIVE: requests["rejected"]}
    assert requests["finished"] + requests["rejected"] == 200
    assert (rows["status"][rows["arrival_s"] > 3] == "rejected").all()


def test_a_session_whose_home_is_dead_finds_another():
    work = workloads.build("sharegpt", num_prompts=300, request_rate=30.0, burstiness=1.0, seed=1)
    sessions = np.arange(300) % 20
    deployment = Scenario(
        model="llama-3.1-8b", gpu="l40s", replicas=3, sticky=True, fail="replica=1:at=3:for=2"
    ).deployed()
    result = build_engine(deployment, replace(work, labels={"session": sessions})).run()
    assert result.finished.all()
    after = work.arrival_ps > 3 * PS_PER_S
    homes = {}
    for session, home in zip(sessions[after], result.replica[after], strict=True):
        homes.setdefault(int(session), set()).add(int(home))
    assert all(len(each) == 1 for each in homes.values())
    assert 1 not in {place for each in homes.values() for place in each}


def test_faults_are_read():
    assert faults_of("replica=1:at=100:for=60 replica=0:at=2.5", 2) == [
        Fault(0, 2_500_000_000_000, None),
        Fault(1, 100 * PS_PER_S, 160 * PS_PER_S),
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replicas": 1, "fail": "replica=0:at=1"}, "fail must be left out with one replica"),
        ({"fail": "replica=2:at=1"}, "fail: replica must be one of 0 to 1, got 2"),
        ({"fail": "replica=1"}, "fail must be replica=N:at=SECONDS"),
        ({"fail": "replica=1:at=x"}, "fail must be replica=N:at=SECONDS"),
        ({"fail": "replica=1:at=1:until=3"}, "fail must be replica=N:at=SECONDS"),
        ({"fail": "replica=1:at=1:for=0"}, "fail must be replica=N:at=SECONDS"),
        ({"fail": "replica=1:at=1:for=5 replica=1:at=3"}, "replica 1 cannot die at 3 s, as it is dead then"),
    ],
)
def test_mistakes_in_faults_are_named(settings, said):
    with pytest.raises(KvsimError, match=said):
        kvsim.simulate(**{**ASKED, **settings})


def test_pools_die_too_and_a_config_repeats_it():
    scenario = Scenario(
        model="llama-3.1-8b", pool="both:1:gpu=h100 both:2:gpu=l40s", fail="replica=2:at=3:for=2"
    )
    work = workloads.build("sharegpt", num_prompts=120, request_rate=20.0, burstiness=1.0, seed=1)
    outcome = prepare(scenario.deployed(), work, {}).outcome()
    assert outcome.config["fleet"]["fail"] == "replica=2:at=3:for=2"
    assert outcome.summary["faults"]["deaths"] == 1
    again = prepare(deployment_of(outcome.config)[0], work, {}).outcome()
    assert {**again.summary, "simulation": 0} == {**outcome.summary, "simulation": 0}
