"""Every recorded model: groups, pages, blocks, printed tokens, concurrency and refusals are vLLM 0.33.0's."""

import gzip
import json

import pytest
from support.shared_data import golden_names, goldens

from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import fitted
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.fit.capacity import pipeline_capacity
from kvsim.sim.kv.pages import Group
from kvsim.sim.models.catalog import gpu_named
from kvsim.sim.models.huggingface import model_of

pytestmark = pytest.mark.golden
GPUS = {"H100": "h100", "A100": "a100-80gb"}


def names():
    """Every file of a model; none where the reference data is not here."""
    return [name for name in golden_names("fit") if not name.startswith(("_", "defaults"))]


def asked(variant, kv_memory):
    """What a recorded variant asks."""
    extra = variant.get("extra_args") or {}
    return FitOptions(
        tensor_parallel_size=variant["tensor_parallel_size"],
        kv_cache_dtype=variant["kv_cache_dtype"],
        block_size=variant["asked_block_size"],
        enable_prefix_caching=variant["asked_prefix_caching"],
        max_model_len=variant.get("max_model_len"),
        disable_hybrid_kv_cache_manager=extra.get("disable_hybrid_kv_cache_manager", False),
        kv_memory=kv_memory,
    )


def told(model, variant, gpu, kv_memory):
    """Our answer to it at one size of memory, as `sim fit --json` has it."""
    return fitted(model, gpu_named(GPUS[gpu]), asked(variant, kv_memory)).as_json()


def recorded(variant, memory):
    """The same from a recording."""
    return {
        "block_size": variant["cache_config"]["block_size"],
        "bytes_per_block": variant["bytes_per_block"],
        "max_in_flight_tokens": variant["max_in_flight_tokens"],
        "cache_hit_alignment_tokens": variant["cache_hit_alignment_tokens"],
        "num_blocks": memory["num_blocks"],
        "kv_tokens": memory["gpu_kv_cache_size_tokens"],
        "max_concurrency": memory["max_concurrency"],
        "log_line": memory["log_line"],
        "longest_request": memory["auto_fit_max_model_len"],
    }


def grouped(groups, names):
    """Groups, or those of a recording, by the same names; layers without a number there stay out."""
    kind, layers, block, page, pages, window, chunk, blocks = names
    return [
        {
            "kind": group[kind],
            "layers": sorted(number for number in group[layers] if number >= 0),
            "count": group["count"],
            "block_size": group[block],
            "page_bytes": group[page],
            "layer_page_bytes": sorted(map(list, group[pages])),
            "window": group[window] if group[kind] == "sliding_window" else None,
            "chunk": group[chunk] if group[kind] == "chunked_local_attention" else None,
            "blocks": group[blocks],
        }
        for group in groups
    ]


COMMON = ("kind", "layers", "block_size")
OURS = (*COMMON, "page_bytes", "layer_page_bytes", "window", "chunk", "blocks_per_request")
THEIRS = (
    *COMMON,
    "group_page_bytes",
    "layer_page_bytes",
    "window",
    "chunk",
    "blocks_per_request_at_max_model_len",
)


def differences(name):
    """(variant, what differs) of a file."""
    with gzip.open(goldens("fit") / name, "rt", encoding="utf-8") as file:
        case = json.load(file)
    model, wrong = model_of(case["hf_config"], case["model"]), []
    for variant in case["variants"]:
        about = {key: value for key, value in variant.items() if isinstance(value, str | int | None)}
        if "error" in variant:
            with pytest.raises(KvsimError):
                told(model, variant, case["gpu"], 40)
            continue
        for memory in variant["memory"]:
            ours = told(model, variant, case["gpu"], memory["available_gib"])
            theirs = recorded(variant, memory)
            wrong += [(about, key, ours[key], theirs[key]) for key in theirs if ours[key] != theirs[key]]
            if (ours["refused"] is not None) != ("error" in memory):
                wrong.append((about, "refused", ours["refused"], memory.get("error")))
            groups, expected = grouped(ours["groups"], OURS), grouped(variant["groups"], THEIRS)
            if any(number < 0 for group in variant["groups"] for number in group["layers"]):
                for group in groups:  # a model whose layers the recording could not number
                    group["layers"] = []
            if groups != expected:
                wrong.append((about, "groups", groups, expected))
    return wrong


def in_order(groups, stages):
    """Layers of each group in each stage, group after group, where the recording does not say."""
    left = [len(group.layers) for group in groups]
    for room in stages:
        counts = []
        for at, count in enumerate(left):
            counts.append(min(count, room - sum(counts)))
            left[at] -= counts[-1]
        yield counts


def pipeline_differences(name):
    """The same of two pipeline stages, cut as the recording cut them, with unequal memories."""
    with gzip.open(goldens("fit") / name, "rt", encoding="utf-8") as file:
        case = json.load(file)
    model, wrong = model_of(case["hf_config"], case["model"]), []
    for variant in case["variants"]:
        two = variant.get("pp2")
        if two is None:
            continue
        answer = fitted(model, gpu_named(GPUS[case["gpu"]]), asked(variant, kv_memory=40))
        stages, place_of = [], [0] * len(answer.groups)
        for counts in two.get("stage_group_layers") or in_order(answer.groups, two["stage_layers"]):
            stages.append([])
            for at, (group, count) in enumerate(zip(answer.groups, counts, strict=True)):
                part = slice(place_of[at], place_of[at] + count)
                stages[-1].append(Group(group.layers[part], group.pages[part]))
                place_of[at] += count
        memories = [gib * 2**30 for gib in two["available_gib"]]
        found = pipeline_capacity(answer.groups, stages, memories, answer.request)
        if "error" in two:
            wrong += [] if found.refusal else [(name, "not refused")]
            continue
        ours = (min(two["num_blocks"]), two["gpu_kv_cache_size_tokens"], two["max_concurrency"], None)
        theirs = (found.num_blocks, found.kv_tokens, found.max_concurrency, found.refusal)
        wrong += [] if ours == theirs else [(name, ours, theirs)]
    return wrong


NAMES = [
    name if at % 3 == 0 else pytest.param(name, marks=pytest.mark.slow) for at, name in enumerate(names())
]
"""All of them; without the slow ones, every third."""


@pytest.mark.parametrize("name", NAMES)
def test_two_pipeline_stages_have_the_blocks_of_the_smaller(name):
    assert pipeline_differences(name) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_grouped_paged_sized_and_refused_as_in_vllm(name):
    assert differences(name) == []


def test_the_recordings_hold_models_of_every_kind():
    goldens("fit")
    assert len(names()) >= 30
