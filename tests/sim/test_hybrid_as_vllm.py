"""The engine over hybrid layers decides, in every step, what the genuine vLLM 0.33.0 decided.

Windows, chunked local attention and recurrent states, with their prefixes and without. The recordings lay out
small groups that no model has, so the groups are handed to the run; the rest is a run like any other. With
asynchronous scheduling only what is decided can be compared (tests/sim/test_goldens_async.py).
"""

import gzip
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support import golden
from support.hybrid_case import layers_of, trace_lines
from support.shared_data import goldens

from kvsim.allocators.hybrid.groups import Hybrid
from kvsim.sim import build
from kvsim.sim.build import build_engine
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.scenario.deployment import Deployment
from kvsim.sim.scenario.engine import EngineConfig
from kvsim.sim.scenario.hybrid import HybridMemory, page_slots
from kvsim.sim.scenario.memory import KvCapacity
from kvsim.sim.workload import PS_PER_S
from kvsim.workloads.source import opened

pytestmark = pytest.mark.golden
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


def _names():
    try:
        folder = goldens("hybrid/v033_hybrid")
    except (pytest.skip.Exception, pytest.fail.Exception):
        return []
    return sorted(path.name.removesuffix(".json.gz") for path in Path(folder).glob("*.json.gz"))


def marked(name):
    return name if "__a_tiny" in name else pytest.param(name, marks=pytest.mark.slow)


@cache
def unzipped(path):
    return json.loads(gzip.decompress(Path(goldens(path)).read_bytes()))


def workload(name):
    """The requests of a workload; None where only their lengths were recorded."""
    for folder in ("hybrid/workloads", "workloads"):
        if (Path(goldens("README.md")).parent / folder / f"{name}.json.gz").exists():
            return unzipped(f"{folder}/{name}.json.gz")["requests"]
    return None


def case_named(name):
    case = unzipped(f"hybrid/v033_hybrid/{name}.json.gz") | {"engine": "v033"}
    requests = workload(case["workload"])
    if requests is None:
        requests = [
            {key: row[key] for key in ("id", "arrival", "prompt_len", "output_len")}
            for row in case["per_request"]
        ]
        if case["workload"].startswith("d_shared"):
            prompts = {row["id"]: row["prompt_ids"] for row in workload("d_shared_t0")}
            requests = [row | {"prompt_ids": prompts[row["id"]]} for row in requests]
    return case | {"requests": requests}


def deployment(case):
    config = case["config"]
    engine = EngineConfig(
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
    """The engine of a recording's run; its model's layers are in the recording's groups."""
    layers = layers_of(case)
    slots = case["config"]["usable_blocks"] * page_slots(layers)
    memory = HybridMemory(layers, (), 0, KvCapacity(slots, 1, "given", 1, slots))
    monkeypatch.setattr(build, "hybrid_groups", lambda _scenario: memory)
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


@pytest.mark.parametrize("name", [marked(name) for name in _names()])
def test_every_step_is_as_in_vllm(name, monkeypatch):
    case = case_named(name)
    engine = engine_of(case, monkeypatch, step_log=True, check=True)
    assert list(differences(case, engine.run())) == []


TINY = [name for name in _names() if "__a_tiny" in name]


def entries_of(allocator):
    """Texts that can be found."""
    return allocator.cache.pool.entries if isinstance(allocator, Hybrid) else 0


def tables_of(allocator, seq):
    """The pages of a sequence as vLLM numbers them: from 1, 0 for what is not kept."""
    if isinstance(allocator, Hybrid):
        return allocator.block_tables(seq)
    return [[0 if page is None else page + 1 for page in table] for table in allocator.block_tables(seq)]


def queue_of(allocator):
    """The free pages, numbered likewise."""
    return [page + (not isinstance(allocator, Hybrid)) for page in allocator.free_queue()]


@pytest.mark.parametrize("name", TINY)
def test_every_table_and_the_free_queue_are_as_in_vllm(name, monkeypatch):
    case = case_named(name)
    engine = engine_of(case, monkeypatch, max_span=1)
    ids, scheduler, seen = [each for (each,) in golden.rows(case)], engine.replica.scheduler, {}
    decide = scheduler.schedule

    def noting(server):
        allocator = server.allocator
        if seen:
            seen[max(seen)]["free_queue_end"] = queue_of(allocator)
            seen[max(seen)]["hash_entries_end"] = entries_of(allocator)
        decide(server)
        tables = {ids[r.index]: tables_of(allocator, seq) for seq, r in server.running.items()}
        entries = [
            [page for table in group for page in table if page]
            for group in zip(*tables.values(), strict=True)
        ]
        seen[server.now_ps // PS_PER_S] = {
            "running_order": list(tables),
            "waiting_order": [ids[request.index] for request in server.waiting],
            "tables": {str(each): table for each, table in tables.items()},
            "free_queue": queue_of(allocator),
            "groups": [(len(set(pages)), len(pages)) for pages in entries],
        }

    scheduler.schedule = noting
    engine.run()
    for step, facts in seen.items():
        told = case["detail"][step] | {
            "hash_entries_end": case["per_step"]["hash_entries_end"][step],
            "groups": [(row["blocks"][step], row["table_entries"][step]) for row in case["per_group"]],
        }
        assert facts == {name: told[name] for name in facts}, step
    assert len(seen) == len(golden.busy_steps(case))


@pytest.mark.parametrize("name", TINY)
def test_spans_and_single_steps_give_the_same_run(name, monkeypatch):
    case, runs = case_named(name), []
    for max_span in (1, 1 << 20):
        result = engine_of(case, monkeypatch, max_span=max_span, check=True).run()
        columns = {key: column.tolist() for key, column in (result.requests | result.timeline).items()}
        runs.append((columns, result.saturated, result.unsaturated, result.peak_used_tokens))
    assert runs[0] == runs[1]


def test_the_recordings_hold_every_kind_of_layer_preemptions_and_hits():
    goldens()
    cases = [case_named(name) for name in _names()]
    assert {case["workload"][:2] for case in cases} >= {"a_", "m_", "p_"}
    assert {group["kind"] for case in cases for group in case["groups"]} == {
        *("full_attention", "sliding_window", "chunked_local_attention", "mamba")
    }
    assert sum(case["totals"]["preemptions"] > 0 for case in cases) > len(cases) // 3
    assert sum(any(case["per_step"]["hit_tokens"]) for case in cases) > len(cases) // 3
