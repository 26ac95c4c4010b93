"""Prefill and decode on separate servers, on the clock: modes agree, nothing is lost, links take time."""

import math
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.apart import apart
from support.cases import COSTS, draw_case, told
from support.event_rows import rows
from support.seeded import noted

import kvsim
from kvsim import workloads
from kvsim.reports.html.arena import read_arena
from kvsim.reports.html.report import write_report
from kvsim.reports.memory_map import MemoryMap
from kvsim.reports.palette import KINDS
from kvsim.sim.build import build_engine, resolve
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import deployment_of, prepare
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.pulling import Pull
from kvsim.sim.serving.tier_jobs import Job


def run(deployment, case, max_span):
    engine = build_engine(deployment, case.work, max_span=max_span, check=True, events=True)
    for replica in engine.replicas:
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
    result = engine.run()
    for replica in engine.replicas:
        server = replica.server
        assert not (server.waiting or server.running or server.batch.loading)
        assert (server.allocator.used_slots, server.prefill_held, server.memory.internal) == (0, 0, 0)
        assert server.wakes.loaded == 0
    assert not engine.hand_over.whole
    return engine, result


@noted
def check_seed(seed):
    rng = Random(seed)
    case = draw_case(Random(seed), "vllm-v1@0.33.0")
    deployment, case = apart(rng, case, rng.randint(1, 2), rng.randint(1, 3))
    engine, slow = run(deployment, case, 1)
    fast_engine, fast = run(deployment, case, 1 << 20)
    one, other = told(slow), told(fast)
    assert {name for name in one if one[name] != other[name]} == set()
    assert engine.hand_over.totals() == fast_engine.hand_over.totals()
    for one, other in zip(engine.replicas, fast_engine.replicas, strict=True):
        assert rows(one.server.events) == rows(other.server.events)
    rejected = sum(slow.rejected.values())
    assert slow.finished.sum() + rejected == len(case.work)
    assert engine.hand_over.totals().requests == slow.finished.sum()
    prefills = deployment.pools[0].replicas
    assert (slow.replica[slow.finished] >= prefills).all()
    return engine, slow


def test_every_request_is_served_once_and_fast_forward_equals_step_mode():
    preempted = held = 0
    for seed in range(40):
        engine, result = check_seed(seed)
        preempted += result.preemptions > 0
        held += engine.hand_over.totals().peak_held_share > 0.5
    assert (preempted > 5, held > 5) == (True, True)


def test_with_a_free_link_a_first_token_takes_a_prefill_the_proxy_and_few_decode_steps():
    traffic = {"model": "llama-3.1-8b", "gpu": "h100", "cost": "constant:0.01", "num_prompts": 60}
    traffic |= {"request_rate": 20.0, "frontend_latency": 0.0, "max_num_batched_tokens": 100_000}
    for asynchronous in (False, True):
        run = kvsim.simulate(
            pool="prefill:2 decode:2",
            kv_transfer_link="1000000",
            async_scheduling=asynchronous,
            **traffic,
        )
        requests = run.columns.requests
        extra = requests["first_token_s"] - requests["first_scheduled_s"] - 0.01 - 0.001
        least = 0.02 + 0.01 * asynchronous  # its read begins in a step, is seen one or two later, and it runs
        assert (extra > least - 1e-9).all()
        assert (extra < least + 0.01).all()  # it came while a step was under way


def test_bytes_read_and_times_are_those_of_the_link():
    run = kvsim.simulate(
        pool="prefill:1 decode:1",
        kv_transfer_link="1",
        model="llama-3.1-8b",
        gpu="h100",
        trace="synthetic",
        input_len="160",
        output_len="5",
        num_prompts=8,
        request_rate=0.5,
    )
    told = run.summary["hand_over"]
    assert (told["requests"], told["read_bytes"]) == (8, 8 * 160 * 131_072)
    assert told["mean_transfer_s"] == pytest.approx(160 * 131_072 / 1e9 + 1e-5)
    assert told["mean_held_s"] > told["mean_transfer_s"] + 0.001


def reads_of(pool, **settings):
    """Two prompts of 160 tokens that are computed in one step, over 1 GB/s: begin and end of each read."""
    run = kvsim.simulate(
        pool=pool,
        kv_transfer_link="1",
        model="llama-3.1-8b",
        gpu="h100",
        trace="synthetic",
        input_len="160",
        output_len="5",
        num_prompts=2,
        request_rate=math.inf,
        cost="constant:0.01",
        router="round-robin",
        **settings,
    )
    requests = run.columns.requests
    return sorted(
        zip(requests["read_begin_s"], requests["read_end_s"], strict=True), key=lambda read: read[1]
    )


def test_replicas_that_read_from_one_prefill_gpu_share_its_link():
    alone_s = 160 * 131_072 / 1e9 + 1e-5
    (began, first), (also, second) = reads_of("prefill:1 decode:2")
    assert began == also
    assert (first - began, second - began) == pytest.approx((alone_s, 2 * alone_s))
    apart = reads_of("prefill:2 decode:2")
    assert [end - begin for begin, end in apart] == pytest.approx([alone_s, alone_s])


def test_a_read_takes_as_long_as_the_slower_end():
    bytes_s = 160 * 131_072 / 1e9
    ((began, ended), _) = reads_of("prefill:1:tensor_parallel_size=1 decode:2:tensor_parallel_size=2")
    assert ended - began == pytest.approx(bytes_s + 1e-5)  # one GPU sends all of it
    ((began, ended), _) = reads_of("prefill:1:tensor_parallel_size=4 decode:2:tensor_parallel_size=2")
    assert ended - began == pytest.approx(bytes_s / 2 + 1e-5)


def test_a_read_waits_for_both_links_and_takes_the_slower_ones_time():
    way, outs = Way(10**9), [Link(Way(10**9), Way(10**9), 2_000) for _ in range(2)]
    pull = Pull(way, 1_000, outs.__getitem__)
    jobs = [Job(name, True, SimpleNamespace(number=name), (), (), range(100)) for name in range(2)]
    assert [pull.end_of(job, 0) for job in jobs] == [200_000_000, 400_000_000]
    assert [out.lanes[False].free_ps for out in outs] == [200_000_000, 400_000_000]


def test_stages_split_the_layers_that_are_read():
    plain, staged = (
        kvsim.simulate(
            model="llama-3.1-8b",
            gpu="h100",
            pool=f"prefill:1{more} decode:1{more}",
            num_prompts=5,
            kv_transfer_link="1",
        ).summary["hand_over"]
        for more in ("", ":pp=2")
    )
    assert staged["read_bytes"] == plain["read_bytes"]
    assert staged["mean_transfer_s"] - 1e-5 == pytest.approx((plain["mean_transfer_s"] - 1e-5) / 2)


def test_a_config_makes_the_same_fleet():
    deployment = resolve(Scenario(model="llama-3.1-8b", pool="prefill:1 decode:2").deployed()).deployment
    work = workloads.build("sharegpt", num_prompts=20, request_rate=30.0, burstiness=1.0, seed=3)
    config = prepare(deployment, work, {}).outcome().config
    assert deployment_of(config)[0] == deployment


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pool": "prefill:2"}, "roles of pools must be both everywhere, or prefill and decode, got prefill"),
        ({"pool": "decode:1 decode:2"}, "roles of pools must be both everywhere"),
        ({"pool": "prefill:1 decode:1 both:1"}, "roles of pools must be both everywhere"),
        (
            {"scheduler": "vllm-v1@0.11.0"},
            "scheduler must be vllm-v1@0.33.0 or sglang with prefill and decode pools",
        ),
        ({"scheduler": "orca"}, "scheduler must be vllm-v1@0.33.0 or sglang with prefill and decode"),
        ({"allocator": "radix"}, "allocator must be paged with prefill and decode pools, got radix"),
        ({"policy": "sjf"}, "policy must be fcfs with prefill and decode pools, got 'sjf'"),
        (
            {"kv_offloading_size": "10GiB"},
            "kv_offloading_size must be left out with prefill and decode pools",
        ),
        ({"num_speculative_tokens": 2, "speculative_method": "ngram"}, "must be left out with prefill"),
        ({"scale": "schedule:0=2"}, "scale must ask for 1 prefill replica, as many as there are"),
        (
            {"scale": "decode=schedule:0=3"},
            "scale must ask for 1 to 2 decode replicas, as many as there are",
        ),
        ({"scale": "=slo:"}, "scale must name a pool in front of =, got '=slo:'"),
        ({"scale": "both=schedule:0=2"}, "scale must name one of prefill, decode, 0, 1, got 'both'"),
        (
            {"scale": "decode=slo:ttft=1"},
            "scale: ttft must be left out for decode replicas, got 'slo:ttft=1'",
        ),
        ({"scale": "0=slo:tpot=1"}, "scale: tpot must be left out for prefill replicas, got 'slo:tpot=1'"),
        ({"scale": "0=slo: prefill=slo:"}, "scale must have one policy per replica, got two for replica 0"),
        ({"pool": "prefill:1:block_size=32 decode:1"}, "block_size must be the same in all pools"),
        ({"kv_transfer_link": "pigeon"}, "kv_transfer_link 'pigeon' is unknown"),
        ({"model": "gemma-3-27b"}, "model must keep every token in all layers with prefill and decode pools"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_one_line(settings, said):
    with pytest.raises(KvsimError, match=said) as error:
        kvsim.simulate(
            gpu="h100",
            num_prompts=5,
            request_rate=2.0,
            **{"model": "llama-3.1-8b", "pool": "prefill:1 decode:2", **settings},
        )
    assert "\n" not in str(error.value)


HELD_LONG = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "pool": "prefill:1:kv_tokens=40000 decode:2:kv_tokens=6000",
    "kv_transfer_link": "0.5",
    "num_prompts": 100,
    "request_rate": 40.0,
    "shared_prefix": "2x600",
}


def test_what_waits_to_be_read_is_a_kind_of_its_own_of_the_prefill_side():
    run = kvsim.simulate(**HELD_LONG)
    prefill, *decode = run.summary["replicas"]
    assert prefill["memory"]["average"]["held"] > 5 * prefill["memory"]["average"]["token"] > 0
    assert all("held" not in each["memory"]["average"] for each in decode)
    for shares in (run.summary.memory.average, prefill["memory"]["average"]):
        assert sum(shares.values()) == pytest.approx(100)
    timeline = run.columns.timeline
    kinds = [timeline[name] for name in KINDS if name in timeline]
    capacity = np.where(timeline["replica"] == 0, 40_000, 6_000)
    assert (sum(kinds) == capacity).all()
    assert min(each.min() for each in kinds) == 0
    assert not timeline["held"][timeline["replica"] > 0].any()
    held_s = run.columns.requests["held_until_s"] - run.columns.requests["prompt_computed_s"]
    assert timeline["held"].max() <= (held_s > 0).sum() * run.columns.requests["prompt_tokens"].max()


def test_a_block_that_several_held_prompts_share_is_held_once():
    """The largest share is the ledger's; the tokens of all held prompts exceed it."""
    asked = {**HELD_LONG, "pool": "prefill:2:kv_tokens=4000 decode:1:kv_tokens=9000", "max_model_len": 2000}
    run = kvsim.simulate(**{**asked, "trace": "synthetic", "input_len": "200", "output_len": "200"})
    assert run.summary["hand_over"]["peak_held_share"] == run.columns.timeline["held"].max() / 4000 < 1
    requests = run.columns.requests
    apart = requests["prompt_tokens"] * (requests["held_until_s"] - requests["prompt_computed_s"])
    assert apart.sum() > 2 * 4000 * np.nanmax(requests["held_until_s"])
    panel = run.plot("hand-over").axes[0]
    top = max(path.vertices[:, 1].max() for drawn in panel.collections for path in drawn.get_paths())
    assert 50 < top <= 100


def test_the_map_marks_what_waits_to_be_read(tmp_path):
    run = kvsim.simulate(**HELD_LONG, record_map=40)
    assert run.summary.latency == kvsim.simulate(**HELD_LONG).summary.latency
    run.save(tmp_path / "run")
    recorded = MemoryMap.read(tmp_path / "run" / "map.parquet", 0)
    timeline = run.columns.timeline
    here = timeline["replica"] == 0
    marked = 0
    for at_s in recorded.instants[:-1]:
        arena = recorded.at(at_s)
        row = np.searchsorted(timeline["time_s"][here], at_s, side="right") - 1
        token, held = (arena.filled[which].sum() for which in (~arena.held, arena.held))
        assert (token, held) == (timeline["token"][here][row], timeline["held"][here][row])
        marked += held > 0
    assert marked > 5
    assert not MemoryMap.read(tmp_path / "run" / "map.parquet", 1).rows.held.any()
    arena = read_arena(tmp_path / "run" / "map.parquet", 0)
    assert arena.packed()[0].columns["held"].any()
    page = write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "computed, waits to be read" in page.read_text(encoding="utf-8")


def test_prompts_that_are_short_or_cached_are_computed_where_they_are_answered():
    traffic = {"model": "llama-3.1-8b", "gpu": "h100", "num_prompts": 200, "request_rate": 30.0}
    run = kvsim.simulate(pool="prefill:1 decode:2", direct_decode=100, **traffic)
    requests = run.columns.requests
    short = requests["prompt_tokens"] <= 100
    assert (np.isnan(requests["prompt_computed_s"]) == short).all()
    assert run.summary["hand_over"]["requests"] == (~short).sum() > 20
    assert short.sum() > 20
    assert run.summary.requests.finished == 200
    apart = kvsim.simulate(pool="prefill:1 decode:2", **traffic).columns.requests
    assert requests["ttft_s"][short].mean() < apart["ttft_s"][short].mean()
    for request in (int(np.argmax(short)), int(np.argmax(~short))):
        told = run.explain(request)
        assert sum(part.time_ps for part in told.parts) == told.end_ps - told.arrival_ps
    again = kvsim.simulate(
        pool="prefill:1 decode:2", direct_decode=100, shared_prefix="2x300", router="prefix", **traffic
    )
    direct = np.isnan(again.columns.requests["prompt_computed_s"])
    assert direct.sum() > 50
    assert (again.columns.requests["prompt_tokens"][direct] > 300).all()


def test_without_decode_pools_nothing_is_decoded_directly():
    with pytest.raises(KvsimError, match="direct_decode must be left out without prefill and decode pools"):
        kvsim.simulate(model="llama-3.1-8b", replicas=2, direct_decode=100, num_prompts=5)
