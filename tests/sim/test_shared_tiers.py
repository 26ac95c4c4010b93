"""A tier that a fleet shares: a lone server is as before, several find what any of them stored."""

from random import Random

import pytest
from support.cases import Row, draw_case
from support.seeded import noted
from support.shared_tiers import ROUTERS, above_shared, differences, found, run
from support.tiered import TOKEN_BYTES, engine_above, mib, one_by_one, spaced

import kvsim
from kvsim.sim.errors import NoProgress
from kvsim.sim.serving.fleet import FleetConfig


def drawn(seed, shared=":shared"):
    return above_shared(Random(seed), draw_case(Random(seed), "vllm-v1@0.33.0"), shared)


@pytest.mark.parametrize("max_span", [1, 1 << 20])
def test_a_server_that_shares_with_nobody_is_as_with_a_tier_of_its_own(max_span):
    promoted = 0
    for seed in range(60):
        try:
            shared, own = run(drawn(seed), max_span), run(drawn(seed, ""), max_span)
        except NoProgress:
            continue
        assert (differences(shared, own), shared.tier) == (set(), own.tier), seed
        promoted += own.tier.promoted_tokens > 0
    assert promoted > 5


@noted
def check_seed(seed, router):
    case, fleet = drawn(seed), FleetConfig(replicas=Random(seed).choice([2, 3, 4]), router=router, seed=seed)
    slow, fast = (run(case, max_span, fleet, seed % 2 == 1) for max_span in (1, 1 << 20))
    assert (differences(slow, fast), slow.tier) == (set(), fast.tier), (seed, router)
    return slow


@pytest.mark.parametrize("router", ROUTERS[:3])
def test_fast_forward_equals_step_mode(router):
    assert sum(check_seed(seed, router).tier.promoted_tokens > 0 for seed in range(20)) > 3


@pytest.mark.slow
@pytest.mark.parametrize("router", ROUTERS)
def test_fast_forward_equals_step_mode_in_more_cases(router):
    for seed in range(100, 200):
        try:
            check_seed(seed, router)
        except NoProgress:
            continue


# -- laws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_however_many_share_an_endless_tier_they_find_what_one_server_finds(seed, replicas):
    work, endless = one_by_one(Random(seed), 80), f"remote:{mib(10_000)}:1000000"
    alone = found(work, 1, endless)
    assert found(work, replicas, endless + ":shared") == alone > found(work, replicas, endless)


# -- two servers, step by step ------------------------------------------------------------------------


def two_servers(max_span, rows, **settings):
    """4 blocks of 32 tokens each, steps of 20 ms, a host for 40 chunks over a link of 1 GB/s; in turn."""
    above = {"block_size": 32, "max_model_len": 96, "enable_prefix_caching": False}
    host = {"kv_offloading_size": mib(40, 32), "kv_offloading_link": "1"}
    engine = engine_above(
        spaced(rows, 10**9),
        4,
        fleet=FleetConfig(replicas=2),
        max_span=max_span,
        **above | host | settings,
    )
    for replica in engine.replicas:
        replica.recorder.timeline.most_rows = 2  # spans end at a row
    return engine.run()


@pytest.mark.parametrize("max_span", [1, 1 << 20])
def test_who_waits_finds_what_another_server_has_stored_meanwhile(max_span):
    """The second server decodes up to 600 ms, and has no room for a prompt that the first computes at 350 ms.

    It is on the first one's host at 423 ms, passed on by its step of 430 and whole below at 528: the second
    finds it in its step of 540, before there is room, and has it on its own host 525 ms later.
    """
    rows = [Row(0, 4, [1], "alone", 0, 0), Row(0, 64, [30], "alone", 1, 0)]
    rows += [Row(350, 64, [30], "same", 0, 0), Row(1, 64, [1], "same", 0, 0)]
    result = two_servers(max_span, rows, secondary_tiers=f"remote:{mib(40, 32)}:0.1/0.5:shared")
    up_ps, load_ps = (10_000_000 + 64 * TOKEN_BYTES * 10**12 // rate for rate in (10**8, 10**9))
    assert result.requests["first_token_ps"][3] == 540 * 10**9 + up_ps + load_ps + 20 * 10**9
    assert (result.tier.promoted_tokens, result.tier.hit_tokens) == (64, 64)


def test_a_write_of_another_server_that_ends_during_a_step_is_found_one_decision_later_in_both_modes():
    """An asynchronous engine learns in each decision of what had ended when the previous one began."""
    finished = [
        kvsim.simulate(
            model="llama-3.1-8b",
            gpu="h100",
            trace="agents",
            num_prompts=26,
            rate_scale=6,
            kv_tokens=140_000,
            replicas=2,
            tier="host:20GiB remote:1TiB:100gb:shared",
            blocks_per_chunk=16,
            step_mode=step_mode,
        ).requests["finish_s"]
        for step_mode in (False, True)
    ]
    assert finished[0].tolist() == finished[1].tolist()
