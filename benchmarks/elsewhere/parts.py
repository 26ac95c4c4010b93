"""Turn rows of the public tables into timed points: products, attention, experts, all-reduce.

Each generator yields a `Timed` for every row of a GPU. A row whose values are all on the axes of its part's
table is a grid cell. All other rows are held out, as are rows and whole shapes drawn by name.
"""

from collections.abc import Iterator, Sequence
from math import log2
from pathlib import Path
from statistics import median

from tables import RESIDENT_MATRICES, Gpu, Timed, drawn, rows

PRODUCT_BYTES = {
    "bfloat16": (2.0, 2.0),
    "fp8": (1.0, 1.0),
    "nvfp4": (0.5625, 0.5625),
}
"""Bytes of a weight and of an input number, by the tables' name; 4-bit types have an 8-bit scale per 16.

`fp8_block` is left out: its rows take at least 58 us on an H100, 170 us on a B200 and 300 us on an L40S,
several times the 16-bit product of the same shape. That is launch overhead on the host, not the GPU.
"""

PRODUCT_AXES: dict[str, tuple[int, ...]] = {
    "tokens": (
        *(1, 4, 8, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 192, 193, 256, 257, 512, 513, 768, 1024, 1281),
        *(2048, 3072, 4096, 8192, 16_384, 32_768),
    ),
    "inputs": (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 7168, 8192, 12_288, 16_384, 65_536),
    "outputs": (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 7168, 8192, 12_288, 16_384, 65_536),
}

GROUPS = (1, 2, 4, 8, 16)
HEAD_DIMS = (64, 128, 256)
SEQUENCE_HEADS = tuple(2**power for power in range(15))
CONTEXTS = tuple(2**power for power in range(1, 18))

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PREFILL_TOKENS = (*(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536),)
EXPERT_BYTES = {
    "bfloat16": (2.0, 2),
    "fp8": (1.0, 1),
    "fp8_block": (1.0, 1),
    "int4_wo": (0.5625, 2),
    "nvfp4": (0.5625, 0.5625),
    "w4a16_mxfp4": (0.53125, 2),
    "w4a8_mxfp4_mxfp8": (0.53125, 1),
}
"""Bytes of an expert's weight and of an input number; the latter determines the peak rate."""
EXPERT_KERNELS = {"w4a16_mxfp4": "gptoss"}
"""Where the tables have two kernels for the same weights, the one that is used to serve the model.

On Hopper and Blackwell the other one, Marlin, was timed with another model's experts; with both mixed,
gpt-oss's experts on one H100 were up to 2.5 times as slow as in their own rows.
"""


SINKS_FROM = 2048
"""Prompt length from which the slowdown of Triton's attention hardly grows any more."""


def on(axes: dict[str, Sequence[int]], cell: dict[str, float]) -> dict[str, float] | None:
    """The cell, if all its values are on the axes."""
    return cell if all(value in axes[name] for name, value in cell.items()) else None


def products(tables: Path, gpu: Gpu, dtype: str) -> Iterator[Timed]:
    """[tokens, inputs] times [inputs, outputs]."""
    weight, _ = PRODUCT_BYTES[dtype]
    for row in rows(tables, "gemm", gpu, gemm_dtype=dtype):
        tokens, outputs, inputs = (int(row[name]) for name in "mnk")
        x = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
        read = weight * inputs * outputs
        yield Timed(
            x=x,
            cell=on(PRODUCT_AXES, x),
            seconds=row["latency_ms"] / 1e3,
            read_bytes=read,
            replayed_bytes=RESIDENT_MATRICES * read,
            flops=2.0 * tokens * inputs * outputs,
            held_out=drawn(dtype, tokens, inputs, outputs),
            new_shape=not (inputs in PRODUCT_AXES["inputs"] and outputs in PRODUCT_AXES["outputs"]),
        )


def decode(tables: Path, gpu: Gpu, dtype: str) -> Iterator[Timed]:
    """One new token per sequence, in full-attention layers."""
    element = {"bfloat16": 2, "fp8": 1}[dtype]
    axes = {
        "head_dim": HEAD_DIMS, "group": GROUPS, "sequence_heads": SEQUENCE_HEADS,
        "context_tokens": CONTEXTS,
    }  # fmt: skip
    for row in rows(tables, "generation_attention", gpu, kv_cache_dtype=dtype, window_size=0):
        batch, kv_heads, head_dim = (int(row[n]) for n in ("batch_size", "num_key_value_heads", "head_dim"))
        if head_dim not in HEAD_DIMS:
            continue
        context, group = int(row["step"]) + 1, int(row["num_heads"]) // kv_heads
        x = {
            "batch": batch, "context": context, "kv_heads": kv_heads, "group": group, "head_dim": head_dim,
            "element_bytes": element, "block_size": 64,
        }  # fmt: skip
        cell = {"head_dim": head_dim, "group": group, "sequence_heads": batch * kv_heads}
        read = 2.0 * batch * context * kv_heads * head_dim * element
        yield Timed(
            x=x,
            cell=on(axes, cell | {"context_tokens": context}),
            seconds=row["latency_ms"] / 1e3,
            read_bytes=read,
            replayed_bytes=read,
            flops=0.0,
            held_out=drawn(dtype, *x.values()),
            new_shape=drawn(dtype, kv_heads, group, head_dim),
        )


def prefill(tables: Path, gpu: Gpu, dtype: str) -> Iterator[Timed]:
    """Whole prompts; no row has a cached prefix."""
    element = {"bfloat16": 2, "fp8": 1}[dtype]
    axes = {
        "head_dim": HEAD_DIMS, "group": GROUPS, "tokens": PREFILL_TOKENS, "sequences": SEQUENCES,
    }  # fmt: skip
    for row in rows(tables, "context_attention", gpu, kv_cache_dtype=dtype, window_size=0):
        batch, kv_heads, head_dim = (int(row[n]) for n in ("batch_size", "num_key_value_heads", "head_dim"))
        if head_dim not in HEAD_DIMS:
            continue
        chunk, group = int(row["isl"]), int(row["num_heads"]) // kv_heads
        x = {
            "sequences": batch, "chunk": chunk, "prefix": 0, "kv_heads": kv_heads, "group": group,
            "head_dim": head_dim, "element_bytes": element, "block_size": 64,
        }  # fmt: skip
        cell = {"head_dim": head_dim, "group": group, "tokens": batch * chunk, "sequences": batch}
        yield Timed(
            x=x,
            cell=on(axes, cell),
            seconds=row["latency_ms"] / 1e3,
            read_bytes=0.0,
            replayed_bytes=0.0,
            flops=4.0 * batch * kv_heads * group * head_dim * chunk * (chunk + 1) / 2,
            held_out=drawn(dtype, *x.values()),
            new_shape=drawn(dtype, kv_heads, group, head_dim),
        )


def sinks(tables: Path, gpu: Gpu) -> float:
    """Time of prompts in Triton's attention, which has sinks, over that in FlashAttention 2.

    The median over the prompts of at least SINKS_FROM tokens in full-attention layers that were timed with
    both: only heads of 192 numbers, and for Triton only with an fp8 cache.
    """
    timed: dict[str, dict[tuple, float]] = {}
    for row in rows(tables, "context_attention", gpu, head_dim=192, window_size=0):
        if int(row["isl"]) >= SINKS_FROM:
            kernel = "triton" if "triton" in str(row["kernel_source"]) else "flash"
            names = "batch_size", "isl", "num_heads", "num_key_value_heads"
            place = tuple(int(row[name]) for name in names)
            timed.setdefault(kernel, {})[place] = row["latency_ms"]
    both = timed["triton"].keys() & timed["flash"].keys()
    return round(median(timed["triton"][place] / timed["flash"][place] for place in both), 2)


def all_reduce(tables: Path, gpu: Gpu) -> Iterator[Timed]:
    """All-reduces by vLLM's own kernel in a CUDA graph, up to its largest size, then by NCCL."""
    for row in rows(tables, "all_reduce_custom", gpu, kernel_source="vLLM_custom_graph"):
        x = {"gpus": int(row["num_gpus"]), "bytes": 2 * int(row["message_size"])}
        yield Timed(x, x, row["latency_ms"] / 1e3, 0.0, 0.0, 0.0, drawn("all-reduce", *x.values()), False)


def snapped(value: float) -> float:
    """The nearest power of two."""
    return 2.0 ** round(log2(value))


def experts(tables: Path, gpu: Gpu, dtype: str) -> Iterator[Timed]:
    """The experts of a layer on one GPU: both products, routed evenly or by a power law of 1.2.

    Each row belongs to the nearest cell by rows per expert, local number of experts and matrix. Experts that
    are distributed over GPUs have separate cells.
    """
    for row in rows(tables, "moe", gpu, moe_dtype=dtype):
        if EXPERT_KERNELS.get(dtype, "") not in str(row["kernel_source"]):
            continue
        tokens, hidden, top_k, count = (
            int(row[name]) for name in ("num_tokens", "hidden_size", "topk", "num_experts")
        )
        inner, local = int(row["inter_size"]) // int(row["moe_tp_size"]), count // int(row["moe_ep_size"])
        if not inner or not local:
            continue
        skew = {"balanced": 0.0, "power_law_1.2": 1.2}[str(row["distribution"])]
        x = {
            "tokens": tokens, "hidden": hidden, "inner": inner, "top_k": top_k, "experts": count,
            "local": local, "skew": skew, "rows": tokens * top_k / count, "matrix": hidden * inner,
            "shared": float(local < count),
        }  # fmt: skip
        cell = {"skew": skew, "shared": x["shared"]}
        cell |= {name: snapped(x[name]) for name in ("local", "matrix", "rows")}
        yield Timed(
            x=x,
            cell=cell,
            seconds=row["latency_ms"] / 1e3,
            read_bytes=0.0,
            replayed_bytes=0.0,
            flops=6.0 * tokens * top_k * local / count * hidden * inner if skew == 0 else 0.0,
            held_out=drawn(dtype, *x.values()),
            new_shape=drawn(dtype, hidden, top_k, count),
        )
