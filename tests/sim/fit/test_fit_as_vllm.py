"""Every recorded model: groups, pages, blocks, printed tokens, concurrency and refusals are vLLM 0.33.0's."""

import gzip
import json
import os
from pathlib import Path

import pytest
from support.shared_data import shared

from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.blocks import KvSettings, paged
from kvsim.sim.fit.capacity import GIB, capacity_of, request_blocks
from kvsim.sim.fit.pages import Request, groups_of
from kvsim.sim.huggingface import model_of

pytestmark = pytest.mark.golden
CAPABILITY = {"H100": 90, "A100": 80}


def folder():
    given = os.environ.get("KVSIM_GOLDENS")
    return (Path(given) if given else shared("goldens")) / "fit"


def names():
    """Every file of a model; none where the reference data is not here."""
    given = os.environ.get("KVSIM_GOLDENS")
    place = (Path(given) if given else Path(__file__).resolve().parents[4] / "shared/goldens") / "fit"
    files = sorted(place.glob("*.json.gz"))
    return [file.name for file in files if not file.name.startswith(("_", "defaults"))]


def told(model, variant, gpu, memory):
    """Our answer to a recorded variant; None where we refuse it."""
    extra = variant.get("extra_args") or {}
    settings = KvSettings(
        tensor_parallel_size=variant["tensor_parallel_size"],
        kv_cache_dtype=variant["kv_cache_dtype"],
        block_size=variant["asked_block_size"],
        prefix_caching=variant["asked_prefix_caching"],
        max_model_len=variant.get("max_model_len"),
        disable_hybrid=extra.get("disable_hybrid_kv_cache_manager", False),
        compute_capability=CAPABILITY[gpu],
    )
    try:
        layers = paged(model, settings)
        groups = groups_of(layers.layers, settings.disable_hybrid)
    except KvsimError as refused:
        return {"error": str(refused)}
    if "error" in variant:
        return {"error": None}
    request = Request(
        variant["max_model_len"],
        variant["max_in_flight_tokens"],
        variant["scheduler"]["max_num_encoder_input_tokens"],
    )
    found = {
        "block_size": layers.block_size,
        "groups": [
            {
                "count": len(group.layers),
                "kind": group.kind,
                "block_size": group.page.block_size,
                "page_bytes": sorted({page.bytes for page in group.pages}),
                "window": group.page.window if group.kind == "sliding_window" else None,
                "chunk": group.page.chunk if group.kind == "chunked_local_attention" else None,
                "blocks": request_blocks([group], request),
            }
            for group in groups
        ],
        "memory": [],
    }
    for each in memory:
        capacity = capacity_of(groups, int(each["available_gib"] * GIB), request)
        found["memory"].append(
            {
                "gib": each["available_gib"],
                "num_blocks": capacity.num_blocks,
                "tokens": capacity.kv_tokens,
                "concurrency": capacity.max_concurrency,
                "longest": capacity.longest,
                "refused": capacity.refusal is not None,
            }
        )
        found["bytes_per_block"] = capacity.bytes_per_block
    return found


def recorded(variant):
    return {
        "block_size": variant["cache_config"]["block_size"],
        "groups": [
            {
                "count": group["count"],
                "kind": group["kind"],
                "block_size": group["block_size"],
                "page_bytes": sorted({page for page, _ in group["layer_page_bytes"]}),
                "window": group["window"] if group["kind"] == "sliding_window" else None,
                "chunk": group["chunk"] if group["kind"] == "chunked_local_attention" else None,
                "blocks": group["blocks_per_request_at_max_model_len"],
            }
            for group in variant["groups"]
        ],
        "memory": [
            {
                "gib": each["available_gib"],
                "num_blocks": each["num_blocks"],
                "tokens": each["gpu_kv_cache_size_tokens"],
                "concurrency": each["max_concurrency"],
                "longest": each["auto_fit_max_model_len"],
                "refused": "error" in each,
            }
            for each in variant["memory"]
        ],
        "bytes_per_block": variant["bytes_per_block"],
    }


def differences(name):
    """(variant, what differs) of a file."""
    with gzip.open(folder() / name, "rt", encoding="utf-8") as file:
        case = json.load(file)
    model, wrong = model_of(case["hf_config"], case["model"]), []
    for variant in case["variants"]:
        about = {key: value for key, value in variant.items() if isinstance(value, str | int | None)}
        ours = told(model, variant, case["gpu"], variant.get("memory", ()))
        if "error" in variant:
            if not ours["error"]:
                wrong.append((about, "not refused"))
            continue
        theirs = recorded(variant)
        wrong += [(about, key, ours.get(key), theirs[key]) for key in theirs if ours.get(key) != theirs[key]]
        if "error" in ours:
            wrong.append((about, ours))
    return wrong


@pytest.mark.parametrize("name", names())
def test_a_model_is_grouped_paged_sized_and_refused_as_in_vllm(name):
    assert differences(name) == []


def test_the_recordings_hold_models_of_every_kind():
    shared("goldens")
    assert len(names()) >= 30
