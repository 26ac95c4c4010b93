"""Hybrid models in jenga's large pages and in a fixed split: runs add up, and the documents' figures hold."""

import re
from math import inf
from pathlib import Path

import pytest

from kvsim import workloads
from kvsim.sim.build import build_allocator, build_engine, build_scheduler
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import prepare

pytestmark = pytest.mark.slow

NAMES = ("hybrid", "jenga", "jenga-packed", "split")
CASES = {"gpt-oss-20b": 500, "jamba-1.5-mini": 400, "llama-4-scout": 800, "qwen3-next-80b-a3b": 80}
DOCS = Path(__file__).resolve().parents[2] / "docs"


def scenario(allocator, model, **settings):
    given = {"gpu": "h200", "scheduler": "vllm-v1@0.33.0", "cost": "roofline", "max_num_batched_tokens": 2048}
    return Scenario(allocator=allocator, model=model, **given | settings).deployed()


def outcome(allocator, model, max_span, **settings):
    """An overloaded server whose prompts share prefixes."""
    workload = workloads.build(
        "sharegpt", num_prompts=30, request_rate=inf, burstiness=1.0, seed=0, shared_prefix="3x700"
    )
    deployed = scenario(allocator, model, max_num_seqs=32, num_gpu_blocks=CASES[model], **settings)
    result = build_engine(deployed, workload, max_span=max_span, check=True).run()
    columns = {name: column.tolist() for name, column in result.requests.items()}
    return columns, result.step_count, result.saturated, result.peak_used_tokens


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("model", CASES)
@pytest.mark.parametrize("allocator", NAMES)
def test_books_are_kept_and_spans_end_as_single_steps(allocator, model, caching):
    runs = [
        outcome(allocator, model, span, enable_prefix_caching=caching, async_scheduling=caching)
        for span in (1, 1 << 20)
    ]
    assert runs[0] == runs[1]


def test_the_same_memory_has_as_many_bytes_in_every_layout():
    sizes = {}
    for allocator in NAMES:
        deployed = scenario(allocator, "gemma-3-27b", num_gpu_blocks=1000)
        found = build_allocator(deployed, build_scheduler(deployed))
        grains = found.capacity_slots // found.slots_per_token
        sizes[allocator] = grains
    assert max(sizes.values()) < 1.02 * 16 * 1000 / 7 * 70 / 62  # 7 groups of 10 pages, of 62 layers
    assert min(sizes.values()) > 0.95 * 16 * 1000 / 7


def test_config_json_names_the_groups_of_a_hybrid_run():
    deployed = scenario("hybrid", "gemma-3-4b")
    workload = workloads.build("sharegpt", num_prompts=2, request_rate=1.0, burstiness=1.0, seed=0)
    groups = prepare(deployed, workload, {}).outcome().config["kv_capacity"]["groups"]
    assert {tuple(group) for group in groups} == {
        ("kind", "layers", "block_size", "page_bytes", "window", "chunk")
    }
    assert sorted(number for group in groups for number in group["layers"]) == list(range(34))
    assert {group["window"] for group in groups} == {None, 1024}


def test_large_pages_that_do_not_fit_are_refused_with_their_size():
    with pytest.raises(KvsimError, match="the least common multiple of pages of"):
        deployed = scenario("jenga", "nemotron-h-56b")
        build_allocator(deployed, build_scheduler(deployed))
    with pytest.raises(KvsimError, match="disable_hybrid_kv_cache_manager must be left out"):
        deployed = scenario("jenga", "gemma-3-4b", disable_hybrid_kv_cache_manager=True)
        build_allocator(deployed, build_scheduler(deployed))


def fit_at_once(allocator, model, tokens, **settings):
    """Sequences of this many tokens, computed in pieces of 2,048, until one finds no room."""
    deployed = scenario(allocator, model, max_num_batched_tokens=None, **settings)
    memory, seq = build_allocator(deployed, build_scheduler(deployed)), 0
    while True:
        done, seq = min(tokens, 2048), seq + 1
        fits = memory.admit(seq, done, tokens)
        while fits and done < tokens:
            piece = min(tokens, done + 2048)
            fits, done = memory.grow_chunk(seq, done, piece), piece
        if not fits or not memory.grow(seq, tokens + 1):
            return seq - 1


def documented():
    """(model, GPUs, tokens, {allocator: sequences}) of each row in docs/hybrid.md."""
    text = (DOCS / "hybrid.md").read_text(encoding="utf-8").partition("## Three layouts compared")[2]
    pattern = r"^\| (\S+), (\d) x (\S+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$"
    for model, tp, gpu, *numbers in re.findall(pattern, text, re.MULTILINE):
        tokens, *counts = (int(number.replace(",", "")) for number in numbers)
        yield model, int(tp), gpu, tokens, dict(zip(NAMES, counts, strict=True))


@pytest.mark.parametrize("row", list(documented()), ids=lambda row: f"{row[0]}-{row[3]}")
def test_as_many_requests_fit_as_the_documents_say(row):
    model, tp, gpu, tokens, counts = row
    settings = {"gpu": gpu, "tensor_parallel_size": tp}
    assert {name: fit_at_once(name, model, tokens, **settings) for name in NAMES} == counts


def test_the_documents_compare_models_of_every_kind():
    assert len(list(documented())) >= 8
