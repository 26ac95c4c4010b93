"""Turn a journal into a profile: select the points, fit every part, predict the composed steps."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from kvsim.kernels.calibration.device import Device
from kvsim.kernels.calibration.drift import drift_of
from kvsim.kernels.calibration.fit import Bounds, Measured, described, error_of, fit_part
from kvsim.kernels.calibration.form import predict_s
from kvsim.kernels.calibration.journal import Journal
from kvsim.kernels.calibration.plan import Plan
from kvsim.kernels.calibration.points import EXPERTS, PRODUCTS, Point, Sample, components, features, useful
from kvsim.kernels.calibration.profile import FORMAT
from kvsim.kernels.calibration.soundness import expect_complete, faults_of
from kvsim.kernels.calibration.timing import Datasheet, refusal

IN_8_BITS = {"weight_bytes": 1, "input_bytes": 4}
"""Bytes of a weight, and of an activation, which is read in 16 bits, written in 8 and read."""
NO_PARTS = ("ceilings", "launch", "composed")
OVER_CEILING = 1.1
"""How many times faster than the measured peak a product may be: libraries are fastest at other sizes."""
PREFILL_WAVES = 0.5
"""Share of the idle time in the last wave that prompts take. This value has the smallest error against list
scheduling of their programs, which differ in length (tests/support/synthetic_gpu.py); an H200 agrees."""
PRODUCT_TILES = {"output_tile": 128, "whole_waves": 0.4}
"""How libraries tile a product, which is undocumented; the fit chooses the rows of a tile. Among columns of
64, 128 and 256 and shares of 0 to 1, these have about the smallest error over 13 token counts in public
tables of H100 and A100 (benchmarks/products.py)."""


def installed_version() -> str:
    """kvsim's version; "a checkout" if it is not installed, as on a bare GPU machine."""
    try:
        return version("kvsim")
    except PackageNotFoundError:
        return "a checkout"


def profile_of(planned: Plan, journal: Journal, name: str | None = None) -> dict[str, Any]:
    """Build the profile from a journal's measurements; raises IncompleteError if a part is missing."""
    from kvsim.kernels import launch  # imports triton

    device, sheet = planned.device, planned.sheet
    measured, left = sifted(planned, journal)
    lacking = expect_complete(planned, journal, left)
    parts = {}
    for part in dict.fromkeys(point.part for point in planned.points):
        if part in NO_PARTS or part in lacking:
            continue
        some = [one for one in measured if one.point.part == part]
        found = fit_part(
            [point for point in planned.points if point.part == part], some, constants_of(part, device),
            bounds_of(part, sheet),
        )  # fmt: skip
        if found is not None:
            parts[part] = found
    gpu = sheet.gpu if sheet else None
    known = {name: value for name, value in journal.head["device"].items()}
    profile = {
        "format": FORMAT,
        "kind": planned.kind,
        "name": name or ("rehearsal" if device.rehearsal else gpu or device.name.lower().replace(" ", "-")),
        "gpu": gpu,
        "device": {
            name: known[name] for name in ("name", "memory_bytes", "capability", "multiprocessors", "count")
        },
        "measured": {
            "date": journal.head["date"],
            **{name: known[name] for name in ("driver", "cuda", "cublas", "torch", "triton", "python")},
            "kvsim": installed_version(),
            "plan": journal.head["plan"],
            "tilings": launch.tilings(),
            "seconds": journal.seconds,
            "quick": planned.quick,
            "clocks": [dict(one) for one in journal.clocks],
            "sentinels": [dict(one) for one in journal.sentinels],
            "drift": drift_of(journal.sentinels),
        },
        "limits": {
            "bandwidth_bytes_per_s": sheet.gb_per_s * 1e9 if sheet else None,
            "flops_per_s": sheet.tflops * 1e12 if sheet else None,
        },
        "ceilings": ceilings_of(measured),
        "launch": {
            f"{one.point.x['what']}_s": one.median_s for one in measured if one.point.part == "launch"
        },
        "parts": parts,
        "composed": composed_of(parts, [one for one in measured if one.point.part == "composed"]),
        "refused": left,
    }
    profile["measured"]["faults"] = faults_of(profile)
    return profile


def sifted(planned: Plan, journal: Journal) -> tuple[list[Measured], list[dict[str, Any]]]:
    """The accepted measurements, and the refused or failed ones with reasons."""
    kept, left, most = [], [], most_tflops(planned, journal)
    for point in planned.points:
        sample = journal.samples[point.key]
        one = None if sample.failure else Measured.of(point, sample)
        reason = sample.failure or refused(planned, point, sample, most)
        if one is not None and reason is None:
            kept.append(one)
            continue
        about = {"part": point.part, "x": dict(point.x), "median_s": one and one.median_s}
        left.append(about | {"reason": reason, "fits": sample.fits})
    return kept, left


def refused(planned: Plan, point: Point, sample: Sample, most: float | None) -> str | None:
    """Why a point's measurement cannot be right; None if it can, or nothing was measured.

    `most`: an upper bound in TFLOP/s, below the datasheet's.
    """
    seconds = sample.seconds
    return refusal(planned.sheet, median(seconds), *useful(point), most) if seconds else None


def most_tflops(planned: Plan, journal: Journal) -> float | None:
    """An upper bound in TFLOP/s from the measured peak; None in a rehearsal or without one.

    Anything faster multiplied other numbers than the peak did: zeros and NaN draw less power, so clocks are
    higher.
    """
    ceiling = next(point for point in planned.points if point.x.get("what") == "product")
    sample = journal.samples.get(ceiling.key)
    if planned.device.rehearsal or sample is None or not sample.seconds:
        return None
    return OVER_CEILING * float(ceiling.x["flops"]) / median(sample.seconds) / 1e12


def constants_of(part: str, device: Device) -> dict[str, Any]:
    """The constants that form.py needs for a part's work: how its kernels are launched on this device."""
    from kvsim.kernels.experts import LEAST_TILE, MOST_TILE
    from kvsim.kernels.launch import (
        DECODE,
        LEAST_SHARE_TOKENS,
        Gpu,
        latent_tiling,
        prefill_tiling,
    )

    heads, gpu = (32, 64, 128, 256), Gpu(device.capability, device.multiprocessors)
    if part == "decode":
        return {
            "shares": {str(head): DECODE[head, 2].at_once(gpu) for head in heads},
            "least_piece_tokens": LEAST_SHARE_TOKENS,
            "tile_tokens": {str(head): DECODE[head, 2].tile for head in heads},
        }
    if part == "latent":
        sizes = {str(size): latent_tiling(size, 64, gpu) for size in (1, 2)}
        return {
            "rows": {size: tiling.rows for size, tiling in sizes.items()},
            "shares": {size: tiling.at_once(gpu) for size, tiling in sizes.items()},
            "least_piece_tokens": LEAST_SHARE_TOKENS,
            "tile_tokens": {size: tiling.tile for size, tiling in sizes.items()},
        }
    if part == "prefill":
        tilings = {head: prefill_tiling(head, 2, gpu) for head in heads}
        return {
            "multiprocessors": device.multiprocessors,
            "whole_waves": PREFILL_WAVES,
            "rows": {str(head): tiling.rows for head, tiling in tilings.items()},
            "key_tile": {str(head): tiling.tile for head, tiling in tilings.items()},
        }
    if part in PRODUCTS:
        sizes = IN_8_BITS if part == "product_fp8" else {}
        return {**PRODUCT_TILES, **sizes, "multiprocessors": device.multiprocessors}
    if part in EXPERTS:
        return {
            "matrices": 3,
            "weight_bytes": 1 if part == "experts_fp8" else 2,
            "least_tile": LEAST_TILE,
            "most_tile": MOST_TILE,
            "axes": ["local", "matrix", "skew", "rows", "shared"],
        }
    return {}


def bounds_of(part: str, sheet: Datasheet | None) -> Bounds:
    """Upper bounds of the rates in a part's form."""
    if sheet is None or part in {"to_host", "to_gpu", "all_reduce"}:
        return Bounds()
    rate = sheet.tflops * 1e12 if part in {"prefill", *PRODUCTS, *EXPERTS} else None
    if rate and part in {"product_fp8", "experts_fp8"}:
        rate *= 2
    return Bounds(sheet.gb_per_s * 1e9, rate)


def ceilings_of(measured: list[Measured]) -> dict[str, float | None]:
    """The highest bytes and flops per second that the device reached."""
    found = {one.point.x["what"]: one for one in measured if one.point.part == "ceilings"}

    def rate(what: str, work: str) -> float | None:
        return found[what].point.x[work] / found[what].median_s if what in found else None

    return {
        "copy_bytes_per_s": rate("copy", "bytes"),
        "read_bytes_per_s": rate("read", "bytes"),
        "matrix_flops_per_s": rate("product", "flops"),
    }


def composed_of(parts: Mapping[str, Any], measured: list[Measured]) -> dict[str, Any]:
    """Measured and predicted composed steps, without those that use a part that could not be fitted."""
    rows = []
    for one in measured:
        consists_of: dict[str, float] = {}
        needed = components(one.point.x)
        if any(point.part not in parts for point, _ in needed):
            continue
        for point, count in needed:
            part = parts[point.part]
            seconds = count * predict_s(part, *features(point, part["constants"]))
            consists_of[point.part] = consists_of.get(point.part, 0.0) + seconds
        rows.append(described(one) | {"predicted_s": sum(consists_of.values()), "consists_of": consists_of})
    return {"points": rows, "error": error_of(rows)}
