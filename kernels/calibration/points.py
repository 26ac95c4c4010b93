"""A point of a calibration: its launch in plain numbers, the bytes it moves and the work it does.

Points are measured on a GPU (launches.py), or by anything else that turns points into seconds, and predicted
from a profile. This file has the code that both need, without torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp
from random import Random
from typing import Any

from kvsim.kernels.calibration import form
from kvsim.kernels.calibration.timing import launches_wanted

Arguments = Mapping[str, Any]
Features = tuple[float, float, Mapping[str, float]]
"""(bytes, work, place on the axes of the part's tables)."""

GRAPH_FLOPS = 2**44
"""Approximate work of a graph of long launches, 30 ms on an H200, in at least LEAST_LONG launches; caches and
gaps hardly affect these."""
LEAST_LONG = 4

PRODUCTS = ("product", "product_fp8", "lm_head")
"""The parts that are matrix products."""

EXPERTS = ("experts", "experts_fp8")
"""The parts that are routed experts."""

MAIN = "main"
"""The table whose cells the form is fitted to; other tables have one axis each and its name."""

SKEW, MOST_POPULAR = 1.2, 200
"""Exponent of the power law of the experts' popularity, as in the public tables and in `--expert-skew`; the
most that an expert is more popular than another."""

SENTINEL = "sentinel"
"""The role of points that are timed repeatedly (drift.py); they belong to no part."""

PREFIX_OFFSET = 256
"""Added to prefixes before taking the logarithm, so that 0 has one."""


@dataclass(frozen=True)
class Point:
    """Something to measure.

    Attributes
    ----------
    part : str
        A part of the profile; or "ceilings", "launch" or "composed".
    x : Mapping
        The arguments of the launch.
    role : str
        "grid", "shape" or "held_out", as in the profile.
    table : str
        Of a grid point: MAIN, or the axis of a one-dimensional table.
    cell : Mapping
        Of a grid point: the values of that table's axes.
    """

    part: str
    x: Arguments
    role: str = "grid"
    table: str = MAIN
    cell: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The point's key in a journal; equal launches have equal keys."""
        return f"{self.part} {json.dumps(self.x, sort_keys=True)}"


def launches_of(launch_bytes: float, launch_flops: float) -> int:
    """How many launches a graph needs, if each reads this many bytes and computes this many flops."""
    long = max(ceil(GRAPH_FLOPS / max(launch_flops, 1)), LEAST_LONG)
    return min(launches_wanted(launch_bytes), long)


@dataclass(frozen=True)
class Sample:
    """The measurement of a point: seconds per launch for each repeat; none if it failed.

    `fits`: False if it failed because it does not fit the device.
    """

    seconds: tuple[float, ...]
    launches: int
    failure: str | None = None
    fits: bool = True


def lengths_of(x: Arguments) -> list[int]:
    """The contexts of a decode batch: `batch` of them with the mean `context`, distributed by `skew`.

    lognormal   drawn with a long tail; the same every time
    bimodal     a quarter are nine times as long as the others
    one_long    one holds half of all tokens
    """
    batch, mean, skew = x["batch"], x["context"], x.get("skew", "even")
    if skew == "even":
        return [mean] * batch
    if skew == "bimodal":
        short = mean / 3
        lengths = [9 * short if i % 4 == 0 else short for i in range(batch)]
    elif skew == "one_long":
        total = batch * mean
        lengths = [total / 2, *[total / 2 / (batch - 1)] * (batch - 1)]
    elif skew == "lognormal":
        random = Random(batch * mean)
        drawn = [exp(random.gauss(0, 1)) for _ in range(batch)]
        lengths = [mean * batch * one / sum(drawn) for one in drawn]
    else:
        raise ValueError(f"skew must be even, lognormal, bimodal or one_long, got {skew!r}")
    return [max(1, round(length)) for length in lengths]


def features(point: Point, constants: Mapping[str, Any]) -> Features:
    """A point's bytes and work, and its place on the part's axes.

    The constant `axes` names the axes if they differ from profile.py.
    """
    moved, work, place = _features(point, constants)
    if "axes" in constants:
        place = {name: place.get(name, point.x.get(name)) for name in constants["axes"]}
    return moved, work, place


def _features(point: Point, constants: Mapping[str, Any]) -> Features:
    x = point.x
    attention = {"decode": _decode, "latent": _latent, "prefill": _prefill}
    if point.part in attention:
        return attention[point.part](x, constants)
    if point.part in PRODUCTS:
        place = {name: x[name] for name in ("tokens", "inputs", "outputs")}
        return *form.product_features(constants, **place), place
    if point.part in EXPERTS:
        return *form.expert_features(constants, **x), x
    moved = BYTES[point.part](x)
    place = {"bytes": moved}
    if point.part == "all_reduce":
        place["gpus"] = x["gpus"]
        return *form.all_reduce_features(constants, gpus=x["gpus"], size=moved), place
    return moved, 0.0, place


def _decode(x: Arguments, constants: Mapping[str, Any]) -> Features:
    lengths = lengths_of(x)
    geometry = {name: x[name] for name in ("kv_heads", "head_dim", "element_bytes")}
    tile = form.by_head_dim(constants["tile_tokens"], x["head_dim"])
    rounded = sum(-(-length // tile) * tile for length in lengths)
    moved, work, merged = form.decode_features(
        constants,
        sequences=len(lengths),
        total=sum(lengths),
        longest=max(lengths),
        rounded=rounded,
        **geometry,
    )
    place = {"sequence_heads": len(lengths) * x["kv_heads"], "context_tokens": sum(lengths) / len(lengths)}
    place |= {name: x[name] for name in ("block_size", "group", "head_dim", "element_bytes")}
    if "shares" in constants:
        place[form.MERGED] = merged
    return moved, work, place


def _latent(x: Arguments, constants: Mapping[str, Any]) -> Features:
    lengths, width = lengths_of(x), x["latent"] + x["rope"]
    tile = constants["tile_tokens"][str(x["element_bytes"])]
    rounded = sum(-(-length // tile) * tile for length in lengths)
    moved, work, merged = form.latent_features(
        constants, spread=(len(lengths), sum(lengths), max(lengths), rounded), heads=x["heads"], width=width,
        element_bytes=x["element_bytes"],
    )  # fmt: skip
    place = {"sequences": len(lengths), "context_tokens": sum(lengths) / len(lengths), form.MERGED: merged}
    place |= {"heads": max(x["heads"], form.LEAST_HEADS), "width": width}
    return moved, work, place | {name: x[name] for name in ("block_size", "element_bytes")}


def pairs_of(chunk: int, prefix: int) -> int:
    """(query, key) pairs of a chunk under causal attention."""
    return chunk * prefix + chunk * (chunk + 1) // 2


def _prefill(x: Arguments, constants: Mapping[str, Any]) -> Features:
    tokens = x["sequences"] * x["chunk"]
    geometry = {name: x[name] for name in ("kv_heads", "group", "head_dim", "element_bytes")}
    moved, work = form.prefill_features(
        constants, sequences=x["sequences"], tokens=tokens,
        pairs=x["sequences"] * pairs_of(x["chunk"], x["prefix"]), **geometry,
    )  # fmt: skip
    place = {"tokens": tokens, "prefix_tokens": x["prefix"]}
    return moved, work, place | {name: x[name] for name in ("block_size", "group", "head_dim")}


def _elementwise_bytes(x: Arguments) -> int:
    """`width` is hidden, (heads + kv_heads) * head_dim, or intermediate."""
    return {"norm": 8, "rotary": 4, "activation": 6}[x["op"]] * x["tokens"] * x["width"]


BYTES = {
    "sampling": lambda x: 2 * x["rows"] * x["vocabulary"],
    "elementwise": _elementwise_bytes,
    "kv_write": lambda x: 2 * x["tokens"] * x["kv_heads"] * x["head_dim"] * (2 + x["element_bytes"]),
    "block_copy": lambda x: 4 * x["blocks"] * x["block_size"] * x["kv_heads"] * x["head_dim"] * 2,
    "to_host": lambda x: x["bytes"],
    "to_gpu": lambda x: x["bytes"],
    "all_reduce": lambda x: x["bytes"],
}
"""Bytes of the parts that only move data."""


def useful(point: Point) -> tuple[float, float]:
    """(bytes, flops) that a launch needs at least, to detect impossibly fast measurements.

    Flops with 8-bit weights count half: GPUs compute them twice as fast.
    For a composed step only weights, keys and values count: the rest may stay in the L2 cache.
    """
    x, moved, flops = point.x, 0.0, 0.0
    if point.part == "decode":
        moved = 2 * sum(lengths_of(x)) * x["kv_heads"] * x["head_dim"] * x["element_bytes"]
    elif point.part == "latent":
        tokens, width = sum(lengths_of(x)), x["latent"] + x["rope"]
        moved, flops = tokens * width * x["element_bytes"], 2 * tokens * x["heads"] * (width + x["latent"])
    elif point.part == "prefill":
        pairs = x["sequences"] * pairs_of(x["chunk"], x["prefix"])
        flops = 4 * x["kv_heads"] * x["group"] * x["head_dim"] * pairs
    elif point.part in PRODUCTS:
        moved = (1 if point.part == "product_fp8" else 2) * x["inputs"] * x["outputs"]
        flops = moved * x["tokens"]
    elif point.part in EXPERTS:  # a token chooses `share` of this GPU's experts; several may choose the same
        share, weights = x["top_k"] * x["local"] / x["experts"], 3 * x["hidden"] * x["inner"]
        size = 1 if point.part == "experts_fp8" else 2
        moved, flops = size * weights * share, size * weights * share * x["tokens"]
    elif point.part == "ceilings":
        moved, flops = x.get("bytes", 0), x.get("flops", 0)
    elif point.part == "composed":
        heavy = [useful(one) for one, _ in components(x) if one.part not in BYTES]
        moved, flops = (sum(column) for column in zip(*heavy, strict=True))
    elif point.part in {"sampling", "elementwise", "kv_write", "block_copy"}:
        moved = BYTES[point.part](x)
    return moved, flops


def routing(
    tokens: int, hidden: int, inner: int, experts: int, top_k: int, *, local: int = 0, skew: float = SKEW
) -> Arguments:
    """The arguments of routed experts, and their place on the axes; `local`: all of them if 0.

    `skew`: 0 for even choices; else the exponent of the power law from which popularity is drawn.
    """
    return {
        "tokens": tokens, "hidden": hidden, "inner": inner, "top_k": top_k, "experts": experts,
        "local": local or experts, "skew": skew, "rows": tokens * top_k / experts, "matrix": hidden * inner,
        "shared": int(0 < local < experts),
    }  # fmt: skip


def components(x: Arguments) -> Sequence[tuple[Point, int]]:
    """The launches of a composed step, and how often each occurs.

    x: "what" is "layer" or "head". A layer has hidden, intermediate, heads, kv_heads, head_dim, block_size,
    and weight_bytes, 1 or 2 (2 if absent); `experts` of that intermediate size, chosen beforehand, of which a
    token takes `top_k`, or none (0, or absent); a decode batch of `batch` sequences as in `lengths_of`; and
    `sequences` chunks of `chunk` tokens after `prefix`. A head has rows, hidden and vocabulary.
    """
    if x["what"] == "head":
        rows, hidden = x["rows"], x["hidden"]
        return [
            (Point("elementwise", {"op": "norm", "tokens": rows, "width": hidden}), 1),
            (Point("lm_head", {"tokens": rows, "inputs": hidden, "outputs": x["vocabulary"]}), 1),
            (Point("sampling", {"rows": rows, "vocabulary": x["vocabulary"]}), 1),
        ]
    tokens = x["batch"] + x["sequences"] * x["chunk"]
    hidden, width, head_dim = x["hidden"], x["intermediate"], x["head_dim"]
    kv = {"kv_heads": x["kv_heads"], "head_dim": head_dim, "element_bytes": 2}
    attention = kv | {"group": x["heads"] // x["kv_heads"], "block_size": x["block_size"]}
    rotated = (x["heads"] + x["kv_heads"]) * head_dim
    part = "product_fp8" if x.get("weight_bytes") == 1 else "product"

    def product(inputs: int, outputs: int) -> tuple[Point, int]:
        return Point(part, {"tokens": tokens, "inputs": inputs, "outputs": outputs}), 1

    found = [
        (Point("elementwise", {"op": "norm", "tokens": tokens, "width": hidden}), 2),
        product(hidden, (x["heads"] + 2 * x["kv_heads"]) * head_dim),
        (Point("elementwise", {"op": "rotary", "tokens": tokens, "width": rotated}), 1),
        (Point("kv_write", {"tokens": tokens} | kv), 1),
        product(x["heads"] * head_dim, hidden),
    ]
    if experts := x.get("experts"):
        scores = {"tokens": tokens, "inputs": hidden, "outputs": experts}
        routed = routing(tokens, hidden, width, experts, x["top_k"])
        found.append((Point("product", scores), 1))
        found.append((Point("experts_fp8" if part == "product_fp8" else "experts", routed), 1))
    else:
        found += [
            product(hidden, 2 * width),
            (Point("elementwise", {"op": "activation", "tokens": tokens, "width": width}), 1),
            product(width, hidden),
        ]
    if x["batch"]:
        batch = {name: x[name] for name in ("batch", "context", "skew")}
        found.append((Point("decode", attention | batch), 1))
    if x["sequences"]:
        chunks = {name: x[name] for name in ("sequences", "chunk", "prefix")}
        found.append((Point("prefill", attention | chunks), 1))
    return found
