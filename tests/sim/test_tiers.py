"""Laws of a tier below the GPU's memory, on the clock: modes agree; hits are those of one larger cache."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, GPU, MODEL, Row, draw_case, events_of, told
from support.seeded import noted
from support.settings import deployed, engine_config, with_settings
from support.tiered import TOKEN_BYTES, below, engine_above, first_tokens_ps, hits, mib, one_by_one, spaced

import kvsim
from kvsim import cli
from kvsim.allocators.eviction import EVICTION
from kvsim.sim.build import build_engine, resolve
from kvsim.sim.deployment.host_memory import host_gib
from kvsim.sim.errors import KvsimError, NoProgress
from kvsim.sim.link_summary import link_shares
from kvsim.sim.options.goals import Goals
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.tier_jobs import Job


def tiered(rng, case):
    """The same case with a tier whose link takes a fraction of a step, or many steps."""
    size = case.engine.block_size
    count = rng.choice([1, 1, 2, 3])
    chunks = rng.choice([1, 3, 8, 30, 200])
    link = rng.choice(["0.02", "0.3:0.1", "2", "pcie"])
    settings = {
        "allocator": "paged",
        "policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "reserve": None,
        "kv_offloading_size": mib(chunks * count, size),
        "kv_offloading_link": link,
        "kv_offloading_policy": rng.choice(["lru", "arc"]),
        "offload_prompt_only": rng.random() < 0.6,
        "blocks_per_chunk": count,
        "store_threshold": rng.choice([0, 0, 2]),
        "sync_load_budget_bytes": rng.choice([0, 0, 50_000_000]),
    }
    return replace(case, engine=with_settings(case.engine, **settings), samples=False)


def below_by_second_pool(rng, case):
    """The same case with a second pool of blocks, eager or lazy."""
    size = case.engine.block_size
    blocks = 1 + rng.choice([1, 4, 30, 200, 200, 200])
    settings = {
        "allocator": "paged",
        "policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "reserve": None,
        "enable_prefix_caching": True,
        "kv_offloading_size": mib(blocks, size),
        "kv_offloading_link": rng.choice(["0.02", "0.3:0.1", "2", "pcie"]),
        "kv_offloading_backend": "simple",
        "lazy_offload": rng.random() < 0.5,
    }
    return replace(case, engine=with_settings(case.engine, **settings), samples=False)


def stacked(rng, case):
    """The same case with one or two tiers below a tier."""
    case = tiered(rng, case)
    chunk = case.engine.options["blocks_per_chunk"] * case.engine.block_size * TOKEN_BYTES / 2**20
    names = [name for name in EVICTION if name != "belady"]
    below = [
        f"{name}:{rng.choice([4, 40, 400, 400]) * chunk + 0.1}MiB:{link}:{rng.choice(names)}"
        for name, link in (("ssd", rng.choice(["0.05", "1/0.2", "20"])), ("remote", "0.3"))
    ]
    settings = {
        "secondary_tiers": "+".join(below[: rng.choice([1, 2])]),
        "store_threshold": 0,
        "kv_offloading_size": f"{rng.choice([2, 4, 8, 16]) * chunk + 0.1}MiB",
        "enable_prefix_caching": rng.random() < 0.3,
    }
    return replace(case, engine=with_settings(case.engine, **settings))


def below_by_lmcache(rng, case):
    """The same case with LMCache, whose steps wait for its copies."""
    size = case.engine.block_size
    tokens = size * rng.choice([1, 2, 3])
    settings = {
        "allocator": "paged",
        "policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "reserve": None,
        "kv_offloading_size": mib(rng.choice([1, 3, 8, 30, 200]), tokens),
        "kv_offloading_link": rng.choice(["0.02", "0.3:0.1", "2", "pcie"]),
        "kv_offloading_policy": rng.choice(["lru", "lfu", "fifo", "mru"]),
        "kv_offloading_backend": "lmcache",
        "lmcache_chunk_size": tokens,
    }
    return replace(case, engine=with_settings(case.engine, **settings), samples=False)


def run(case, max_span):
    engine = build_engine(case.scenario, case.work, max_span=max_span, check=True, events=True)
    engine.replica.pricing.cost = COSTS[case.cost]()
    engine.replica.recorder.timeline.most_rows = case.timeline_rows
    result = engine.run()
    server = engine.replica.server
    assert not (server.waiting or server.running or server.batch.loading or server.wakes.loaded)
    assert (server.allocator.used_slots, server.prefill_held, server.memory.internal) == (0, 0, 0)
    return result, told(result) | events_of(engine)


def one_answer_each(case):
    return replace(case, rows=[replace(row, answers=row.answers[:1]) for row in case.rows])


@noted
def check_seed(seed, below=tiered):
    case = one_answer_each(below(Random(seed), draw_case(Random(seed), "vllm-v1@0.33.0")))
    slow, told_slow = run(case, 1)
    fast, told_fast = run(case, 1 << 20)
    assert {k: v for k, v in told_fast.items() if told_slow[k] != v} == {}
    assert fast.tier == slow.tier
    return slow


@pytest.mark.parametrize("below", [tiered, below_by_second_pool, below_by_lmcache, stacked])
def test_fast_forward_equals_step_mode(below):
    hits = waited = 0
    for seed in range(40):
        result = check_seed(seed, below)
        hits += result.tier.hit_tokens > 0
        waited += result.tier.waited_requests > 0 or result.tier.steps_waited_ps > 0
    assert (hits > 10, waited > 5) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize("below", [tiered, below_by_second_pool, below_by_lmcache, stacked])
def test_fast_forward_equals_step_mode_in_more_cases(below):
    futile = 0
    for seed in range(40, 300):
        try:
            check_seed(seed, below)
        except NoProgress:  # the promotions of two requests take each other's places, as in vLLM
            futile += 1
            case = one_answer_each(below(Random(seed), draw_case(Random(seed), "vllm-v1@0.33.0")))
            with pytest.raises(NoProgress, match="move blocks forever: 1,001 waits"):
                run(case, 1 << 20)
    assert futile < 5


# -- hits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_tier_as_large_as_the_trace_finds_what_an_endless_cache_finds(seed):
    work = one_by_one(Random(seed), 60)
    endless = hits(work, 10_000)
    assert endless > hits(work, 32) > 0
    assert hits(work, 32, **below(10_000)) == endless


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("chunks", [40, 60, 90])
def test_a_free_link_makes_a_tier_as_good_as_a_larger_gpu_memory(seed, chunks):
    """The GPU's memory has one block more, for the last one, which is not full and not stored.

    The small memory itself keeps nothing: vLLM does not use in the tier what it finds there before a load.
    """
    work = one_by_one(Random(seed), 80)
    tiered_hits = hits(work, 32, enable_prefix_caching=False, **below(chunks))
    assert tiered_hits == hits(work, chunks + 1) > 0


# -- a stack ------------------------------------------------------------------------------------------


def in_a_stack(host, chunks, link="1000000", policy="lru"):
    return below(host) | {"secondary_tiers": f"ssd:{mib(chunks)}:{link}:{policy}"}


@pytest.mark.parametrize("seed", range(6))
def test_a_small_host_above_an_endless_tier_finds_what_an_endless_cache_finds(seed):
    work = one_by_one(Random(seed), 60)
    endless = hits(work, 10_000)
    assert hits(work, 32, **below(24)) < endless
    assert hits(work, 32, **in_a_stack(24, 10_000)) == endless


@pytest.mark.parametrize("name", [name for name in EVICTION if name != "belady"])
def test_every_policy_can_evict_from_a_tier_of_a_stack(name):
    work = one_by_one(Random(2), 80)
    without = hits(work, 32, **below(16))
    assert hits(work, 32, **in_a_stack(16, 40, policy=name)) > without


def test_a_chunk_comes_up_to_the_host_and_then_to_the_gpu():
    """3 chunks of 4 tokens: a host of 10 chunks evicts them for 10 others; up at 0.1 GB/s, then at 0.2."""
    rows = [Row(0, 12, [1], "same", 0, 0), Row(200, 40, [1], "alone", 1, 0), Row(200, 12, [1], "same", 0, 0)]
    settings = in_a_stack(10, 100, "0.1") | {"kv_offloading_link": "0.2", "max_model_len": 48}
    engine = engine_above(spaced(rows), 10, **settings)
    result, chunks_bytes = engine.run(), 12 * TOKEN_BYTES
    up_ps, load_ps = (10_000_000 + chunks_bytes * 10**12 // rate for rate in (10**8, 2 * 10**8))
    assert first_tokens_ps(result) == [2 * 10**10, 2 * 10**10, up_ps + load_ps + 2 * 10**10]
    assert (result.tier.promoted_tokens, result.tier.promoted_bytes) == (12, chunks_bytes)
    assert result.tier.cascaded_bytes == 52 * TOKEN_BYTES
    assert (result.tier.waited_requests, result.tier.waited_ps) == (1, up_ps + load_ps)
    down_ps = 2 * 10_000_000 + 52 * TOKEN_BYTES * 10**12 // 10**8
    busy = {"load_busy_share": up_ps / result.end_ps, "store_busy_share": down_ps / result.end_ps}
    assert link_shares(engine.lives.lives, engine.absences(), result.end_ps) == {"ssd": busy}


def test_who_waits_for_what_comes_up_for_another_counts_it_too_and_only_once():
    """As above, with two more of the same prompt, which comes up once; and a step that waits for the load."""
    same = Row(0, 12, [1], "same", 0, 0)
    rows = [same, Row(200, 40, [1], "alone", 1, 0), replace(same, gap=200), same, same]
    up_ps, load_ps = (10_000_000 + 12 * TOKEN_BYTES * 10**12 // rate for rate in (10**8, 2 * 10**8))
    settings = in_a_stack(10, 100, "0.1") | {"kv_offloading_link": "0.2", "max_model_len": 48}
    tier = engine_above(spaced(rows), 40, **settings, enable_prefix_caching=False).run().tier
    assert (tier.promoted_tokens, tier.hit_tokens) == (12, 36)
    assert (tier.waited_requests, tier.waited_ps) == (3, 3 * up_ps + (1 + 2 + 3) * load_ps)
    at_once = settings | {"sync_load_budget_bytes": 10**9, "enable_prefix_caching": False}
    rows = [replace(row, prompt=13) for row in rows if row.kind == "same"]
    tier = (
        engine_above(spaced([rows[0], Row(200, 40, [1], "alone", 1, 0), rows[1]]), 40, **at_once).run().tier
    )
    assert (tier.promoted_tokens, tier.waited_requests, tier.waited_ps) == (12, 1, up_ps)


# -- the link -----------------------------------------------------------------------------------------


def job(number, loads, blocks):
    return Job(number, loads, None, (), (), [0] * blocks)


def test_jobs_of_one_way_wait_for_each_other_and_the_ways_do_not():
    link = Link(Way(1_000, 5, 2), Way(500), block_bytes=100)
    assert [link.end_of(job(0, True, 3), 0), link.end_of(job(1, False, 1), 0)] == [
        3 * 10**11 + 11,
        2 * 10**11,
    ]
    assert link.end_of(job(2, True, 1), 7) == 4 * 10**11 + 18
    assert link.end_of(job(3, True, 1), 10**12) == 11 * 10**11 + 7
    assert (link.busy_ps(loads=True), link.busy_ps(loads=False)) == (5 * 10**11 + 25, 2 * 10**11)


def test_stores_keep_the_blocks_of_a_request_that_is_preempted(monkeypatch):
    """While it has its memory, its table has them."""
    kept, free = [], KvMemory.free

    def freed(memory, request, comes_back=False, unknown=0):
        offload = memory.below.find.__self__
        table, user = offload.allocator.block_table(request.seq), offload.users.get(request.own)
        jobs = [job for job in user.stores if not job.hurried] if comes_back and user else []
        free(memory, request, comes_back, unknown)
        for job in jobs:
            assert job.blocks == [block for at, _, count in job.pieces for block in table[at : at + count]]
        kept.extend(jobs)

    monkeypatch.setattr(KvMemory, "free", freed)
    crowded = {"kv_tokens": 4000, "num_prompts": 60, "request_rate": 50.0}
    kvsim.simulate(kv_offloading_size="1GiB", kv_offloading_link="0.05", cost="constant:0.01", **crowded)
    assert kept


def test_a_slower_link_makes_later_first_tokens_and_the_same_hits():
    work = one_by_one(Random(1), 60)

    def ttft(link):
        result = engine_above(work, 32, async_scheduling=None, **below(500, link)).run()
        return result.tier.hit_tokens, np.mean(first_tokens_ps(result))

    (hits_fast, fast), (hits_slow, slow) = ttft("50"), ttft("0.05")
    assert hits_fast == hits_slow > 0
    assert fast < slow


def test_a_prompt_that_is_all_below_waits_for_its_load_and_computes_a_token():
    """3 blocks of 4 tokens at 0.1 GB/s; steps take 20 ms, decisions see what ended before them."""
    rows = [Row(0, 12, [1], "same", 0, 0), Row(200, 40, [1], "alone", 1, 0), Row(200, 12, [1], "same", 0, 0)]
    engine = engine_above(spaced(rows), 10, max_model_len=48, **below(100, "0.1"))
    result = engine.run()
    load_ps = 10_000_000 + 12 * TOKEN_BYTES * 10**12 // 10**8
    assert first_tokens_ps(result) == [2 * 10**10, 2 * 10**10, load_ps + 2 * 10**10]
    assert (result.tier.hit_tokens, result.tier.waited_ps) == (12, load_ps)
    assert (result.tier.hit_pairs, result.tier.saved_ps) == (12 * 13 // 2, 2 * 10**10)
    assert engine.replica.pricing.prompts_ps(12, 78, most_tokens=5) == 3 * 2 * 10**10


def test_what_a_load_saves_is_the_time_to_first_token_of_the_same_prompt_computed():
    rows = [Row(0, 1_000, [1], "same", 0, 0), Row(200, 1_000, [1], "same", 0, 0)]
    settings = below(300) | {"max_model_len": 2_048, "enable_prefix_caching": False}
    result = engine_above(spaced(rows, 10**13), 300, cost="roofline", **settings).run()
    computed_ps, loaded_ps = first_tokens_ps(result)
    assert result.tier.hit_tokens in (996, 1_000)
    assert result.tier.saved_ps == pytest.approx(computed_ps, rel=0.01)
    assert loaded_ps < computed_ps


def test_a_lazy_pool_that_copies_round_and_round_while_somebody_waits_is_told():
    """A stored block joins the free ones last, and is stored again once the pool has evicted it."""
    rows = [Row(1, 58, [2], "alone", 0, 0), Row(1, 33, [6], "alone", 1, 0), Row(3, 58, [1], "alone", 2, 0)]
    rows += [Row(0, 33, [2], "alone", 3, 0)]
    lazy = {"kv_offloading_backend": "simple", "lazy_offload": True, "watermark": 0.01}
    settings = lazy | below(5, "0.3:0.1") | {"max_model_len": 64, "async_scheduling": None}
    said = []
    for max_span in (1, 1 << 20):
        with pytest.raises(
            NoProgress, match=r"move blocks forever: .* request 2 \(58 tokens\) .* \(--kv-offloading-size\)"
        ) as told:
            engine_above(spaced(rows), 16, max_span=max_span, **settings).run()
        said.append(str(told.value))
    assert said[0] == said[1]


def test_two_prompts_that_evict_each_other_from_the_host_are_told_with_what_ends_it():
    """Two prompts of 32 and 24 blocks come up to a host for 48, and neither is ever there as a whole."""
    asked = [(50, 96, 5, 0), (50, 128, 1, 1), (50, 128, 5, 2), (50, 128, 1, 1), (0, 96, 20, 0)]
    work = spaced([Row(gap, prompt, [answer], "same", text, 0) for gap, prompt, answer, text in asked])
    settings = {"max_model_len": 512, "secondary_tiers": f"ssd:{mib(1_000)}:0.5"}
    said = []
    for max_span in (1, 1 << 20):
        with pytest.raises(NoProgress, match="move blocks forever") as told:
            engine_above(work, 40, max_span=max_span, **settings, **below(48)).run()
        said.append(str(told.value))
    assert said[0] == said[1]
    assert "request 3 (128 tokens) waits for chunks that others evict from the host" in said[0]
    assert "a larger host tier (--kv-offloading-size) or larger chunks (--blocks-per-chunk)" in said[0]
    for ends in ({**below(56)}, {**below(48), "blocks_per_chunk": 8}):
        assert engine_above(work, 40, **settings, **ends).run().finished.all()


# -- its price ----------------------------------------------------------------------------------------


def test_host_memory_is_paid_for_by_the_gpus_above_it():
    where = deployed(
        engine_config(**below(500), scheduler="vllm-v1"),
        model=MODEL,
        gpu=GPU,
        num_gpu_blocks=32,
        cost="constant:0.02",
    )
    gib = 500 * 4 * TOKEN_BYTES / 2**30
    goals = Goals(gpu_price=2.0, host_price=0.5)
    assert host_gib(where) == pytest.approx(gib)
    assert goals.price_of_server(where) == pytest.approx(2.0 + 0.5 * gib)
    assert Goals(gpu_price=2.0).price_of_server(where) == 2.0


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ({"host_price": 0.5}, "host_price must be left out without gpu_price, to which it is added"),
        ({"gpu_price": 1, "host_price": -0.5}, "host_price must be at least 0 and finite, got -0.5"),
    ],
)
def test_prices_that_cannot_be_are_refused(prices, said):
    with pytest.raises(KvsimError) as refused:
        Goals(**prices)
    assert str(refused.value) == said


# -- bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"kv_offloading_size": "1MiB"},
            "kv_offloading_size must hold a chunk of 16 tokens, 12.5 MiB, got '1MiB'",
        ),
        (
            {"kv_offloading_size": "much"},
            "kv_offloading_size must be a size such as 100GiB, or 0, got 'much'",
        ),
        ({"kv_offloading_link": "0"}, "kv_offloading_link must be above 0 GB/s each way, got '0'"),
        ({"kv_offloading_link": "pcie6"}, "kv_offloading_link"),
        ({"allocator": "radix"}, "kv_offloading_size must be left out for allocator radix"),
        ({"scheduler": "vllm-v1@0.11.0"}, "kv_offloading_size must be left out for scheduler vllm-v1@0.11.0"),
        (
            {"kv_offloading_backend": "simple", "kv_offloading_size": "20MiB"},
            "kv_offloading_size must hold two blocks of 16 tokens, 25.0 MiB, got '20MiB'",
        ),
        (
            {"kv_offloading_backend": "simple", "enable_prefix_caching": False},
            "enable_prefix_caching must be on with kv_offloading_backend simple, got False",
        ),
        (
            {"kv_offloading_backend": "lmcache", "lmcache_chunk_size": 24},
            "lmcache_chunk_size must be whole blocks of 16 tokens, got 24",
        ),
        (
            {"kv_offloading_backend": "lmcache", "kv_offloading_policy": "arc"},
            "kv_offloading_policy must be lru, mru, fifo or lfu with kv_offloading_backend lmcache, got",
        ),
        (
            {"kv_offloading_policy": "mru"},
            "kv_offloading_policy must be lru or arc with kv_offloading_backend",
        ),
        (
            {"kv_offloading_backend": "lmcache", "secondary_tiers": "ssd:2TiB:nvme"},
            "secondary_tiers must be left out with kv_offloading_backend lmcache, got 'ssd:2TiB:nvme'",
        ),
        (
            {"lmcache_chunk_size": 32},
            "lmcache_chunk_size must be left out with kv_offloading_backend offloading",
        ),
        ({"lazy_offload": True}, "lazy_offload must be left out with kv_offloading_backend offloading"),
        (
            {"kv_offloading_backend": "lmcache", "lazy_offload": True},
            "lazy_offload must be left out with kv_offloading_backend lmcache, got True",
        ),
        (
            {"kv_offloading_backend": "lmcache", "kv_offloading_size": "20MiB"},
            "kv_offloading_size must hold a chunk of 256 tokens, 200.0 MiB, got '20MiB'",
        ),
        (
            {"kv_offloading_backend": "simple", "kv_offloading_policy": "arc"},
            "kv_offloading_policy must be left out with kv_offloading_backend simple, got 'arc'",
        ),
        (
            {"secondary_tiers": "ssd:2TiB"},
            "secondary_tiers must be as in ssd:2TiB:nvme or ssd:2TiB:6.5/4:arc",
        ),
        (
            {"secondary_tiers": "ssd:2MiB:nvme"},
            "secondary_tiers must hold a chunk of 16 tokens each, 12.5 MiB, got 'ssd:2MiB:nvme'",
        ),
        ({"secondary_tiers": "ssd:lots:nvme"}, "secondary_tiers must be a size such as 100GiB"),
        ({"secondary_tiers": "ssd:2TiB:0"}, "secondary_tiers: link must be above 0 GB/s each way, got '0'"),
        (
            {"secondary_tiers": "ssd:2TiB:nvme:belady"},
            "secondary_tiers must evict without knowing the future",
        ),
        ({"secondary_tiers": "ssd:2TiB:nvme:best"}, "best"),
        (
            {"secondary_tiers": "ssd:2TiB:nvme+ssd:1TiB:nvme"},
            "secondary_tiers must name each tier once, got ssd and ssd",
        ),
        (
            {"secondary_tiers": "host:2TiB:nvme"},
            "secondary_tiers must not be called host: columns of other tiers are",
        ),
        (
            {"secondary_tiers": "ssd:2TiB:nvme+ssd_of_2:2TiB:nvme"},
            "secondary_tiers must not be called ssd_of_2: columns of other tiers are",
        ),
        (
            {"secondary_tiers": "ssd:2TiB:nvme", "kv_offloading_size": None},
            "secondary_tiers must be left out without kv_offloading_size",
        ),
        (
            {"secondary_tiers": "ssd:2TiB:nvme", "store_threshold": 2},
            "store_threshold must be left out with tiers below the host, got 2",
        ),
        ({"policy": "priority"}, "policy must be fcfs with kv_offloading_size, got 'priority'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings, said):
    given = {"kv_offloading_size": "1GiB", "scheduler": "vllm-v1", "enable_prefix_caching": True} | settings
    where = deployed(engine_config(**given), model=MODEL, gpu=GPU, num_gpu_blocks=100, cost="constant:1")
    with pytest.raises(KvsimError) as refused:
        build_engine(where, one_by_one(Random(0), 2))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_map_is_drawn_while_requests_load(tmp_path):
    words = "run --model llama-3.1-8b --gpu h100 --trace agents --num-prompts 120 --rate-scale 6"
    tier = "--kv-tokens 60000 --kv-offloading-size 100GiB --kv-offloading-link 0.5 --record-map 100"
    out = tmp_path / "run"
    assert cli.main([*words.split(), *tier.split(), "--no-plots", "--quiet", "--out", str(out)]) == 0
    assert json.loads((out / "summary.json").read_text())["tier"]["requests_waited"] > 0
    assert (out / "map.parquet").is_file()


@pytest.mark.parametrize("max_span", [1, 1 << 20])
def test_a_replica_whose_only_request_loads_is_not_switched_off(max_span):
    """It drains from 1 s on, while 40 tokens are loaded at 20 MB/s, and is needed again at 1.1 s."""
    rows = [Row(gap, 40, [1], kind, group, 0) for gap, kind, group in [(0, "alone", 0), (1, "same", 0)]]
    rows += [Row(50, 40, [1], "alone", 1, 0), Row(40, 40, [1], "same", 0, 0)]
    rows.append(Row(300, 40, [1], "alone", 2, 0))
    work = spaced(rows, 10**10)
    assert 0.8 * 10**12 < work.arrival_ps[3] < 10**12
    settings = below(100, "0.02:50") | {"enable_prefix_caching": False}
    fleet = FleetConfig(replicas=2, scale="schedule:0=2,1=1,1.1=2", startup_time=0.01, load_bandwidth=1e9)
    result = engine_above(work, 60, fleet=fleet, max_span=max_span, **settings).run()
    assert result.finished.all()
    assert result.tier.hit_tokens >= 36 and result.tier.waited_ps > 10**12


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kv_offloading_backend": "lmcache"}, "kv_offloading_backend must be left out without"),
        ({"kv_offloading_policy": "arc"}, "kv_offloading_policy must be left out without kv_offloading_size"),
        (
            {"lmcache_chunk_size": 64},
            "lmcache_chunk_size must be left out without kv_offloading_size, got 64",
        ),
        ({"kv_offloading_size": "0", "lmcache_chunk_size": 64, "kv_offloading_backend": "lmcache"}, None),
        ({"tier": "none", "kv_offloading_backend": "lmcache"}, None),
        ({"tier": "host:4GiB:lfu", "kv_offloading_backend": "lmcache"}, None),
        ({"tier": "host:4GiB:lfu"}, "tier must evict from the host by lru or arc with kv_offloading_backend"),
        (
            {"tier": "host:4GiB", "kv_offloading_backend": "lmcache", "lmcache_chunk_size": 17},
            "lmcache_chunk_size must be whole blocks of 16 tokens, got 17",
        ),
        (
            {"kv_offloading_size": "4GiB", "kv_offloading_backend": "lmcache", "kv_offloading_policy": "arc"},
            "kv_offloading_policy must be lru, mru, fifo or lfu with kv_offloading_backend lmcache, got",
        ),
        ({"kv_offloading_size": "1MiB"}, "kv_offloading_size must hold a chunk of 16 tokens"),
        ({"tier": "host:1GiB ssd:1MiB:nvme"}, "tier must hold a chunk of 16 tokens each"),
    ],
)
def test_what_of_a_tier_cannot_be_is_seen_before_a_run(settings, said):
    where = deployed(engine_config(scheduler="vllm-v1", **settings), model=MODEL, gpu=GPU)
    if said is None:
        resolve(where)
        return
    with pytest.raises(KvsimError) as refused:
        resolve(where)
    assert str(refused.value).startswith(said)


SHORT_OF_LINK = {"trace": "agents", "kv_tokens": 140_000, "blocks_per_chunk": 16, "rate_scale": 30.0}


def test_a_link_is_busy_until_the_last_answer_at_most():
    """Stores queue up on a slow link; what it moves after the run is not part of it."""
    run = kvsim.simulate(
        **SHORT_OF_LINK, model="llama-3.1-8b", gpu="h100", num_prompts=5, tier="host:8GiB:0.5"
    )
    assert 0.9 < run.summary.tier.store_busy_share <= 1


def test_a_tier_holds_no_more_than_its_size_however_often_its_replica_dies():
    run = kvsim.simulate(
        **SHORT_OF_LINK,
        model="llama-3.1-8b",
        gpu="h100",
        num_prompts=20,
        replicas=2,
        tier="host:4GiB",
        fail="replica=0:at=4:for=1 replica=0:at=8:for=1",
    )
    assert run.summary.faults.deaths == 2
    for each in (run.summary, *run.summary.replicas):
        assert 0 < each["tier"]["peak_used_bytes"] <= each["tier"]["capacity_bytes"]
