"""Several replicas on one clock: a fleet is exactly the servers that it consists of."""

from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, draw_case, of_one_digit, told

import kvsim
from kvsim import workloads
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.fleet_result import part, requests_of
from kvsim.sim.routers.base import Router
from kvsim.sim.serving.fleet import FleetConfig

pytestmark = pytest.mark.slow

ROUTERS = ("round-robin", "random", "least-requests", "least-requests:2", "least-kv", "prefix")
SCHEDULERS = ("vllm-v1@0.11.0", "vllm-v1@0.33.0", "vllm-v0", "nano-vllm", "orca", "static")


def run(case, fleet, max_span=1 << 20):
    engine = build_engine(replace(case.scenario, fleet=fleet), case.work, max_span=max_span, check=True)
    for replica in engine.replicas:
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
    return engine.run(), engine


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_under_round_robin_are_so_many_servers_of_their_own(scheduler, replicas):
    for seed in range(12):
        case = of_one_digit(draw_case(Random(seed), scheduler))
        _, engine = run(case, FleetConfig(replicas=replicas))
        for place, result in enumerate(engine.results):
            rows = np.arange(place, len(case.work), replicas)
            if not len(rows):
                continue
            alone = replace(case.work, **vars_of(requests_of(case.work, rows)))
            single = build_engine(case.scenario, alone, check=True)
            single.replica.pricing.cost = COSTS[case.cost]()
            single.replica.recorder.timeline.most_rows = case.timeline_rows
            expected, found = told(single.run()), told(part(result, place))
            assert {k for k in expected if expected[k] != found[k]} == set(), (seed, place)


def vars_of(work):
    return {field.name: getattr(work, field.name) for field in fields(work)}


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_in_a_fleet_fast_forward_equals_step_mode(scheduler, router):
    for seed in range(100, 112):
        case = draw_case(Random(seed), scheduler)
        fleet = FleetConfig(replicas=3, router=router, seed=seed)
        (fast, _), (slow, _) = run(case, fleet), run(case, fleet, max_span=1)
        one, other = told(fast), told(slow)
        assert {name for name in one if one[name] != other[name]} == set(), seed


def server(**settings):
    engine = EngineConfig(**settings)
    return Deployment(model=model_named("opt-13b"), gpu=gpu_named("a100-40gb"), engine=engine)


def chat(**options):
    return workloads.build(
        "sharegpt", **{"num_prompts": 400, "request_rate": 8.0, "burstiness": 1.0, "seed": 1} | options
    )


def test_least_requests_waits_less_than_random_and_two_choices_are_nearly_as_good():
    delays = {}
    for router in ("random", "least-requests", "least-requests:2"):
        result = build_engine(replace(server(), fleet=FleetConfig(replicas=4, router=router)), chat()).run()
        assert result.finished.all()
        delays[router] = (result.requests["first_token_ps"] - result.arrival_ps).mean()
    assert delays["least-requests"] < delays["random"]
    assert delays["least-requests:2"] < delays["random"]


def test_the_prefix_router_hits_more_than_round_robin():
    work = chat(shared_prefix="60x600")
    hits = {}
    for router in ("round-robin", "prefix"):
        where = replace(server(enable_prefix_caching=True), fleet=FleetConfig(replicas=4, router=router))
        hits[router] = build_engine(where, work).run().hit_tokens
    assert hits["prefix"] > hits["round-robin"]


@pytest.mark.parametrize("router", ROUTERS)
def test_a_session_sticks_to_its_replica(router):
    sessions = np.arange(400) % 37
    work = replace(chat(), labels={"session": sessions})
    fleet = FleetConfig(replicas=4, router=router, sticky=True)
    result = build_engine(replace(server(), fleet=fleet), work).run()
    assert result.finished.all()
    homes = {(int(session), int(home)) for session, home in zip(sessions, result.replica, strict=True)}
    assert len(homes) == 37
    assert len({home for _, home in homes}) > 1


def test_the_clients_of_a_closed_loop_are_served_by_all():
    work = chat(clients=12, request_rate=None, burstiness=None)
    result = build_engine(
        replace(server(), fleet=FleetConfig(replicas=3, router="least-requests")), work
    ).run()
    assert result.finished.all()
    assert np.bincount(result.replica, minlength=3).min() > 60


class Last(Router):
    def choose(self, request, replicas):
        return len(replicas) - 1


class Nowhere(Router):
    def choose(self, request, replicas):
        return len(replicas)


def test_a_router_of_ones_own_chooses():
    fleet = FleetConfig(replicas=3, router=f"{__name__}:Last")
    assert set(build_engine(replace(server(), fleet=fleet), chat()).run().replica) == {2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"router": "best"}, "router 'best' is unknown"),
        ({"router": "least-requests:x"}, "how many replicas to draw"),
        ({"router": "random:2"}, "router takes no option, got '2'"),
        ({"replicas": 0}, "replicas must be a whole number from 1"),
        ({"sticky": True}, "sticky needs a trace with sessions"),
        ({"router": f"{__name__}:Nowhere"}, "must choose a replica from 0 to 1, got 2"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(KvsimError, match=message):
        build_engine(replace(server(), fleet=FleetConfig(**{"replicas": 2} | settings)), chat()).run()


def test_a_replica_that_nothing_went_to_has_no_answers_either():
    found = kvsim.simulate(replicas=2, n=2, num_prompts=1, cost="constant:0.03")
    assert [replica["requests"]["finished"] for replica in found.summary["replicas"]] == [1, 0]
