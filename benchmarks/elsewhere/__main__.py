"""Build profiles of GPUs from public tables of kernel times that others measured.

    python benchmarks/elsewhere ../shared/data/kernel_tables [--out sim/profiles] [--gpu h100 ...]

The fit is the one of `sim calibrate` (kernels/calibration/fit.py). Rows of the tables become points
(parts.py), some rows are refused (tables.py), gaps in a table are filled (fill.py), and what the tables lack
comes from another GPU's tables (scaled.py) or from datasheets, marked as such. One GPU has a model's layers
instead of tables (layers.py). `--simpler` tests whether a simpler fit would do (simpler.py). The stated
errors are from a fit without 15 of 100 rows, 15 of 100 shapes (heads, experts) and all rows between the cells
of a table; the shipped fit includes the first two. The same tables give the same files, byte for byte.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

import layers
import parts as tabled
from fill import relaxed
from scaled import TAKEN, scaled
from simpler import compared
from tables import GPUS, Gpu, Sieve, Timed, release

from kvsim.kernels.calibration.fit import Bounds, Measured, error_of, fit_part
from kvsim.kernels.calibration.profile import FORMAT, rounded

SOURCE = "ai-dynamo/aiconfigurator at 095f58a"
LICENCE = "Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES; see NOTICE"
DATE = "2026-11-21"
"""When the tables were taken; for the measurements they state only the engine's release."""

HEADS = (32, 64, 128, 256)
SMALL_KERNEL_S = 2.6e-6
"""Time of a norm, rotary embedding, activation or KV write with almost no work: the smallest of the layer
times that casys-kaist/LLMServingSim 5daddb2 (MIT) measured with vLLM 0.19 on an RTX 4090."""
DATASHEET_SHARE = 0.89
"""Share of the bandwidth for kernels that only move bytes and are in no table, as in the roofline."""
REAL_DATA = {"bfloat16": 1.148, "fp8": 1.148}
"""How much longer products take with real weights than with the tables' weights, which were never set, or all
0.01 (collector/vllm/collect_gemm.py; nvfp4 weights were random): a GPU at its power limit slows down.
Products of zeros run at 295 TFLOP/s, random ones at 257 (A100,
thonking.ai/p/strangely-matrix-multiplications)."""
SINKS_OF = {"a100-80gb": next(gpu for gpu in GPUS if gpu.name == "l40s")}
"""GPU without rows for attention with sinks -> the GPU whose slowdown it takes."""
FILES = {
    "product": "gemm",
    "decode": "generation_attention",
    "prefill": "context_attention",
    "experts": "moe",
    "all_reduce": "all_reduce_custom",
}


def wanted(gpu: Gpu, tables: Path) -> Iterator[tuple[str, str, Iterator[Timed], float, dict]]:
    """(part, its name in the profile, rows, peak, constants) for everything the tables may have on a GPU."""
    multiprocessors = {"multiprocessors": gpu.multiprocessors}
    tiles = {"token_tile": 128, "output_tile": 128, "whole_waves": 0.4}
    for dtype, (weight, given) in tabled.PRODUCT_BYTES.items():
        peak = gpu.tflops.get(given)
        if peak is not None:
            constants = tiles | multiprocessors | {"weight_bytes": weight, "input_bytes": given}
            if dtype in REAL_DATA:
                constants["real_data"] = REAL_DATA[dtype]
            yield "product", named("product", dtype), tabled.products(tables, gpu, dtype), peak, constants
    for dtype in ("bfloat16", "fp8"):
        constants = multiprocessors | {
            "programs": 4 * gpu.multiprocessors,
            "least_piece_tokens": 256,
            "tile_tokens": dict.fromkeys(map(str, HEADS), 64),
            "axes": ["head_dim", "group", "sequence_heads", "context_tokens"],
        }
        if dtype == "bfloat16" and gpu.one_launch:
            constants["l2_bytes"] = 1e6 * gpu.l2_mb
        yield "decode", named("decode", dtype), tabled.decode(tables, gpu, dtype), 1e9, constants
        constants = multiprocessors | {
            "rows": dict.fromkeys(map(str, HEADS), 128),
            "key_tile": dict.fromkeys(map(str, HEADS), 128),
            "axes": ["head_dim", "group", "tokens", "sequences"],
        }
        if gpu.one_launch:
            constants["sinks"] = tabled.sinks(tables, SINKS_OF.get(gpu.name, gpu))
        peak = gpu.tflops.get(1, gpu.tflops[2]) if dtype == "fp8" else gpu.tflops[2]
        yield "prefill", named("prefill", dtype), tabled.prefill(tables, gpu, dtype), peak, constants
    for dtype, (weight, given) in tabled.EXPERT_BYTES.items():
        constants = {
            "matrices": 3,
            "weight_bytes": weight,
            "axes": ["skew", "shared", "local", "matrix", "rows"],
        }
        peak = gpu.tflops.get(given, gpu.tflops[2])
        yield "experts", named("experts", dtype), tabled.experts(tables, gpu, dtype), peak, constants
    yield "all_reduce", "all_reduce", tabled.all_reduce(tables, gpu), 1e9, {}


def named(part: str, dtype: str) -> str:
    """`product` for 16 bits, `product_fp8` and the like for other types."""
    return part if dtype == "bfloat16" else f"{part}_{dtype}"


def profile_of(gpu: Gpu, tables: Path) -> dict[str, object]:
    """The profile of a GPU in the tables."""
    sieve = Sieve(gpu)
    found = parts_of(gpu, tables, sieve)
    other, names = TAKEN.get(gpu.name, (None, ()))
    for there in GPUS:
        if there.name == other:
            theirs = parts_of(there, tables, Sieve(there), names)
            found |= {name: scaled(part, there, gpu) for name, part in theirs.items()}
    refused = [
        {"part": part, "x": {}, "median_s": None, "reason": f"{count:,} rows: {reason}"}
        for part, reasons in sieve.refused.items()
        for reason, count in reasons.items()
    ]
    return whole_profile(gpu, found, (SOURCE, LICENCE), engines(gpu, tables), refused)


def parts_of(
    gpu: Gpu, tables: Path, sieve: Sieve, names: Sequence[str] | None = None
) -> dict[str, dict[str, object]]:
    """The parts that the tables have for a GPU, or the named ones."""
    found = {}
    for name, measured, constants, bounds in sifted(gpu, tables, sieve, names):
        fitted = fit_part([one.point for one in measured], measured, constants, bounds, relaxed)
        if fitted is not None:
            every = [whole_grid(one) for one in measured]
            shipped = fit_part([one.point for one in every], every, constants, bounds, relaxed)
            found[name] = slim(shipped, fitted)
    return found


def sifted(
    gpu: Gpu, tables: Path, sieve: Sieve, names: Sequence[str] | None = None
) -> Iterator[tuple[str, list[Measured], dict, Bounds]]:
    """(name, its points, constants, bounds) of the parts that the tables have for a GPU: all, or some."""
    for part, name, rows, peak, constants in wanted(gpu, tables):
        if names is not None and name not in names:
            continue
        memory = part in {"product", "decode", "prefill", "experts"}
        bounds = Bounds(gpu.gb_per_s * 1e9 if memory else None, peak * 1e12 if peak < 1e9 else None)
        yield name, sieve.kept(part, rows, peak), constants, bounds


def profile_of_layers(tables: Path) -> dict[str, object]:
    """The profile of the GPU on which a model's layers were measured."""
    found = {}
    for part, measured, bounds, constants in layers.wanted(tables):
        fitted = fit_part([one.point for one in measured], measured, constants, bounds, relaxed)
        every = [whole_grid(one) for one in measured]
        shipped = fit_part([one.point for one in every], every, constants, bounds, relaxed)
        found[part] = slim(shipped, fitted)
    return whole_profile(layers.GPU, found, (layers.SOURCE, layers.LICENCE), layers.ENGINE, [])


def whole_profile(
    gpu: Gpu,
    found: dict[str, object],
    origin: tuple[str, str],
    engine: Mapping[str, str],
    refused: list[dict[str, object]],
) -> dict[str, object]:
    """A profile of these parts, with source and licence; missing parts come from the datasheet."""
    bandwidth = DATASHEET_SHARE * gpu.gb_per_s * 1e9
    for name in ("sampling", "elementwise", "kv_write", "block_copy"):
        found.setdefault(name, by_datasheet(bandwidth))
    return {
        "format": FORMAT,
        "kind": "elsewhere",
        "name": f"{gpu.name}-vllm",
        "gpu": gpu.name,
        "source": origin[0],
        "licence": origin[1],
        "engine": engine,
        "device": {
            "name": gpu.table,
            "memory_bytes": gpu.memory_gib * 2**30,
            "capability": list(gpu.capability),
            "multiprocessors": gpu.multiprocessors,
            "count": 8,
            "link_bytes_per_s": gpu.link_gb_per_s and gpu.link_gb_per_s * 1e9,
            "pcie_bytes_per_s": gpu.pcie_gb_per_s * 1e9,
        },
        "measured": {"date": DATE, "driver": None, "torch": None, "triton": None, "quick": False},
        "limits": {"bandwidth_bytes_per_s": gpu.gb_per_s * 1e9, "flops_per_s": gpu.tflops[2] * 1e12},
        "ceilings": {"copy_bytes_per_s": bandwidth, "matrix_flops_per_s": gpu.tflops[2] * 1e12},
        "launch": {"eager_s": 4e-6, "replay_s": 0.0},
        "parts": found,
        "composed": {"points": [], "error": None},
        "refused": refused,
    }


def whole_grid(one: Measured) -> Measured:
    """A held-out point as a grid cell; a point that is not a cell is unchanged."""
    return replace(one, point=replace(one.point, role="grid")) if one.point.cell else one


def slim(part: Mapping[str, object], tried: Mapping[str, object]) -> dict[str, object]:
    """A part without its points, with the errors of the fit without the held-out rows."""
    kept = {key: part[key] for key in ("form", "constants", "base", "tables", "range")}
    apart = [one for one in tried["points"] if one["role"] == "held_out"]
    errors = {
        "fitted": tried["error"]["fitted"],
        "held_out": error_of(one for one in apart if not one["x"]["new_shape"]),
        "new_shapes": error_of(one for one in apart if one["x"]["new_shape"]),
    }
    return kept | {"error": errors, "points": [], "unmeasured": [], "bridged": len(part["unmeasured"])}


def by_datasheet(bandwidth: float) -> dict[str, object]:
    """A part that only moves bytes and is in no table."""
    form = {"t0_s": SMALL_KERNEL_S, "bandwidth_bytes_per_s": bandwidth, "work_per_s": None, "p": 1}
    return {
        "form": form, "constants": {}, "base": {}, "tables": [], "range": {}, "points": [], "unmeasured": [],
        "error": {"fitted": None, "held_out": None}, "measured": False,
    }  # fmt: skip


def engines(gpu: Gpu, tables: Path) -> dict[str, str]:
    """Part -> the release and kernels with which its rows were measured."""
    found = {}
    for part, file in FILES.items():
        rows = pq.read_table(
            tables / f"{file}.parquet",
            columns=["version", "kernel_source"],
            filters=[("gpu", "=", gpu.table)],
        ).to_pylist()
        newest = max(map(release, rows), default=())
        kernels = sorted({str(row["kernel_source"]) for row in rows if release(row) == newest})
        found[part] = f"vLLM {'.'.join(map(str, newest))}: {', '.join(kernels)}"
    return found


def text_of(profile: Mapping[str, object]) -> str:
    """One line per part, ratios to three digits, small enough to ship."""
    lines = []
    for key, value in profile.items():
        if key != "parts":
            lines.append(f"{json.dumps(key)}: {short(rounded(value))}")
            continue
        inner = ",\n".join(f"  {json.dumps(name)}: {short(part_of(part))}" for name, part in value.items())
        lines.append(f'"parts": {{\n{inner}\n }}')
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def part_of(part: Mapping[str, object]) -> dict[str, object]:
    """A part with its ratios to three digits."""
    tables = [{"axes": whole(table["axes"]), "ratio": digits(table["ratio"])} for table in part["tables"]]
    return {**rounded(part), "tables": tables, "range": whole(part["range"])}


def digits(ratio: object) -> object:
    """Nested lists of numbers to three digits."""
    return [digits(row) for row in ratio] if isinstance(ratio, list) else whole(float(f"{ratio:.3g}"))


def whole(value: object) -> object:
    """The same value with whole floats as integers."""
    if isinstance(value, Mapping):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def short(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def main() -> None:
    """Write a profile for every requested GPU; print the errors on the held-out rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, help="directory of the tables, as parquet")
    parser.add_argument("--out", type=Path, default=Path("sim/profiles"), help="directory of the profiles")
    parser.add_argument("--gpu", nargs="*", help="names, as in sim gpus; all")
    parser.add_argument("--simpler", action="store_true", help="only tell what a simpler fit would cost")
    given = parser.parse_args()
    if given.simpler:
        chosen = [gpu for gpu in GPUS if not given.gpu or gpu.name in given.gpu]
        print("\n".join(compared(one for gpu in chosen for one in sifted(gpu, given.tables, Sieve(gpu)))))
        return
    for gpu in (*GPUS, layers.GPU):
        if given.gpu and gpu.name not in given.gpu:
            continue
        by_layers = gpu is layers.GPU
        profile = profile_of_layers(given.tables) if by_layers else profile_of(gpu, given.tables)
        path = given.out / f"{profile['name']}.json"
        path.write_text(text_of(profile), encoding="utf-8")
        print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")
        for one in profile["refused"]:
            print(f"    refused, {one['part']}: {one['reason']}")
        for name, part in profile["parts"].items():
            for kind in ("held_out", "new_shapes"):
                error = part["error"].get(kind)
                if error:
                    words = f"{error['points']:7} {kind.replace('_', ' ')}"
                    print(f"    {name:26}{words:20} median {100 * error['median']:5.1f} %, "
                          f"mean {100 * error['mean']:5.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
