"""How far the analytic roofline is from public tables of measured kernels, by table and by size.

    python benchmarks/roofline.py [--tables ../shared/data/gpu_tables]

The tables are reference data beside the checkout: attention kernels of vLLM 0.14 on an H100 (ai-dynamo's
aiconfigurator) and the matrix products of a layer on A100 and H100 (microsoft/vidur). One layer is compared
with the roofline's term, including the launch of each kernel and the latency of attention.

Nothing is fitted here. Two constants come from these tables: PREFILL_ATTENTION_EFFICIENCY
(sim/cost/roofline.py) from prompts of at least 4,096 tokens, and an H100's attention latency from decoding at
contexts of at most 64.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvsim.sim.cost.roofline import Roofline
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.models.catalog import gpu_named, model_named

TABLES = Path(__file__).resolve().parents[2] / "shared" / "data" / "gpu_tables"
FILES = {
    "decode": "h100_llama3_8b_vllm_decode_attention.csv",
    "prefill": "h100_llama3_8b_vllm_prefill_attention.csv",
    "linear": "a100_h100_linear_ops_ms_per_layer.csv",
}
MODELS = {"Llama-2-7b": "llama-2-7b", "Meta-Llama-3-8B": "llama-3.1-8b"}
GPUS = {"a100": "a100-80gb", "h100": "h100"}
PRODUCTS = 4
"""Kernels in `linear_ms`: QKV, out, up and gate, down."""

Columns = dict[str, np.ndarray]
Region = tuple[str, Callable[[Columns], np.ndarray]]

REGIONS: dict[str, tuple[Region, ...]] = {
    "decode": (
        ("context >= 1,024", lambda c: c["context"] >= 1024),
        ("  batch x context < 16k", lambda c: (c["context"] >= 1024) & (c["tokens"] < 16_384)),
        ("  16k to 64k", lambda c: (c["context"] >= 1024) & (c["tokens"] >= 16_384) & (c["tokens"] < 65_536)),
        ("  64k and more", lambda c: (c["context"] >= 1024) & (c["tokens"] >= 65_536)),
        ("context < 1,024", lambda c: c["context"] < 1024),
        ("  batch <= 16", lambda c: (c["context"] < 1024) & (c["batch"] <= 16)),
        ("  batch 32 to 256", lambda c: (c["context"] < 1024) & (c["batch"] > 16) & (c["batch"] <= 256)),
        ("  batch 512 and more", lambda c: (c["context"] < 1024) & (c["batch"] > 256)),
    ),
    "prefill": (
        ("prompts >= 4,096", lambda c: c["prompt"] >= 4096),
        ("  1,024 to 4,095", lambda c: (c["prompt"] >= 1024) & (c["prompt"] < 4096)),
        ("  below 1,024", lambda c: c["prompt"] < 1024),
    ),
    "linear": (
        ("all", lambda c: c["tokens"] > 0),
        ("  tokens <= 64", lambda c: c["tokens"] <= 64),
        ("  65 to 512", lambda c: (c["tokens"] > 64) & (c["tokens"] <= 512)),
        ("  more than 512", lambda c: c["tokens"] > 512),
    ),
}


def attention(kv_heads: int) -> Roofline:
    """Llama-3-8B's attention on an H100, with this many KV heads."""
    return Roofline(replace(model_named("llama-3.1-8b"), kv_heads=kv_heads), gpu_named("h100"))


def decode(rows: list[dict[str, str]]) -> Columns:
    """Decode attention of one layer, in microseconds: measured, and from the roofline."""
    columns = _columns(rows, batch="batch_size", context="kv_len", measured="decode_ms")
    columns["tokens"] = columns["batch"] * columns["context"]
    cost = attention(8)
    shapes = [
        StepShape(decode_seqs=int(b), context_tokens=int(t))
        for b, t in zip(columns["batch"], columns["tokens"], strict=True)
    ]
    columns["roofline"] = np.array([_attention_us(cost, "decode", shape) for shape in shapes])
    return columns


def prefill(rows: list[dict[str, str]]) -> Columns:
    """Attention of whole prompts in one layer."""
    columns = _columns(
        rows, batch="batch_size", prompt="isl", kv_heads="num_key_value_heads", measured="latency"
    )
    costs = {kv_heads: attention(int(kv_heads)) for kv_heads in set(columns["kv_heads"].tolist())}
    columns["roofline"] = np.array(
        [
            _attention_us(costs[k], "prefill", StepShape(int(b * p), int(b * p * (p + 1) // 2), int(b)))
            for b, p, k in zip(columns["batch"], columns["prompt"], columns["kv_heads"], strict=True)
        ]
    )
    return columns


def linear(rows: list[dict[str, str]]) -> Columns:
    """The matrix products of one layer, on the built-in GPUs."""
    known = [row for row in rows if row["device"] in GPUS and row["model"] in MODELS]
    columns = _columns(known, tokens="num_tokens", measured="linear_ms")
    columns["device"] = np.array([f"{row['device']} {row['model']}" for row in known])
    found = []
    for row in known:
        model, gpu = model_named(MODELS[row["model"]]), gpu_named(GPUS[row["device"]])
        part = Roofline(model, gpu).parts_ps(StepShape(prefill_tokens=int(row["num_tokens"])))["layers"]
        found.append(part / model.layers / 1e6 + PRODUCTS * gpu.kernel_overhead_s * 1e6)
    columns["roofline"] = np.array(found)
    return columns


def _attention_us(cost: Roofline, part: str, shape: StepShape) -> float:
    """One layer's share of a part, plus the minimum time of its kernel."""
    model, gpu = model_named("llama-3.1-8b"), gpu_named("h100")
    least_s = gpu.kernel_overhead_s + gpu.attention_latency_s
    return cost.parts_ps(shape)[part] / model.layers / 1e6 + least_s * 1e6


def _columns(rows: list[dict[str, str]], measured: str, **names: str) -> Columns:
    columns = {name: np.array([int(row[key]) for row in rows]) for name, key in names.items()}
    return {**columns, "measured": np.array([float(row[measured]) * 1e3 for row in rows])}


def errors(name: str, tables: Path = TABLES) -> Columns:
    """A table with a column of relative errors, negative if the roofline is too fast."""
    with (tables / FILES[name]).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = {"decode": decode, "prefill": prefill, "linear": linear}[name](rows)
    return {**columns, "error": columns["roofline"] / columns["measured"] - 1}


def regions(name: str, columns: Columns) -> Iterator[tuple[str, np.ndarray]]:
    """The errors of each region of a table."""
    for words, chosen in REGIONS[name]:
        yield words, columns["error"][chosen(columns)]
    for device in sorted(set(columns.get("device", np.array([])).tolist())):
        yield f"  {device}", columns["error"][columns["device"] == device]


def main() -> None:
    """Print the errors of every table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=Path, default=TABLES)
    tables = parser.parse_args().tables
    for name, file in FILES.items():
        print(f"\n{name}: {file}\n{'':30}{'points':>7}{'median':>9}{'p90':>9}{'bias':>9}{'worst':>9}")
        for words, error in regions(name, errors(name, tables)):
            size = 100 * np.abs(error)
            worst = 100 * error[size.argmax()]
            numbers = (np.median(size), np.quantile(size, 0.9), 100 * np.median(error), worst)
            print(f"{words:30}{len(error):7}" + "".join(f"{number:8.1f}%" for number in numbers))


if __name__ == "__main__":
    main()
