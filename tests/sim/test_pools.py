"""Fleets of unlike servers: pools, each with its own GPUs and settings."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, draw_case, told

import kvsim
from kvsim import workloads
from kvsim.sim.build import build_engine, resolve
from kvsim.sim.deployment.deployment import Pool
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.record.fleet_result import part, requests_of
from kvsim.sim.run import deployment_of, prepare
from kvsim.sim.serving.fleet import FleetConfig

TRAFFIC = {"model": "llama-3.1-8b", "num_prompts": 120, "request_rate": 40.0}


def test_one_pool_is_the_fleet_of_equal_servers_in_every_byte():
    for router in ("round-robin", "least-kv"):
        fleet = kvsim.simulate(gpu="h100", tensor_parallel_size=2, replicas=3, router=router, **TRAFFIC)
        pool = kvsim.simulate(pool="both:3:gpu=h100,tp=2", router=router, **TRAFFIC)
        assert pool.config == fleet.config
        assert {**pool.summary, "simulation": 0} == {**fleet.summary, "simulation": 0}
        for name, column in fleet.columns.requests.items():
            assert column.tobytes() == pool.columns.requests[name].tobytes(), name


@pytest.mark.parametrize("router", ["round-robin", "least-requests:2", "least-kv", "prefix"])
@pytest.mark.parametrize("scheduler", ["vllm-v1@0.33.0", "vllm-v0", "orca"])
def test_pools_of_equal_servers_are_one_pool(scheduler, router):
    for seed in range(3):
        case = draw_case(Random(seed), scheduler)
        whole = replace(case.scenario, fleet=FleetConfig(replicas=4, router=router, seed=seed))
        parts = tuple(
            Pool(name, "both", n, replace(case.scenario, fleet=FleetConfig(replicas=n, router=router)))
            for name, n in (("few", 1), ("many", 3))
        )
        found = []
        for deployment in (whole, replace(whole, pools=parts)):
            engine = build_engine(deployment, case.work, check=True)
            for replica in engine.replicas:
                replica.pricing.cost = COSTS[case.cost]()
            found.append(told(engine.run()))
        assert {name for name in found[0] if found[0][name] != found[1][name]} == set(), seed


def test_the_router_is_that_of_the_whole_fleet():
    case = draw_case(Random(1), "vllm-v1@0.33.0")
    pools = [Pool(name, "both", 2, replace(case.scenario, fleet=FleetConfig())) for name in ("a", "b")]
    fleet = FleetConfig(replicas=4, router="least-requests:2")
    deployment = replace(case.scenario, fleet=fleet, pools=tuple(pools))
    assert resolve(deployment).router.__name__ == "LeastRequests"
    pools[1] = replace(
        pools[1], server=replace(case.scenario, fleet=FleetConfig(replicas=2, router="least-kv"))
    )
    with pytest.raises(KvsimError, match=r"router must be least-requests:2, .*, got least-kv"):
        replace(deployment, pools=tuple(pools))


def unlike(**settings):
    return Scenario(
        model="llama-3.1-8b",
        pool="both:1:gpu=h100,tp=2 both:2:gpu=l40s,max_num_seqs=4,scheduler=orca,allocator=contiguous",
        cost="roofline",
        **settings,
    ).deployed()


def test_under_round_robin_each_replica_is_a_server_of_its_own_settings():
    work = workloads.build("sharegpt", num_prompts=90, request_rate=30.0, burstiness=1.0, seed=3)
    work = replace(work, labels={})
    deployment = unlike()
    engine = build_engine(deployment, work, check=True)
    engine.run()
    servers = [pool.server for pool in deployment.pools for _ in range(pool.replicas)]
    for place, (server, result) in enumerate(zip(servers, engine.results, strict=True)):
        rows = np.arange(place, len(work), 3)
        alone = replace(server, fleet=FleetConfig())
        expected = told(build_engine(alone, requests_of(work, rows), check=True).run())
        found = told(part(result, place))
        assert {k for k in expected if expected[k] != found[k]} == set(), place


def test_in_a_fleet_of_unlike_servers_fast_forward_equals_step_mode():
    work = workloads.build("sharegpt", num_prompts=150, request_rate=60.0, burstiness=1.0, seed=5)
    for router in ("least-requests", "least-kv", "prefix", "random"):
        runs = [
            build_engine(unlike(router=router), work, max_span=span, check=True).run()
            for span in (1, 1 << 20)
        ]
        one, other = map(told, runs)
        assert {name for name in one if one[name] != other[name]} == set(), router
        assert one["end_ps"] > 0


def test_shares_of_unlike_memories_are_those_of_all_memory_together():
    run = kvsim.simulate(
        pool=["both:1:gpu=h100,kv_tokens=3000", "both:2:gpu=l40s,kv_tokens=20000"], **TRAFFIC, cost="roofline"
    )
    for part_name in ("average", "saturated"):
        shares = run.summary["memory"][part_name]
        assert sum(shares.values()) == pytest.approx(100)
    each = [replica["memory"] for replica in run.summary["replicas"]]
    capacities = [memory["capacity_tokens"] for memory in each]
    assert capacities == [3000 // 16 * 16, 20000, 20000]
    assert run.summary["memory"]["capacity_tokens"] == sum(capacities) // 3


def test_what_a_pool_did_is_what_its_replicas_did_and_costs_its_gpus():
    run = kvsim.simulate(
        pool=["both:1:gpu=h100,tp=2", "both:2:gpu=l40s"], gpu_price="h100=3,l40s=0.5", **TRAFFIC
    )
    summary = run.summary
    first, second = summary["pools"]
    assert [first["name"], second["name"]] == ["h100 tp2", "l40s"]
    assert [each["label"] for each in summary["replicas"]] == [
        "replica 0, h100 tp2",
        "replica 1, l40s",
        "replica 2, l40s",
    ]
    finished = [each["requests"]["finished"] for each in summary["replicas"]]
    assert [first["finished"], second["finished"]] == [finished[0], finished[1] + finished[2]]
    assert (first["gpus"], second["gpus"], summary["per_gpu"]["gpus"]) == (2, 2, 4)
    hours = summary["duration_s"] / 3600
    assert first["cost"] == pytest.approx(3 * 2 * hours)
    assert second["cost"] == pytest.approx(0.5 * 2 * hours)
    assert summary["price"]["per_hour"] == pytest.approx(7)
    assert (
        sum(each["output_tokens"] for each in summary["pools"]) == run.columns.requests["output_tokens"].sum()
    )


def test_a_config_holds_all_pools_and_makes_the_same_fleet():
    deployment = resolve(unlike(router="least-kv")).deployment
    work = workloads.build("sharegpt", num_prompts=20, request_rate=30.0, burstiness=1.0, seed=3)
    config = prepare(deployment, work, {}).outcome().config
    assert [pool["name"] for pool in config["pools"]] == ["h100 tp2", "l40s max_num_seqs=4 orca contiguous"]
    again = deployment_of(config)[0]
    assert again == deployment
    assert prepare(again, work, {}).outcome().config == config


def test_each_pool_has_a_longest_sequence_of_its_own():
    run = kvsim.simulate(
        pool="both:1:max_model_len=600 both:1:max_model_len=4000",
        trace="synthetic",
        input_len="500",
        output_len="300",
        num_prompts=10,
        gpu="h100",
    )
    assert run.columns.requests["output_tokens"].tolist() == [100, 300] * 5


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ("both", "pool must be ROLE:REPLICAS:SETTING=VALUE"),
        ("both:0", "pool must be ROLE:REPLICAS"),
        ("cook:2", "with a role of both, prefill, decode, got 'cook:2'"),
        ("both:2:gpu", "must have settings as SETTING=VALUE, got 'gpu'"),
        ("both:2:gpu=h100,gpu=l40s", "must have gpu once"),
        ("both:2:router=random both:1", "router must be left out of pool both:2:router=random"),
        ("both:2:model=opt-13b", "model must be left out of pool"),
        ("both:2:max_num_seq=4", "option 'max_num_seq' is unknown"),
        ("both:2:max_num_seqs=x", "max_num_seqs of a pool must be a whole number, got 'x'"),
        ("both:2:enable_prefix_caching=maybe", "enable_prefix_caching of a pool must be on or off"),
        ("both:2:gpu=h900", "gpu 'h900' is unknown"),
        ("", "pool must be ROLE:REPLICAS"),
    ],
)
def test_mistakes_in_pools_are_named(pool, said):
    with pytest.raises(KvsimError, match=said):
        Scenario(model="llama-3.1-8b", pool=pool).deployed()


def test_replicas_and_pools_exclude_each_other():
    with pytest.raises(KvsimError, match="replicas must be left out with pool"):
        Scenario(pool="both:2", replicas=3).deployed()
    with pytest.raises(KvsimError, match="gpu_price must name l40s too"):
        kvsim.simulate(pool="both:1:gpu=h100 both:1:gpu=l40s", gpu_price="h100=3", **TRAFFIC)


def test_an_option_of_a_part_may_be_that_of_one_pool():
    deployment = resolve(
        Scenario(
            pool="both:1:allocator=contiguous,fit=best both:1:scheduler=vllm-v0,watermark=0.05"
        ).deployed()
    ).deployment
    first, second = (pool.server.engine.options for pool in deployment.pools)
    assert first["fit"] == "best"
    assert second["watermark"] == 0.05
    with pytest.raises(KvsimError, match="fit must be left out for allocator paged"):
        resolve(Scenario(pool="both:1:fit=best both:1").deployed())
