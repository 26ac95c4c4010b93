"""Hybrid groups keep the books of the genuine vLLM 0.33.0: every step, group, request, table and free block.

Each recording is one layout of layers (windows, chunks, recurrent states beside full attention) under one
workload; the scheduler is the page in `support/hybrid_engine.py`.
"""

import gzip
import json
import os
from functools import cache
from pathlib import Path

import pytest
from support.hybrid_engine import HybridEngine
from support.shared_data import goldens

from kvsim.allocators.hybrid import GroupSpec, HybridCache

pytestmark = pytest.mark.golden
KINDS = {
    "full_attention": "full",
    "sliding_window": "window",
    "chunked_local_attention": "chunk",
    "mamba": "state",
}
DETAIL = (
    "scheduled",
    "preempted",
    "running_order",
    "waiting_order",
    "tables",
    "free_queue",
    "free_queue_end",
)
ADMITTED = "admitted [id, hit, shared_prefix_boundary]"


def place():
    given = os.environ.get("KVSIM_GOLDENS")
    return Path(given) if given else Path(__file__).resolve().parents[3] / "shared/goldens"


def names():
    files = sorted((place() / "hybrid/v033_hybrid").glob("*.json.gz"))
    return [file.name.removesuffix(".json.gz") for file in files]


def marked(name):
    """The recordings that take longer are slow tests."""
    return name if "__a_tiny" in name else pytest.param(name, marks=pytest.mark.slow)


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


@cache
def workload(name):
    """The requests of a workload; None where only their lengths were recorded."""
    for folder in ("hybrid/workloads", "workloads"):
        path = place() / folder / f"{name}.json.gz"
        if path.exists():
            return read(path)["requests"]
    return None


def requests_of(case):
    """A recording's requests: its workload's, else its own, whose shared prompts are those of another."""
    found = workload(case["workload"])
    if found is not None:
        return found
    shared_prompts = {}
    if case["workload"].startswith("d_shared"):
        shared_prompts = {row["id"]: row["prompt_ids"] for row in workload("d_shared_t0")}
    rows = []
    for row in case["per_request"]:
        rows.append({key: row[key] for key in ("id", "arrival", "prompt_len", "output_len")})
        if shared_prompts:
            rows[-1]["prompt_ids"] = shared_prompts[row["id"]]
    return rows


def engine_of(case):
    config = case["config"]
    groups = [
        GroupSpec(
            kind=KINDS[group["kind"]],
            block_size=group["block_size"],
            reach=group["window"] or group["chunk"],
            checkpoint_grid=group["prefill_checkpoint_alignment"]
            if group["num_prefill_checkpoint_blocks"]
            else None,
        )
        for group in case["groups"]
    ]
    cache = HybridCache(
        config["usable_blocks"],
        groups,
        caching=config["caching"],
        max_model_len=config["max_model_len"],
        in_flight_tokens=config["max_in_flight_tokens"],
        retention=config["prefix_cache_retention_interval"],
        match_tokens=config["prefix_match_unit"],
    )
    return HybridEngine(cache, requests_of(case), config, detailed=bool(case.get("detail")))


def first_difference(ours, theirs):
    return next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)


def differences(case):
    """(column, step, ours, theirs): the first difference of every column."""
    engine = engine_of(case)
    engine.run()
    steps, wrong = len(case["per_step"]["running"]), []
    if len(engine.steps) != steps:
        wrong.append(("steps", None, len(engine.steps), steps))
    columns = [
        (name, [row[name] for row in engine.steps], case["per_step"][name]) for name in engine.steps[0]
    ]
    for row in case["per_group"]:
        for place_of, name in enumerate(("blocks", "table_entries")):
            ours = [groups[row["group"]][place_of] for groups in engine.group_rows]
            columns.append((f"group {row['group']} {name}", ours, row[name]))
    for name, ours, theirs in columns:
        at = first_difference(ours, theirs)
        if at is not None:
            wrong.append((name, at, ours[at], theirs[at]))
    if engine.copies != case["totals"]["copies"]:
        wrong.append(("copies", None, engine.copies, case["totals"]["copies"]))
    told = {request.id: request for request in engine.done}
    for row in case["per_request"]:
        ours = (told[row["id"]].first_scheduled, told[row["id"]].preemptions)
        theirs = (row["first_scheduled_step"], row["num_preemptions"])
        if ours != theirs:
            wrong.append((f"request {row['id']}", None, ours, theirs))
    for ours, theirs in zip(engine.details, case.get("detail") or (), strict=False):
        wrong += [
            (name, theirs["step"], ours[name], theirs[name]) for name in DETAIL if ours[name] != theirs[name]
        ]
        if ours["admitted"] != theirs[ADMITTED]:
            wrong.append(("admitted", theirs["step"], ours["admitted"], theirs[ADMITTED]))
    return wrong


@pytest.mark.parametrize("name", [marked(name) for name in names()])
def test_every_step_group_request_and_table_is_as_in_vllm(name):
    assert differences(read(place() / "hybrid/v033_hybrid" / f"{name}.json.gz")) == []


def test_the_recordings_hold_every_kind_of_layer():
    goldens("hybrid")
    assert {name[:3] for name in names()} == {"swa", "chk", "mam"}
