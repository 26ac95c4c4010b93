"""Prefill and decode on separate SGLang servers: room is reserved first, and prompts are sent in pieces."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.apart import all_free
from support.apart import run as run_apart
from support.cases import draw_case, told
from support.event_rows import rows
from support.pushed import pushed
from support.seeded import noted

import kvsim
from kvsim.sim.build import resolve
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.record.slo import Slo
from kvsim.sim.record.stages import shares
from kvsim.sim.run import deployment_of, prepare
from kvsim.sim.workload import PS_PER_S

SGLANG = {
    "scheduler": "sglang",
    "allocator": "sglang",
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "router": "round-robin",
    "frontend_latency": 0.0,
}
LATENCY_S = 1e-5
"""Of the link."""
TOKEN_BYTES = 131_072


def outcome(deployment, case, max_span):
    try:
        engine, result = run_apart(deployment, case, max_span, events=True)
    except KvsimError as error:
        assert "would wait forever, as in SGLang" in str(error)
        return str(error), None
    all_free(engine)
    for replica in engine.replicas[deployment.pools[0].replicas :]:
        assert not (replica.server.arriving or replica.server.landed)
    return engine, result


@noted
def check_seed(seed):
    rng = Random(seed)
    deployment, case = pushed(rng, draw_case(Random(seed), "sglang"), rng.randint(1, 2), rng.randint(1, 3))
    engine, slow = outcome(deployment, case, 1)
    fast_engine, fast = outcome(deployment, case, 1 << 20)
    if slow is None:
        assert engine == fast_engine
        return None
    one, other = told(slow), told(fast)
    assert {name for name in one if one[name] != other[name]} == set()
    assert engine.hand_over.totals() == fast_engine.hand_over.totals()
    for first, second in zip(engine.replicas, fast_engine.replicas, strict=True):
        assert rows(first.server.events) == rows(second.server.events)
        assert all(row["step"] >= 0 for row in rows(first.server.events))
    assert slow.finished.sum() + sum(slow.rejected.values()) == len(case.work)
    assert engine.hand_over.totals().requests == slow.finished.sum()
    assert (slow.replica[slow.finished] >= deployment.pools[0].replicas).all()
    return engine, slow


def test_every_request_is_served_once_and_fast_forward_equals_step_mode(request):
    preempted = held = hits = stuck = 0
    for seed in range(request.config.getoption("--fuzz") or 120):
        found = check_seed(seed)
        if found is None:
            stuck += 1
            continue
        engine, result = found
        preempted += result.swap_outs > 0
        held += engine.hand_over.totals().peak_held_share > 0.5
        hits += any(each.server.totals.hit_tokens for each in engine.replicas if not each.server.holds)
    found = preempted, held, hits, stuck
    assert (preempted > 5, held > 20, hits > 10, stuck < 12) == (True,) * 4, found


def scaled(seed):
    """The deployment of a seed with replicas that start and stop on both sides, and its case; or None."""
    deployment, case = pushed(Random(seed), draw_case(Random(seed), "sglang"), 2, 2)
    _, plain = outcome(deployment, case, 1 << 20)
    if plain is None:
        return None
    end_s = plain.end_ps / PS_PER_S
    scale = f"schedule:0=1,{end_s / 5:.9f}=2,{end_s / 2:.9f}=1"
    fleet = replace(deployment.fleet, scale=scale, startup_time=end_s / 20, load_bandwidth=1e9)
    return replace(deployment, fleet=fleet), case


def test_both_sides_scale_and_fast_forward_equals_step_mode():
    drained = 0
    for seed in range(30):
        if (found := scaled(seed)) is None:
            continue
        (engine, slow), (other, fast) = (outcome(*found, max_span) for max_span in (1, 1 << 20))
        if slow is None:
            assert engine == other
            continue
        assert told(slow) == told(fast), seed
        assert engine.hand_over.totals() == other.hand_over.totals()
        assert slow.finished.sum() + sum(slow.rejected.values()) == len(found[1].work)
        drained += any(each.state == "draining" for each in engine.scaler.changes)
    assert drained > 10


def test_with_a_free_link_and_endless_memory_first_tokens_are_those_of_prefill_servers_alone():
    """Answers of one token keep no decode server busy; the link takes its latency and 0.13 ns per token."""
    traffic = {"trace": "synthetic", "input_len": "uniform:10:3000", "output_len": "1", "num_prompts": 200}
    traffic |= {"request_rate": 60.0, "cost": "constant:0.01"}
    alone = kvsim.simulate(replicas=2, **SGLANG, **traffic).columns.requests
    apart = kvsim.simulate(
        pool="prefill:2 decode:2", kv_transfer_link="1000000", **SGLANG, **traffic
    ).columns.requests
    link_s = LATENCY_S + apart["prompt_tokens"] * TOKEN_BYTES / 1e15
    assert apart["ttft_s"] - alone["ttft_s"] == pytest.approx(link_s, abs=1e-9)
    longer = traffic | {"output_len": "100"}
    busy = kvsim.simulate(
        pool="prefill:2 decode:2", kv_transfer_link="1000000", **SGLANG, **longer
    ).columns.requests
    late_s = busy["ttft_s"] - alone["ttft_s"] - link_s
    assert (late_s > -1e-9).all()
    assert 0.01 < late_s.max() < 0.02 + 1e-9  # room is reserved, and it enters, at the end of a decode step


@pytest.mark.parametrize("gb_per_s", [1, 8, 20])
def test_pieces_are_sent_while_the_rest_is_computed(gb_per_s):
    """Five pieces of 400 tokens, one per step of 10 ms, and one of 100."""
    run = kvsim.simulate(
        pool="prefill:1 decode:1",
        kv_transfer_link=str(gb_per_s),
        max_num_batched_tokens=400,
        trace="synthetic",
        input_len="2100",
        output_len="5",
        num_prompts=1,
        cost="constant:0.01",
        **SGLANG,
    )
    requests = run.columns.requests
    piece_s, rest_s = (LATENCY_S + tokens * TOKEN_BYTES / (gb_per_s * 1e9) for tokens in (400, 100))
    first_s, computed_s = requests["first_scheduled_s"][0], requests["prompt_computed_s"][0]
    assert computed_s - first_s == pytest.approx(0.06)
    assert requests["read_begin_s"][0] - first_s == pytest.approx(0.01)
    last_full_s = max(0.05 + piece_s, 0.01 + 5 * piece_s)
    assert requests["read_end_s"][0] - first_s == pytest.approx(max(0.06, last_full_s) + rest_s)
    assert requests["first_token_s"][0] == requests["read_end_s"][0]  # a prebuilt batch computes nothing
    assert requests["finish_s"][0] - requests["first_token_s"][0] == pytest.approx(4 * 0.01)


def test_a_page_that_is_not_full_is_sent_whole_and_each_piece_takes_the_latency():
    """Pieces of 128, 128 and 44 tokens in pages of 64, over a link that is slower than the GPU."""
    run = kvsim.simulate(
        pool="prefill:1 decode:1",
        kv_transfer_link="1",
        block_size=64,
        max_num_seqs=64,
        max_num_batched_tokens=128,
        trace="synthetic",
        input_len="300",
        output_len="5",
        num_prompts=1,
        cost="constant:0.001",
        **SGLANG,
    )
    assert run.summary["hand_over"]["read_bytes"] == 5 * 64 * TOKEN_BYTES
    requests = run.columns.requests
    pages_s = 5 * 64 * TOKEN_BYTES / 1e9 + 3 * LATENCY_S
    assert requests["read_end_s"][0] - requests["read_begin_s"][0] == pytest.approx(pages_s)


FULL = {
    **SGLANG,
    "pool": "prefill:1 decode:1:kv_tokens=8000",
    "trace": "synthetic",
    "input_len": "1000",
    "output_len": "300",
    "num_prompts": 30,
    "request_rate": 100.0,
}


def test_a_prompt_waits_on_the_prefill_side_while_decode_memory_is_full():
    run = kvsim.simulate(**FULL)
    requests = run.columns.requests
    began, ended = np.sort(requests["first_scheduled_s"]), np.sort(requests["finish_s"])
    most = 8000 // 1512  # a prompt and 512 tokens for each
    assert (began[most:] >= ended[: len(ended) - most]).all()
    assert began[most] > 0.5
    assert (requests["reserved_s"] <= requests["first_scheduled_s"]).all()
    for limit in ("ttft=0.1s", "queueing=0.1s"):
        sides = shares(requests, Slo.parse(limit).limits[0])
        assert sides["decode"] > 0.9
    prefill, decode = run.summary["replicas"]
    assert prefill["load"]["held_back_share"]["kv_memory"] > 0.9
    assert 5000 < decode["memory"]["peak_used_tokens"] <= 8000 - 512
    more = kvsim.simulate(num_reserved_decode_tokens=0, **FULL)
    assert more.summary.latency.ttft_s["mean"] < run.summary.latency.ttft_s["mean"]


def test_a_retracted_request_comes_back_from_the_host_and_computes_nothing_again():
    run = kvsim.simulate(num_reserved_decode_tokens=20, max_tokens=20, **{**FULL, "output_len": "900"})
    told, requests = run.summary["engine"], run.columns.requests
    assert (told["preemptions_recompute"], run.summary["hand_over"]["requests"]) == (0, 30)
    assert told["preemptions_swap"] == requests["num_preemptions"].sum() > 5
    assert told["swapped_in_blocks"] == told["swapped_out_blocks"] > 5000
    assert run.summary["requests"]["finished"] == 30
    life = run.explain(int(np.argmax(requests["num_preemptions"])))
    assert sum(part.time_ps for part in life.parts) == life.end_ps - life.arrival_ps
    assert any("swapped in again with" in line.text for line in life.lines)


def test_only_what_the_decode_side_lacks_is_sent_if_it_keeps_prefixes():
    traffic = {"shared_prefix": "2x600", "num_prompts": 60, "request_rate": 10.0}
    asked = {**SGLANG, "pool": "prefill:1 decode:1", **traffic}
    plain = kvsim.simulate(**asked)
    keeps = kvsim.simulate(disaggregation_decode_enable_radix_cache=True, **asked)
    tokens = int(plain.columns.requests["prompt_tokens"].sum())
    assert plain.summary["hand_over"]["read_bytes"] == tokens * TOKEN_BYTES
    left = keeps.summary["hand_over"]["read_bytes"] / TOKEN_BYTES
    assert tokens - 60 * 600 <= left < tokens - 40 * 600
    hits = [each.summary["replicas"][1]["engine"]["prefix_hit_tokens"] for each in (plain, keeps)]
    assert hits == [0, tokens - left]


def test_the_same_seed_gives_the_same_bytes_and_its_config_the_same_fleet():
    asked = {**SGLANG, "pool": "prefill:1 decode:2", "num_prompts": 40, "request_rate": 20.0}
    first, second = (kvsim.simulate(**asked).columns.requests for _ in range(2))
    assert all(
        first[name].tobytes() == second[name].tobytes() for name in first if first[name].dtype != object
    )
    settings = {name: value for name, value in asked.items() if name not in ("num_prompts", "request_rate")}
    own = {name: settings.pop(name) for name in ("scheduler", "allocator", "router")}
    deployment = resolve(Scenario(**settings, **own).deployed()).deployment
    work = kvsim.workloads.build("sharegpt", num_prompts=5, request_rate=30.0, burstiness=1.0, seed=3)
    assert deployment_of(prepare(deployment, work, {}).outcome().config)[0] == deployment


def test_a_life_is_told_across_both_servers_without_gaps():
    run = kvsim.simulate(**FULL)
    for request in (0, 29):
        life = run.explain(request)
        assert sum(part.time_ps for part in life.parts) == life.end_ps - life.arrival_ps
        said = [line.text for line in life.lines]
        assert sum("has reserved room for it" in each for each in said) == 1
        assert sum("has read the prompt" in each for each in said) == 1
    assert "the decode replica had no room for it yet" in str(run.explain(29))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pool": "prefill:1 decode:1:scheduler=vllm-v1,allocator=paged,block_size=16"}, "scheduler must be"),
        ({"allocator": "paged"}, "allocator must be sglang with prefill and decode pools, got paged"),
        ({"policy": "lpm"}, "policy must be fcfs with prefill and decode pools, got 'lpm'"),
        ({"enable_hierarchical_cache": True}, "enable_hierarchical_cache must be left out with prefill"),
        ({"direct_decode": 100}, "direct_decode must be left out with prefill and decode pools of scheduler"),
        (
            {"mixed_pool": 100},
            "mixed_pool must be left out with prefill and decode pools of scheduler sglang",
        ),
        (
            {"fail": "replica=0:at=1:for=1"},
            "fail must be left out with prefill and decode pools of scheduler",
        ),
        ({"model": "gemma-3-27b"}, "with prefill and decode pools"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_one_line(settings, said):
    with pytest.raises(KvsimError, match=said) as error:
        kvsim.simulate(**{**SGLANG, "pool": "prefill:1 decode:1", "num_prompts": 5, **settings})
    assert "\n" not in str(error.value)
