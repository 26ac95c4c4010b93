"""Timed points of one model's layers on the RTX 4090, measured by LLMServingSim's profiler.

    casys-kaist/LLMServingSim 5daddb2 (MIT), vLLM 0.19, Llama-3.1-8B in bf16, FlashAttention 2

Layers were measured one at a time over the number of tokens: four products, output matrix, sampler, norm,
gate and rotary embedding; attention of even batches and of one chunk after a prefix. Other shapes and
precisions were not measured, so other models follow the form, as every result states. Attention that reads
faster than the datasheet allows is refused.
"""

from collections.abc import Iterator
from math import log2
from pathlib import Path

import pandas as pd
from tables import Gpu, drawn

from kvsim.kernels.calibration.fit import Bounds, Measured
from kvsim.kernels.calibration.points import BYTES, MAIN, Point

SOURCE = "casys-kaist/LLMServingSim 5daddb2"
LICENCE = "MIT, Copyright (c) 2024 CASYS Lab, KAIST; see NOTICE"
ENGINE = {
    "product": "vLLM 0.19.0: torch",
    "decode": "vLLM 0.19.0: vllm_flash_attn_fa2",
    "prefill": "vLLM 0.19.0: vllm_flash_attn_fa2",
}
GPU = Gpu("RTX4090", "rtx-4090", 24, 128, (8, 9), 72, 1008, {2: 165.2}, None, 32)
MODEL = "meta-llama/Llama-3.1-8B/bf16/tp1"
HIDDEN, VOCABULARY = 4096, 128_256
PRODUCTS = {
    "qkv_proj": (HIDDEN, 6144),
    "o_proj": (4096, HIDDEN),
    "gate_up_proj": (HIDDEN, 28_672),
    "down_proj": (14_336, HIDDEN),
}
"""Layer -> inputs and outputs."""
SMALL = {"layernorm": ("norm", HIDDEN), "act_fn": ("activation", 14_336), "rotary_emb": ("rotary", 5120)}
"""Layer -> its kind and width."""
ATTENTION = {"kv_heads": 8, "group": 4, "head_dim": 128, "element_bytes": 2, "block_size": 16}
PARTS = ("product", "lm_head", "sampling", "elementwise", "decode", "prefill")
HEADS = ("32", "64", "128", "256")

Cell = dict[str, float]


def wanted(folder: Path) -> Iterator[tuple[str, list[Measured], Bounds, dict]]:
    """(part, its points, bounds, constants) for everything that was measured."""
    tiles = {"token_tile": 128, "output_tile": 128, "whole_waves": 0.4}
    fits = {"multiprocessors": GPU.multiprocessors}
    read, computed = GPU.gb_per_s * 1e9, GPU.tflops[2] * 1e12
    constants = {
        "product": tiles | fits,
        "lm_head": tiles | fits,
        "decode": fits
        | {
            "programs": 4 * GPU.multiprocessors,
            "least_piece_tokens": 256,
            "tile_tokens": dict.fromkeys(HEADS, 64),
            "l2_bytes": 1e6 * GPU.l2_mb,
        },
        "prefill": fits | {"rows": dict.fromkeys(HEADS, 128), "key_tile": dict.fromkeys(HEADS, 128)},
    }
    bounds = {"product": Bounds(read, computed), "decode": Bounds(read), "prefill": Bounds(read, computed)}
    bounds["lm_head"] = bounds["product"]
    for part in PARTS:
        points = [_measured(part, *row) for row in _rows(part, folder / "layer_times" / GPU.table / MODEL)]
        yield part, points, bounds.get(part, Bounds()), constants.get(part, {})


def _measured(part: str, x: dict, microseconds: float, cell: Cell) -> Measured:
    role = "held_out" if drawn(part, *x.values()) else "grid"
    seconds = microseconds / 1e6
    return Measured(Point(part, x | {"new_shape": False}, role, MAIN, cell), seconds, seconds, seconds, 1)


def _rows(part: str, folder: Path) -> Iterator[tuple[dict, float, Cell]]:
    """(launch, its microseconds, its cell)."""
    if part in {"decode", "prefill"}:
        yield from _attention(part, pd.read_csv(folder / "attention.csv.gz"))
    elif part in {"lm_head", "sampling"}:
        name = {"lm_head": "lm_head", "sampling": "sampler"}[part]
        table = pd.read_csv(folder / "per_sequence.csv")
        for row in table[table.layer == name].itertuples():
            if part == "lm_head":
                x = {"tokens": row.sequences, "inputs": HIDDEN, "outputs": VOCABULARY}
                yield x, row.time_us, dict(x)
            else:
                x = {"rows": row.sequences, "vocabulary": VOCABULARY}
                yield x, row.time_us, {"bytes": BYTES["sampling"](x)}
    else:
        for row in pd.read_csv(folder / "dense.csv.gz").itertuples():
            if part == "product" and row.layer in PRODUCTS:
                inputs, outputs = PRODUCTS[row.layer]
                x = {"tokens": row.tokens, "inputs": inputs, "outputs": outputs}
                yield x, row.time_us, dict(x)
            elif part == "elementwise" and row.layer in SMALL:
                what, width = SMALL[row.layer]
                x = {"op": what, "tokens": row.tokens, "width": width}
                yield x, row.time_us, {"bytes": 2 ** round(log2(BYTES["elementwise"](x)))}


def _attention(part: str, table: pd.DataFrame) -> Iterator[tuple[dict, float, Cell]]:
    """Decode-only batches, or a single chunk; mixed steps are not used."""
    for row in table.itertuples():
        if part == "decode" and not row.prefill_chunk and row.kv_decode:
            read = row.n_decode * row.kv_decode * 2 * 8 * 128 * 2
            if read / (row.time_us / 1e6) <= GPU.gb_per_s * 1e9:
                cell = {"sequence_heads": 8 * row.n_decode, "context_tokens": row.kv_decode}
                yield ATTENTION | {"batch": row.n_decode, "context": row.kv_decode}, row.time_us, cell
        if part == "prefill" and row.prefill_chunk and not row.n_decode:
            x = ATTENTION | {"sequences": 1, "chunk": row.prefill_chunk, "prefix": row.kv_prefill}
            yield x, row.time_us, {"tokens": row.prefill_chunk, "prefix_tokens": row.kv_prefill}
