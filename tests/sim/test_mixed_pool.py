"""Prefill and decode replicas that serve requests alone while the other side is overloaded."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.apart import all_free, apart, deaths, run
from support.cases import draw_case, told
from support.seeded import noted

import kvsim
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import prepare
from kvsim.sim.workload import PS_PER_S, Workload


@noted
def check_seed(seed):
    rng = Random(seed)
    case = draw_case(Random(seed), "vllm-v1@0.33.0")
    deployment, case = apart(rng, case, rng.randint(1, 2), rng.randint(1, 3))
    mixed = {"mixed_pool": rng.choice([1, 8, 30]), "direct_decode": rng.choice([0, 0, 8])}
    deployment = replace(deployment, fleet=replace(deployment.fleet, **mixed))
    if rng.random() < 0.5:
        _, plain = run(deployment, case, 1 << 20)
        fail = deaths(rng, deployment.fleet.replicas, plain.end_ps)
        deployment = replace(deployment, fleet=replace(deployment.fleet, fail=fail))
    engine, slow = run(deployment, case, 1)
    other, fast = run(deployment, case, 1 << 20)
    one, two = told(slow), told(fast)
    assert {name for name in one if one[name] != two[name]} == set()
    assert engine.hand_over.totals() == other.hand_over.totals()
    assert engine.hand_over.mixed.changes == other.hand_over.mixed.changes
    assert slow.finished.sum() + sum(slow.rejected.values()) == len(case.work)
    all_free(engine)
    roles = [
        place < deployment.pools[0].replicas for _, place, joins in engine.hand_over.mixed.changes if joins
    ]
    again = 0 if slow.resent is None else int(slow.resent.sum())
    assert not any(getattr(replica.server, "answers", ()) for replica in engine.replicas)
    return sum(roles), len(roles) - sum(roles), again


def test_both_modes_agree_nothing_is_lost_and_all_blocks_are_free_in_the_end():
    counts = [0, 0, 0]
    for seed in range(60):
        found = check_seed(seed)
        counts = [before + now for before, now in zip(counts, found, strict=True)]
    prefill, decode, resent = counts
    assert (prefill > 20, decode > 20, resent > 20) == (True, True, True), counts


def served(arrivals_s, prompt_tokens, pool, **options):
    """One second per step: the engine after its run, and who served which requests, whole or apart."""
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "cost": "constant:1",
        "async_scheduling": False,
        **options,
    }
    arrival_ps = np.array([round(at_s * PS_PER_S) for at_s in arrivals_s])
    tokens = np.full(len(arrival_ps), prompt_tokens)
    work = Workload("burst", arrival_ps, tokens, np.full(len(arrival_ps), 4))
    ready = prepare(Scenario(pool=pool, router="least-requests", **asked).deployed(), work, {})
    found = ready.outcome()
    assert found.summary["requests"]["finished"] == len(work)
    apart = ~np.isnan(found.requests["prompt_computed_s"])
    mixed = ready.engine.hand_over.mixed
    changes = [(change.at_ps // PS_PER_S, change.place, change.joins) for change in mixed.changes]
    assert found.summary["mixed_pool"] == {
        "requests": int((~apart).sum()),
        "joins": sum(joins for *_, joins in changes),
    }
    return changes, list(zip(found.requests["replica"].tolist(), apart.tolist(), strict=True)), found.requests


def test_a_decode_replica_computes_prompts_while_the_prefill_queue_is_long_and_goes_back():
    """100 tokens each, 250 at most: two wait, so the third is served by replica 1 alone, the fourth, too."""
    changes, found, _ = served([0, 0, 0, 0, 50], 100, "prefill:1 decode:1", mixed_pool=250)
    assert changes == [(0, 1, True), (50, 1, False)]
    assert found == [(1, True), (1, True), (1, False), (1, False), (1, True)]


def test_a_prefill_replica_answers_while_decode_memory_is_full_and_goes_back():
    """Room for 320 tokens: two prompts of 160 are on their way, the third has no room there."""
    pool = "prefill:1:kv_tokens=4000,max_num_seqs=2 decode:1:kv_tokens=336"
    changes, found, _ = served([0, 0, 0, 0, 50], 160, pool, mixed_pool=10_000, max_model_len=320)
    assert changes == [(0, 0, True), (50, 0, False)]
    assert found == [(1, True), (1, True), (0, False), (0, False), (1, True)]


def test_if_both_sides_are_overloaded_the_replica_with_the_fewest_pending_tokens_serves_all():
    """Replica 1 has two requests of 100 tokens alone, as many as wait at replica 0: the first of equals."""
    changes, found, _ = served([0] * 5, 100, "prefill:1 decode:1", mixed_pool=250)
    assert changes == [(0, 1, True), (0, 0, True)]
    assert found[4] == (0, False)


def test_requests_that_decode_on_a_prefill_replica_take_no_seat_of_prompts():
    """With one seat, prompts are computed one after the other, the fourth while the third decodes."""
    pool = "prefill:1:kv_tokens=4000,max_num_seqs=1 decode:1:kv_tokens=336"
    _, found, requests = served([0, 0, 0, 0], 160, pool, mixed_pool=10_000, max_model_len=320)
    assert found[2:] == [(0, False), (0, False)]
    assert requests["first_scheduled_s"].tolist() == [0, 1, 2, 3]
    assert requests["finish_s"][2:].tolist() == [6, 7]


def test_prompts_on_both_sides_start_sooner_than_on_one():
    told = {"model": "llama-3.1-8b", "gpu": "l40s", "num_prompts": 300, "request_rate": 40.0}
    told |= {"pool": "prefill:1 decode:2", "router": "least-requests"}
    plain, mixed = (kvsim.simulate(**told, mixed_pool=tokens) for tokens in (0, 2000))
    assert "mixed_pool" not in plain.summary and "mixed_pool" not in plain.config["fleet"]
    assert mixed.summary["mixed_pool"]["requests"] > 20
    assert mixed.summary.latency.ttft_s.mean < plain.summary.latency.ttft_s.mean / 2
    assert kvsim.simulate(**told, mixed_pool=10**9).summary.latency == plain.summary.latency


def test_there_is_no_mixed_pool_of_equal_replicas():
    with pytest.raises(
        KvsimError, match="mixed_pool must be left out without prefill and decode pools, got 9"
    ):
        kvsim.simulate(model="llama-3.1-8b", replicas=2, mixed_pool=9, num_prompts=5)
