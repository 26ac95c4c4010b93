"""Prefill and decode servers that die and come back: requests restart, no block is lost or held twice."""

from dataclasses import replace
from random import Random

import pytest
from support.apart import all_free, apart, deaths, run
from support.cases import draw_case, told
from support.seeded import noted

import kvsim
from kvsim.sim.serving.faults import NEVER_ALIVE


@noted
def check_seed(seed):
    rng = Random(seed)
    case = draw_case(Random(seed), "vllm-v1@0.33.0")
    deployment, case = apart(rng, case, rng.randint(1, 2), rng.randint(1, 3))
    _, plain = run(deployment, case, 1 << 20)
    fail = deaths(rng, deployment.fleet.replicas, plain.end_ps)
    direct = rng.choice([0, 0, 8, 40])
    deployment = replace(deployment, fleet=replace(deployment.fleet, fail=fail, direct_decode=direct))
    engine, slow = run(deployment, case, 1)
    other, fast = run(deployment, case, 1 << 20)
    one, two = told(slow), told(fast)
    assert {name for name in one if one[name] != two[name]} == set()
    assert engine.hand_over.totals() == other.hand_over.totals()
    assert slow.finished.sum() + sum(slow.rejected.values()) == len(case.work)
    all_free(engine)
    if engine.deaths is None:
        return 0, 0, 0
    assert engine.deaths.lost == other.deaths.lost
    assert engine.deaths.lost.resent == (0 if slow.resent is None else slow.resent.sum())
    return engine.deaths.lost.deaths, engine.deaths.lost.resent, slow.rejected.get(NEVER_ALIVE, 0)


def test_whoever_dies_each_request_is_answered_once_and_all_blocks_are_free_in_the_end():
    counts = [0, 0, 0]
    for seed in range(40):
        found = check_seed(seed)
        counts = [before + now for before, now in zip(counts, found, strict=True)]
    died, resent, never = counts
    assert (died > 40, resent > 40, never > 5) == (True, True, True), counts


FLEET = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "num_prompts": 200,
    "request_rate": 40.0,
    "cost": "constant:0.05",
}


@pytest.mark.parametrize("dies", [0, 2])
@pytest.mark.parametrize(
    "cost", ["constant:0.05", "measured-elsewhere"]
)  # on a measured clock engines hear late
def test_of_either_side_a_death_costs_what_its_requests_had(dies, cost):
    told = {"pool": "prefill:2 decode:2", "router": "least-requests", **FLEET, "cost": cost}
    plain, faulty = kvsim.simulate(**told), kvsim.simulate(**told, fail=f"replica={dies}:at=2:for=1")
    faults = faulty.summary.faults
    again = faulty.columns.requests["resent"]
    assert faults.resent_requests == again.sum() > 0
    assert (faults.deaths, faults.down_s, again.max()) == (1, 1, 1)
    assert (faults.wasted_output_tokens > 0) == (dies == 2)
    assert faulty.summary.requests.finished == 200
    late = faulty.columns.requests["ttft_s"][again > 0].mean()
    assert late > plain.columns.requests["ttft_s"][again > 0].mean()
    assert faulty.summary["hand_over"]["requests"] >= 200


def test_while_no_decode_server_is_alive_prompts_are_held():
    run = kvsim.simulate(pool="prefill:1 decode:1", fail="replica=1:at=1:for=3", **FLEET)
    requests = run.columns.requests
    assert run.summary.requests.finished == 200
    waited = (requests["prompt_computed_s"] > 1) & (requests["prompt_computed_s"] < 4)
    assert waited.sum() > 50
    assert (requests["read_begin_s"][waited] >= 4).all()
    assert (requests["held_until_s"][waited] > 4).all()
