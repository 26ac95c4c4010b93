"""A recording of genuine vLLM with hybrid layers -> the same run by kvsim's own engine."""

import json

from kvsim.allocators.options import Hybrid, LayerGroup
from kvsim.sim.content import ascending
from support import golden

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
    """The workload as kvsim's own JSONL; conversations repeat what was answered, so they are segments."""
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
