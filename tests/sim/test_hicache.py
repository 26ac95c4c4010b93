"""HiCache on the clock: times worked by hand, laws of hits, agreement of modes, errors.

Its tree equals recordings of SGLang's own: tests/allocators/test_sglang_hicache.py.
"""

from dataclasses import replace
from random import Random

import pytest
from support.cases import COSTS, GPU, MODEL, Row, draw_case, events_of, told
from support.mixed import draw_hicache
from support.seeded import noted
from support.settings import deployed, engine_config, with_settings
from support.tiered import engine_above, first_tokens_ps, hits, spaced

from kvsim.sim.build import build_engine
from kvsim.sim.deployment.host_memory import host_gib
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.goals import Goals
from kvsim.sim.serving.decision import LayerLoad

MS = 10**9
SGLANG = {
    "scheduler": "sglang",
    "allocator": "sglang",
    "enable_hierarchical_cache": True,
    "async_scheduling": None,
    "max_num_batched_tokens": 512,
}
A_MS_A_TOKEN = "0.8192"
"""GB/s for one token per ms: a token of opt-13b has 819,200 bytes."""


def run(rows, blocks=60, block_size=1, **settings):
    work = spaced(rows)
    result = engine_above(work, blocks, **{**SGLANG, "block_size": block_size, **settings}).run()
    assert result.finished.all()
    return result


def in_turn(*groups):
    """A prompt of 40 tokens per second, with an answer of one token; equal groups have equal prompts."""
    return [Row(10, 40, [1], "same", group, 0) for group in groups]


# -- worked by hand: steps of 20 ms, 40 layers, a start of 10 us for each copy -------------------------


def test_a_load_goes_on_beside_the_step_layer_by_layer():
    """39 tokens take 39 ms, the last layer is computed after that; 0.39 ms end long before the step."""
    slow = run(in_turn(0, 1, 0), hicache_link=A_MS_A_TOKEN)
    assert first_tokens_ps(slow) == [20 * MS, 20 * MS, 39 * MS + MS // 100 + MS // 2]
    quick = run(in_turn(0, 1, 0), hicache_link="81.92")
    assert first_tokens_ps(quick) == [20 * MS, 20 * MS, 20 * MS + MS // 100 + 390_000_000 // 40]
    assert (slow.tier.hit_tokens, slow.hit_tokens) == (39, 0)
    assert slow.tier.loaded_bytes == 39 * 819_200
    assert slow.tier.steps_waited_ps == 19 * MS + MS // 100 + MS // 2


def test_what_is_copied_is_not_evicted():
    """The first prompt is still being copied when the second needs its room, which it gets 40 ms later."""
    rows = [Row(0, 40, [1], "same", 0, 0), Row(0, 40, [1], "same", 1, 0)]
    assert first_tokens_ps(run(rows, hicache_link=A_MS_A_TOKEN)) == [20 * MS, 80 * MS + MS // 100]
    assert first_tokens_ps(run(rows, enable_hierarchical_cache=False)) == [20 * MS, 40 * MS]


def test_an_eviction_waits_for_its_copy_with_write_back():
    """Each first evicts 40 tokens, which takes 40 ms; the third then loads 39."""
    result = run(in_turn(0, 1, 0), hicache_link=A_MS_A_TOKEN, hicache_write_policy="write_back")
    wait = 40 * MS + MS // 100
    assert first_tokens_ps(result) == [20 * MS, wait + 20 * MS, wait + 39 * MS + MS // 100 + MS // 2]
    assert result.tier.stored_bytes == 80 * 819_200


@pytest.mark.parametrize(
    ("policy", "stored"), [("write_through", 80), ("write_through_selective", 40), ("write_back", 0)]
)
def test_when_each_policy_writes(policy, stored):
    """Of two prompts, the first comes twice, and the GPU has room for both."""
    result = run(in_turn(0, 0, 1), blocks=200, hicache_write_policy=policy)
    assert result.tier.stored_bytes == stored * 819_200


def test_fewer_than_ten_tokens_are_computed_not_loaded():
    """A prompt with 9 or 10 tokens that are only on the host."""
    for tokens, loaded in ((10, 0), (11, 10)):
        rows = [Row(10, tokens, [1], "same", 0, 0), *in_turn(1), Row(10, tokens, [1], "same", 0, 0)]
        assert run(rows, blocks=48).tier.hit_tokens == loaded


@pytest.mark.parametrize(
    ("layers", "ready", "end"),
    [(1, 0, 50 + 30), (10, 0, 50 + 3), (10, 60, 60 + 30), (4, 0, 50 + 8)],
)
def test_the_last_layer_is_computed_when_it_is_there(layers, ready, end):
    """A load until 50 beside 30 of computing; a step that may begin at 60 finds it complete."""
    assert LayerLoad(5, 50, layers).end_ps(ready, 30) == end


def test_a_step_longer_than_its_load_waits_for_the_first_layer():
    assert LayerLoad(5, 50, 10).end_ps(0, 100) == 105


# -- hits ---------------------------------------------------------------------------------------------


def repeated(rng, count):
    """Prompts of whole pages of 16 plus one token; many share a prefix."""
    kinds = ["alone", "system", "same", "same"]
    return [
        Row(200, 16 * rng.randint(1, 6) + 1, [1], rng.choice(kinds), rng.randint(0, 4), 0)
        for _ in range(count)
    ]


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("seed", range(6))
def test_a_host_as_large_as_the_trace_finds_what_an_endless_cache_finds(seed, policy):
    work, usual = spaced(repeated(Random(seed), 80)), {**SGLANG, "block_size": 16}
    plain = usual | {"enable_hierarchical_cache": False}
    tier = {"hicache_link": "1000000", "hicache_ratio": 1000.0, "hicache_write_policy": policy}
    below = hits(work, 10, **usual, **tier)
    assert below == hits(work, 10_000, **plain)
    assert below > hits(work, 10, **plain)


def test_a_slower_link_makes_later_first_tokens_and_the_same_hits():
    rows = repeated(Random(3), 60)
    results = [run(rows, 10, 16, hicache_link=link) for link in ("50", "0.5")]
    assert results[0].tier.hit_tokens == results[1].tier.hit_tokens > 0
    assert sum(first_tokens_ps(results[0])) < sum(first_tokens_ps(results[1]))


def test_the_tier_may_be_off_as_before():
    rows = repeated(Random(5), 60)
    plain, off = (run(rows, 10, 16, **{"enable_hierarchical_cache": said}) for said in (None, False))
    assert told(plain) == told(off)


def test_the_host_is_sized_as_in_sglang_and_paid_for():
    """A ratio of the GPU's pages, or GB per GPU; plus one page."""
    price = Goals(gpu_price=2.0, host_price=0.5)
    for said, tokens in (({}, 2 * 160 + 16), ({"hicache_size": 1}, (10**9 // 819_200 // 16 + 1) * 16)):
        engine = engine_above(spaced(in_turn(0)), 10, **{**SGLANG, "block_size": 16, **said})
        assert engine.replica.server.totals.tier.capacity_bytes == tokens * 819_200
        config = engine_config(**{**SGLANG, "block_size": 16, "enable_prefix_caching": True, **said})
        where = deployed(config, model=MODEL, gpu=GPU, num_gpu_blocks=10, cost="constant:0.02")
        assert price.price_of_server(where) == 2.0 + 0.5 * host_gib(where)
        assert host_gib(where) == tokens * 819_200 / 2**30


# -- modes --------------------------------------------------------------------------------------------


@noted
def check_seed(seed):
    rng = Random(seed)
    case = draw_case(rng, "sglang")
    settings = draw_hicache(rng) | {"allocator": "sglang", "enable_prefix_caching": True}
    case = replace(case, engine=with_settings(case.engine, **settings), samples=False)
    case.rows = [replace(row, answers=row.answers[:1]) for row in case.rows]
    found = []
    for max_span in (1, 1 << 20):
        engine = build_engine(case.scenario, case.work, max_span=max_span, check=True, events=True)
        engine.replica.pricing.cost = COSTS[case.cost]()
        engine.replica.recorder.timeline.most_rows = case.timeline_rows
        result = engine.run()
        assert engine.replica.server.allocator.tree.protected == 0
        found.append(told(result) | events_of(engine) | {"tier": result.tier})
    assert {k: v for k, v in found[0].items() if found[1][k] != v} == {}
    return found[0]["tier"]


def test_fast_forward_equals_step_mode():
    loads = 0
    for seed in range(60):
        loads += check_seed(seed).hit_tokens > 0
    assert loads > 5


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"allocator": "paged"},
            "enable_hierarchical_cache must be off for allocator paged with model opt-13b",
        ),
        ({"enable_prefix_caching": False}, "enable_prefix_caching must be on with enable_hierarchical_cache"),
        (
            {"hicache_storage_backend": "file:1GiB:nvme:shared"},
            "hicache_storage_backend must be of one replica, got 'file:1GiB:nvme:shared'",
        ),
        ({"hicache_storage_backend": "file:1GiB"}, "hicache_storage_backend must be as in ssd:2TiB:nvme or"),
        ({"hicache_size": -1}, "hicache_size must be at least 0, got -1"),
        ({"hicache_link": "0"}, "hicache_link must be above 0 GB/s each way, got '0'"),
        ({"hicache_ratio": 0.0}, "hicache_ratio must be above 0, got 0.0"),
        (
            {"enable_hierarchical_cache": False, "hicache_ratio": 3.0},
            "hicache_ratio must be left out without enable_hierarchical_cache, got 3.0",
        ),
        (
            {"hicache_prefetch_threshold": 8},
            "hicache_prefetch_threshold must be left out without hicache_storage_backend, got 8",
        ),
        *(
            (
                {f"hicache_storage_prefetch_{name}": value},
                f"{name} must be left out without hicache_storage_backend",
            )
            for name, value in (
                ("policy", "wait_complete"),
                ("retry_poll_interval", 2),
                ("retry_max_attempts", 0),
            )
        ),
        ({"scheduler": "vllm-v1@0.33.0"}, "enable_hierarchical_cache must be left out for scheduler vllm-v1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings, said):
    with pytest.raises(KvsimError, match=said):
        run(in_turn(0), **settings)


# -- storage ------------------------------------------------------------------------------------------

STORED = {
    "hicache_ratio": 1.5,
    "hicache_link": "81920",
    "hicache_storage_backend": "file:1GiB:0.8192",
    "hicache_prefetch_threshold": 30,
}
"""A host for two prompts of 40 tokens above a storage that reads or writes a token per millisecond."""
SHORT = 20 * MS + 2 * MS // 100


def test_what_the_host_forgot_is_fetched_before_its_request_enters():
    """10 us to look up what is there, 39 ms to read it, 10 us to begin; then it is loaded."""
    result = run(in_turn(0, 1, 2, 0), **STORED)
    fetched = 39 * MS + 2 * MS // 100
    last = first_tokens_ps(result)[3]
    assert fetched + 20 * MS < last < fetched + SHORT
    assert result.tier.promoted_tokens == result.tier.hit_tokens == 39
    assert result.tier.cascaded_bytes == 3 * 40 * 819_200


@pytest.mark.parametrize(("policy", "fetched"), [("best_effort", 0), ("timeout", 39), ("wait_complete", 39)])
def test_best_effort_waits_for_nothing(policy, fetched):
    result = run(in_turn(0, 1, 2, 0), **STORED, hicache_storage_prefetch_policy=policy)
    assert result.tier.promoted_tokens == fetched


def test_who_waits_too_long_takes_what_is_there():
    """A token takes 8 ms: 128 of 159 are there after 1 s and 159/4096 s, the others after 1.27 s."""
    rows = [Row(60, 160, [1], "same", group, 0) for group in (0, 1, 2, 0)]
    for policy, there, least, most in (("timeout", 128, 1038, 1090), ("wait_complete", 159, 1272, 1320)):
        store = {"hicache_storage_backend": "file:1GiB:0.1024", "hicache_storage_prefetch_policy": policy}
        result = run(rows, 200, max_model_len=512, **STORED | store | {"hicache_ratio": 2.0})
        assert result.tier.promoted_tokens == result.tier.hit_tokens == there
        assert least * MS < first_tokens_ps(result)[3] < most * MS


def busy(rng, count):
    """Prompts of up to 120 tokens from a few texts, arriving close together, with short answers."""
    return [
        Row(
            rng.choice([0, 0, 1, 30]), rng.randint(20, 120), [rng.randint(1, 9)], "same", rng.randint(0, 7), 0
        )
        for _ in range(count)
    ]


def test_fast_forward_equals_step_mode_above_a_storage():
    fetched = 0
    for seed in range(24):
        rng = Random(seed)
        work = spaced(busy(rng, 40), 10**10)
        settings = SGLANG | {
            "block_size": rng.choice([1, 4]),
            "max_num_seqs": rng.choice([2, 8]),
            "hicache_ratio": rng.choice([1.2, 2.0]),
            "hicache_write_policy": rng.choice(["write_through", "write_through_selective", "write_back"]),
            "hicache_link": rng.choice(["0.5", "50"]),
            "hicache_storage_backend": f"file:{rng.choice([0.2, 4])}GiB:{rng.choice(['0.1', '1/0.3', '20'])}",
            "hicache_storage_prefetch_policy": rng.choice(["best_effort", "wait_complete", "timeout"]),
            "hicache_prefetch_threshold": rng.choice([8, 40]),
            "hicache_storage_prefetch_retry_poll_interval": rng.choice([0, 1, 8]),
            "hicache_storage_prefetch_retry_max_attempts": rng.choice([0, 1, 8]),
        }
        blocks = 240 // settings["block_size"]
        found = []
        for span in (1, 1 << 20):
            try:
                result = engine_above(work, blocks, max_span=span, **settings).run()
                assert result.finished.all()
                found.append((told(result), result.tier))
                fetched += result.tier.promoted_tokens > 0
            except KvsimError as error:
                assert settings["hicache_write_policy"] == "write_back"
                assert "finds no memory, and SGLang would end" in str(error)
                found.append(str(error))
        assert found[0] == found[1], seed
    assert fetched > 16


def test_who_asks_again_finds_more_of_a_storage_that_many_ask_at_once():
    """While half of the host is asked for, nobody else may ask: most who wait get nothing at first."""
    promoted = {0: 0, 8: 0}
    for seed in range(8):
        work = spaced(busy(Random(seed), 60), 10**10)
        for attempts in promoted:
            below = {
                "block_size": 1,
                "max_num_seqs": 2,
                "hicache_ratio": 1.2,
                "hicache_storage_backend": "file:4GiB:2",
                "hicache_prefetch_threshold": 8,
                "hicache_storage_prefetch_retry_max_attempts": attempts,
            }
            result = engine_above(work, 240, **SGLANG | below).run()
            assert result.finished.all()
            promoted[attempts] += result.tier.promoted_tokens
    assert promoted[8] > 1.2 * promoted[0] > 0
