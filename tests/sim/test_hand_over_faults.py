"""Prefill and decode servers that die and come back: requests restart, no block is lost or held twice."""

from dataclasses import replace
from random import Random

import pytest
from support.apart import apart
from support.cases import COSTS, draw_case, told

import kvsim
from kvsim.sim.build import build_engine
from kvsim.sim.serving.faults import NEVER_ALIVE
from kvsim.sim.workload import PS_PER_S


def run(deployment, case, max_span):
    """The engine after its run; every step was recounted."""
    engine = build_engine(deployment, case.work, max_span=max_span, check=True)
    make = engine.lives._make

    def same_cost(place):
        replica = make(place)
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline_rows = case.timeline_rows
        return replica

    engine.lives._make = same_cost
    for replica in engine.replicas:
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline_rows = case.timeline_rows
    return engine, engine.run()


def drawn(rng, replicas, end_ps):
    """Deaths during the run; some replicas never come back."""
    found = []
    for place in range(replicas):
        at_s = 0.0
        for _ in range(rng.randrange(3)):
            at_s += rng.random() * end_ps / PS_PER_S / 2 + 1e-6
            for_s = rng.random() * end_ps / PS_PER_S / 3 + 1e-6
            if rng.random() < 0.15:
                found.append(f"replica={place}:at={at_s:.12f}")
                break
            found.append(f"replica={place}:at={at_s:.12f}:for={for_s:.12f}")
            at_s += for_s
    return " ".join(found)


def check_seed(seed):
    rng = Random(seed)
    case = draw_case(Random(seed), "vllm-v1@0.33.0")
    deployment, case = apart(rng, case, rng.randint(1, 2), rng.randint(1, 3))
    _, plain = run(deployment, case, 1 << 20)
    fail = drawn(rng, deployment.fleet.replicas, plain.end_ps)
    direct = rng.choice([0, 0, 8, 40])
    deployment = replace(deployment, fleet=replace(deployment.fleet, fail=fail, direct_decode=direct))
    engine, slow = run(deployment, case, 1)
    other, fast = run(deployment, case, 1 << 20)
    one, two = told(slow), told(fast)
    assert {name for name in one if one[name] != two[name]} == set()
    assert engine.hand_over.totals() == other.hand_over.totals()
    assert slow.finished.sum() + sum(slow.rejected.values()) == len(case.work)
    for replica in engine.replicas:
        server = replica.server
        assert not (server.waiting or server.running or server.batch.loading)
        assert (server.allocator.used_slots, server.prefill_held, server.memory.internal) == (0, 0, 0)
    assert not engine.hand_over.whole
    if engine.deaths is None:
        return 0, 0, 0
    assert engine.deaths.lost == other.deaths.lost
    assert engine.deaths.lost.resent == (0 if slow.resent is None else slow.resent.sum())
    return engine.deaths.lost.deaths, engine.deaths.lost.resent, slow.rejected.get(NEVER_ALIVE, 0)


def test_whoever_dies_each_request_is_answered_once_and_all_blocks_are_free_in_the_end():
    counts = [0, 0, 0]
    for seed in range(40):
        try:
            found = check_seed(seed)
        except Exception as error:
            error.add_note(f"check_seed({seed})")
            raise
        counts = [before + now for before, now in zip(counts, found, strict=True)]
    deaths, resent, never = counts
    assert (deaths > 40, resent > 40, never > 5) == (True, True, True), counts


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
