"""The engine over hybrid layers decides, in every step, what the genuine vLLM 0.33.0 decided.

Windows, chunked local attention and recurrent states, with and without prefixes. The recordings lay out
small groups that no model has, so the groups are handed to the run; the rest is a run like any other. With
asynchronous scheduling only decisions can be compared (tests/sim/test_goldens_async.py).
"""

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
from support import golden
from support.hybrid_case import differences, engine_of
from support.shared_data import goldens

from kvsim.allocators.hybrid.groups import Hybrid
from kvsim.sim.workload import PS_PER_S

pytestmark = pytest.mark.golden


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
    """The requests of a workload; None if only their lengths were recorded."""
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
    """The pages of a sequence as vLLM numbers them: from 1, with 0 for those not kept."""
    if isinstance(allocator, Hybrid):
        return allocator.block_tables(seq)
    return [[0 if page is None else page + 1 for page in table] for table in allocator.block_tables(seq)]


def queue_of(allocator):
    """The free pages, numbered in the same way."""
    return [page + (not isinstance(allocator, Hybrid)) for page in allocator.free_queue()]


@pytest.mark.parametrize("name", TINY)
def test_every_table_and_the_free_queue_are_as_in_vllm(name, monkeypatch):
    case = case_named(name)
    engine = engine_of(case, monkeypatch, max_span=1)
    ids, decide, seen = [each for (each,) in golden.rows(case)], engine.replica.decide, {}

    def noting(server):
        allocator = server.allocator
        if seen:
            seen[max(seen)]["free_queue_end"] = queue_of(allocator)
            seen[max(seen)]["hash_entries_end"] = entries_of(allocator)
        decision = decide(server)
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
        return decision

    engine.replica.decide = noting
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
