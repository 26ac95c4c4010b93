"""Groups, pages and blocks are those of the genuine vLLM 0.33.0, for any mixture of layers."""

import gzip
import json

import pytest
from support.shared_data import goldens

from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.capacity import capacity_of
from kvsim.sim.kv.groups import groups_of
from kvsim.sim.kv.pages import Page, Request, request_blocks, scheduler_block_sizes

pytestmark = pytest.mark.golden
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "uint8": 1}
KINDS = {
    "FullAttentionSpec": "full_attention",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "MLAAttentionSpec": "mla_attention",
    "CrossAttentionSpec": "cross_attention",
    "MambaSpec": "mamba",
}


def cases(name):
    with gzip.open(goldens(f"fit/{name}"), "rt", encoding="utf-8") as file:
        return json.load(file)["cases"]


def page_of(spec):
    """A recorded layer spec as our record."""
    kind, block = KINDS[spec["type"]], spec["block_size"]
    if kind == "mamba":
        sizes = [DTYPE_BYTES[each] for each in spec["dtypes"]]
        state = 0
        for shape, size in zip(spec["shapes"], sizes, strict=True):
            count = 1
            for each in shape:
                count *= each
            state += count * size
        return Page(
            kind=kind,
            block_size=block,
            bytes_each=state,
            padded_bytes=spec.get("page_size_padded"),
            shape=(str(spec["shapes"]), str(spec["dtypes"])),
            aligned=spec["mamba_cache_mode"] == "align",
            checkpoints=spec.get("num_prefill_checkpoint_blocks", 0),
        )
    numbers = spec["num_kv_heads"] * (spec["head_size"] + spec["head_size_v"])
    page = Page(
        kind=kind,
        block_size=block,
        bytes_each=numbers * DTYPE_BYTES[spec["dtype"]],
        shape=(spec["num_kv_heads"], spec["head_size"], spec["head_size_v"], spec["dtype"]),
        window=spec.get("sliding_window"),
        chunk=spec.get("attention_chunk_size"),
    )
    assert page.bytes == spec["page_size_bytes"]
    return page


def layers_of(case):
    pages = [page_of(spec) for spec in case["specs"]]
    if "layers" in case:
        numbered = [
            (number, page) for layers, page in zip(case["layers"], pages, strict=True) for number in layers
        ]
        return sorted(numbered, key=lambda layer: layer[0])
    ordered = []
    for count, index in case["layers [count, spec]"]:
        ordered += [pages[index]] * count
    return list(enumerate(ordered))


def told(case):
    """What we say of the case, in the words of the recording."""
    env = case["env"]
    outermost = case.get("kv_cache_layout", "LBNHC").startswith("B")
    try:
        groups = groups_of(layers_of(case), env["disable_hybrid_kv_cache_manager"], outermost)
    except KvsimError:
        return {"error_grouping": True}
    request = Request(env["max_model_len"], env["max_in_flight_tokens"], env["max_num_encoder_input_tokens"])
    found = {
        "groups": [
            {
                "layers": sorted(group.layers),
                "kind": group.kind,
                "block_size": group.page.block_size,
                "page_bytes": sorted({page.bytes for page in group.pages}),
                "blocks_per_request": request_blocks([group], request),
            }
            for group in groups
        ],
        "memory": [],
    }
    for memory in case["memory"]:
        capacity = capacity_of(groups, memory["available_bytes"], request, outermost)
        found["bytes_per_block"] = capacity.bytes_per_block
        found["needed_bytes_one_request"] = capacity.bytes_per_block * capacity.blocks_per_request
        entry = {"available_bytes": memory["available_bytes"], "auto_fit_max_model_len": capacity.longest}
        if capacity.refusal:
            entry["error"] = True
        else:
            entry["num_blocks"] = capacity.num_blocks
            entry["gpu_kv_cache_size_tokens"] = capacity.kv_tokens
            entry["max_concurrency"] = capacity.max_concurrency
        found["memory"].append(entry)
    if "scheduler_block_size" in case:
        sizes = scheduler_block_sizes(groups, env["cache_block_size"], env["enable_prefix_caching"])
        found["scheduler_block_size"], found["hash_block_size"] = sizes
    return found


def recorded(case):
    if "error_grouping" in case:
        return {"error_grouping": True}
    found = {
        "groups": [
            {
                "layers": sorted(group["layers"]),
                "kind": group["kind"],
                "block_size": group["block_size"],
                "page_bytes": sorted(set(group["page_bytes"])),
                "blocks_per_request": group["blocks_per_request"],
            }
            for group in case["groups"]
        ],
        "memory": [
            {key: bool(value) if key == "error" else value for key, value in memory.items()}
            for memory in case["memory"]
        ],
    }
    for key in ("bytes_per_block", "needed_bytes_one_request", "scheduler_block_size", "hash_block_size"):
        if key in case:
            found[key] = case[key]
    return found


@pytest.mark.parametrize("name", ["_random_specs.json.gz", "_spec_level_models.json.gz"])
def test_any_mixture_of_layers_is_grouped_paged_and_sized_as_in_vllm(name):
    wrong = []
    for number, case in enumerate(cases(name)):
        ours, theirs = told(case), recorded(case)
        if ours != theirs:
            wrong.append((number, case.get("family") or case.get("model"), ours, theirs))
    assert wrong == []
