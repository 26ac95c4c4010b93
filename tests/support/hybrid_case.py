"""A recording of genuine vLLM with hybrid layers -> the same run on kvsim's engine, and the differences."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from kvsim.allocators.options import Hybrid, LayerGroup
from kvsim.sim import build
from kvsim.sim.build import build_engine
from kvsim.sim.content import ascending
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.hybrid import HybridMemory, page_slots
from kvsim.sim.deployment.memory import KvCapacity
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.workload import PS_PER_S
from kvsim.workloads.source import opened
from support import golden
from support.settings import engine_config

DECIDED = ("waiting", "preemptions_cum", "prefill_tokens", "decode_tokens", "hit_tokens", "recomputed_tokens")
STATE = (
    "running",
    "blocks_in_use",
    "kv_tokens",
    "finished",
    "running_end",
    "waiting_end",
    "blocks_in_use_end",
)

KINDS = {
    "full_attention": "full",
    "sliding_window": "window",
    "chunked_local_attention": "chunk",
    "mamba": "state",
}


def layers_of(case):
    """The groups of a recording as the allocator knows them."""
    config = case["config"]
    groups = tuple(
        LayerGroup(
            KINDS[group["kind"]],
            group["block_size"],
            group["window"] or group["chunk"],
            group["prefill_checkpoint_alignment"] if group["num_prefill_checkpoint_blocks"] else None,
        )
        for group in case["groups"]
    )
    return Hybrid(
        groups,
        config["max_in_flight_tokens"],
        config["async_scheduling"],
        config["prefix_cache_retention_interval"],
        config["prefix_match_unit"],
    )


FIRST_PROMPT_ID, FIRST_ANSWER_ID, PER_REQUEST = 40_000_000, 10_000_000, 4_096


def trace_lines(case):
    """The workload as kvsim's own JSONL; conversations repeat earlier answers, so they are segments."""
    if not case["workload"].startswith("m_turns"):
        yield from golden.trace_lines(case)
        return
    told = {request["id"]: request for request in case["requests"]}
    for (each,) in golden.rows(case):
        request, segments = told[each], []
        for first, tokens in ascending(request["prompt_ids"]):
            author = told.get((first - FIRST_ANSWER_ID) // PER_REQUEST) if first < FIRST_PROMPT_ID else None
            name = f"chat {author['session']}/{author['turn']}" if author else f"{first}"
            segments.append([name, tokens])
        row = {"arrival_s": request["arrival"], "output_tokens": request["output_len"]}
        row |= {"segments": segments, "session": f"chat {request['session']}", "turn": request["turn"]}
        yield json.dumps(row) + "\n"


def deployment(case):
    config = case["config"]
    engine = engine_config(
        scheduler="vllm-v1@0.33.0",
        enable_prefix_caching=config["caching"],
        reserve_full_prompt=config["scheduler_reserve_full_isl"],
        watermark=config["watermark"] or 0.0,
        **{
            name: config[name]
            for name in (
                "block_size",
                "max_num_seqs",
                "max_num_batched_tokens",
                "max_model_len",
                "async_scheduling",
            )
        },
    )
    return Deployment(
        model=model_named("llama-2-7b"),
        gpu=gpu_named("a100-40gb"),
        engine=engine,
        num_gpu_blocks=config["usable_blocks"],
        cost="constant:1",
    )


def engine_of(case, monkeypatch, **how):
    """The engine for a recording's run, with its model's layers in the recording's groups."""
    layers = layers_of(case)
    slots = case["config"]["usable_blocks"] * page_slots(layers)
    memory = HybridMemory(layers, (), 0, KvCapacity(slots, 1, "given", 1, slots))
    monkeypatch.setattr(build, "hybrid_groups", lambda *_: memory)
    with TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.jsonl"
        trace.write_text("".join(trace_lines(case)))
        work = opened(Traffic(trace=str(trace))).workload()
    return build_engine(deployment(case), work, **how)


def differences(case, result):
    busy, steps = golden.busy_steps(case), result.steps
    starts = [start // PS_PER_S for start in steps["start_ps"].tolist()]
    if starts != busy:
        yield "steps", len(starts), len(busy)
        return
    asynchronous = case["config"]["async_scheduling"]
    for name in DECIDED if asynchronous else (*DECIDED, *STATE):
        ours, theirs = steps[name].tolist(), [case["per_step"][name][step] for step in busy]
        if ours != theirs:
            at = next(
                place for place, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]
            )
            yield name, busy[at], ours[at], theirs[at]
    told = {row["id"]: row for row in case["per_request"]}
    ids = [each for (each,) in golden.rows(case)]
    first = [busy[step] for step in result.requests["first_scheduled_step"].tolist()]
    if first != [told[each]["first_scheduled_step"] for each in ids]:
        yield "first_scheduled_step", first
    if result.requests["num_preemptions"].tolist() != [told[each]["num_preemptions"] for each in ids]:
        yield "num_preemptions"
    if result.cow_copies != case["totals"]["copies"]:
        yield "copies", result.cow_copies, case["totals"]["copies"]
