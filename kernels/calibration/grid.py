"""The measured points: grids for all parts, skewed batches, held-out points, whole layers.

Held-out points are chosen by rule before anything is measured: midpoints (in log space) of every sixth cell,
and sizes of well-known models that are on no axis.

Most contexts are half a tile short of a power of two, since an engine's contexts end anywhere in a tile of
64. 511 and 512 lie on either side of the length at which the kernel begins to split contexts; 64 and 65, 128
and 129 tokens do so for the tiles of products. The largest contexts fill as much memory as an engine could,
with a model of 32 KiB per token.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import sqrt

from kvsim.kernels.calibration.device import Device
from kvsim.kernels.calibration.form import LEAST_HEADS
from kvsim.kernels.calibration.points import BYTES, MAIN, PREFIX_OFFSET, SKEW, Point, routing
from kvsim.kernels.calibration.sizes import FULL, QUICK, TOY, Sizes

LEAST_BYTES_OF_A_TOKEN = 32 * 1024
"""KV bytes per token of a small model with few KV heads, over all layers; bounds a batch's contexts."""

MOST_WEIGHTS = 5 * 2**28
"""Maximum inputs x outputs of one matrix, 2.7 GB. No model that fits the GPU has a larger one."""

MOST_EXPERTS_BYTES = 2**32
"""Maximum of the experts of a layer on one GPU."""
MOST_TOKENS = 16_384
"""Tokens that experts compute at once: the largest products' number."""

HELD_OUT_EVERY = 6

WITH_FP8 = (8, 9)
"""The first compute capability that computes with 8-bit floating point."""


def points(device: Device, quick: bool) -> list[Point]:
    """All points to measure on a device, part by part.

    Whole layers come early, since their products read memory that later parts write into.
    """
    sizes = TOY if device.rehearsal else QUICK if quick else FULL
    narrow = device.capability >= WITH_FP8
    made = [
        *ceilings(device), *launch(), *composed(sizes, device),
        *decode(sizes, device), *latents(sizes, device), *prefill(sizes),
        *products("product", sizes), *(products("product_fp8", sizes) if narrow else ()),
        *products("lm_head", sizes),
        *experts("experts", sizes), *(experts("experts_fp8", sizes) if narrow else ()),
        *sampling(sizes), *elementwise(sizes), *kv_write(sizes), *block_copy(sizes), *host_copies(sizes),
        *all_reduce(sizes, device.count),
    ]  # fmt: skip
    unique: dict[str, Point] = {}
    for point in made:
        unique.setdefault(point.key, point)
    return list(unique.values())


def between(low: int, high: int) -> int:
    """The midpoint in log space."""
    return max(low, round(sqrt(low * high)))


def held_out_cells(*axes: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """The midpoints of every HELD_OUT_EVERY-th cell of a grid."""
    cells = list(product(*(range(len(axis) - 1) for axis in axes)))
    for number, cell in enumerate(cells):
        if (number + sum(cell)) % HELD_OUT_EVERY == 0:
            yield tuple(between(axis[i], axis[i + 1]) for axis, i in zip(axes, cell, strict=True))


def ceilings(device: Device) -> list[Point]:
    """Peak rates of memory and matrix units: copy, read, a large product."""
    size, side = (2**16, 64) if device.rehearsal else (2**31, 8192)
    return [
        Point("ceilings", {"what": "copy", "bytes": 2 * size}),
        Point("ceilings", {"what": "read", "bytes": size}),
        Point("ceilings", {"what": "product", "side": side, "flops": 2 * side**3}),
    ]


def launch() -> list[Point]:
    """The cost of launching kernels, and of splitting contexts."""
    return [Point("launch", {"what": what}) for what in ("eager", "graph", "replay", "cut")]


def decode(sizes: Sizes, device: Device) -> list[Point]:
    """Sequences x KV heads by context; skewed batches; block sizes, groups, head sizes, 8-bit keys."""
    base = {"group": sizes.group, "head_dim": sizes.head_dim, "element_bytes": 2, "block_size": 16}

    def batch(programs: int, context: int, skew: str = "even", **other: int) -> dict:
        kv_heads = other.get("kv_heads", min(sizes.kv_heads, programs))
        return base | {
            "batch": max(1, programs // kv_heads), "context": context, "skew": skew, "kv_heads": kv_heads,
        } | other  # fmt: skip

    found = []
    for programs, context in product(sizes.decode_programs, sizes.decode_contexts):
        cell = {"sequence_heads": programs, "context_tokens": context}
        found.append(Point("decode", batch(programs, context), "grid", MAIN, cell))
    for programs, context, skew in sizes.decode_skewed:
        found.append(Point("decode", batch(programs, context, skew), "shape"))
    head_dims = sizes.decode_factors.get("head_dim", ())
    for head_dim, (programs, context) in product(head_dims, sizes.decode_skewed_heads):
        x = batch(programs, context, "one_long", head_dim=head_dim)
        found.append(Point("decode", x, "shape" if head_dim == sizes.head_dim else "held_out"))
    for axis, values in sizes.decode_factors.items():
        if axis == "element_bytes" and device.capability < WITH_FP8:
            continue
        others = [value for value in values if value != base[axis]]
        for value, (programs, context) in product(others, sizes.decode_factor_bases):
            x = batch(programs, context, **{axis: value})
            found.append(Point("decode", x, "grid", axis, {axis: value}))
    for programs, context in held_out_cells(sizes.decode_programs, sizes.decode_contexts):
        whole = max(programs // sizes.kv_heads, 1) * sizes.kv_heads  # whole sequences
        found.append(Point("decode", batch(whole, context), "held_out"))
    for programs, context, skew, other in sizes.decode_held_out:
        found.append(Point("decode", batch(programs, context, skew, **other), "held_out"))
    return fitting(found, device)


def fitting(found: Iterable[Point], device: Device) -> list[Point]:
    """The decode attention points whose contexts fit in memory."""
    most_tokens = int(0.9 * device.memory_bytes / LEAST_BYTES_OF_A_TOKEN)
    return [point for point in found if point.x["batch"] * point.x["context"] <= most_tokens]


def latents(sizes: Sizes, device: Device) -> list[Point]:
    """Query heads by sequences by context, over latents; skewed batches; block sizes, 8-bit latents."""
    latent, rope = sizes.latent_size
    base = {"latent": latent, "rope": rope, "element_bytes": 2, "block_size": 64}

    def batch(heads: int, sequences: int, context: int, skew: str = "even", **other: int) -> dict:
        return base | {"batch": sequences, "context": context, "skew": skew, "heads": heads} | other

    found = []
    for heads, sequences, context in product(*sizes.latent):
        cell = {"heads": max(heads, LEAST_HEADS), "sequences": sequences, "context_tokens": context}
        found.append(Point("latent", batch(heads, sequences, context), "grid", MAIN, cell))
    found += [Point("latent", batch(*some), "shape") for some in sizes.latent_skewed]
    for axis, values in sizes.latent_factors.items():
        if axis == "element_bytes" and device.capability < WITH_FP8:
            continue
        others = [value for value in values if value != base[axis]]
        for value, some in product(others, sizes.latent_factor_bases):
            found.append(Point("latent", batch(*some, **{axis: value}), "grid", axis, {axis: value}))
    found += [Point("latent", batch(*some), "held_out") for some in sizes.latent_held_out]
    return fitting(found, device)


def prefill(sizes: Sizes) -> list[Point]:
    """New tokens by cached prefix; several chunks at once; block sizes, groups, head sizes."""
    base = {
        "kv_heads": sizes.kv_heads, "group": sizes.group, "head_dim": sizes.head_dim, "element_bytes": 2,
        "block_size": 16,
    }  # fmt: skip

    def chunks(sequences: int, chunk: int, prefix: int, **other: int) -> dict:
        return base | {"sequences": sequences, "chunk": chunk, "prefix": prefix} | other

    found = []
    for tokens, prefix in product(sizes.prefill_tokens, sizes.prefill_prefixes):
        cell = {"tokens": tokens, "prefix_tokens": prefix}
        found.append(Point("prefill", chunks(1, tokens, prefix), "grid", MAIN, cell))
    found += [Point("prefill", chunks(*some), "shape") for some in sizes.prefill_chunks]
    for axis, values in sizes.prefill_factors.items():
        for value in (value for value in values if value != base[axis]):
            x = chunks(1, *sizes.prefill_factor_base, **{axis: value})
            found.append(Point("prefill", x, "grid", axis, {axis: value}))
    moved = [prefix + PREFIX_OFFSET for prefix in sizes.prefill_prefixes]
    for tokens, prefix in held_out_cells(sizes.prefill_tokens, moved):
        found.append(Point("prefill", chunks(1, tokens, prefix - PREFIX_OFFSET), "held_out"))
    found += [Point("prefill", chunks(*some), "held_out") for some in sizes.prefill_held_out]
    return found


def products(part: str, sizes: Sizes) -> list[Point]:
    """Matrix products of a layer, or of the output matrix."""
    axes = getattr(sizes, part)
    found = []
    for tokens, inputs, outputs in product(*axes):
        if inputs * outputs > MOST_WEIGHTS:
            continue
        x = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
        found.append(Point(part, x, "grid", MAIN, x))
    for tokens, inputs, outputs in getattr(sizes, f"{part}_held_out"):
        x = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
        found.append(Point(part, x, "held_out"))
    return found


def experts(part: str, sizes: Sizes) -> list[Point]:
    """Experts by matrices by rows of each, chosen evenly and by a power law; experts spread over GPUs."""
    size, found = 1 if part == "experts_fp8" else 2, []
    for skew, (count, top_k), (hidden, inner), rows in product((0, SKEW), *getattr(sizes, part)):
        tokens = rows * count / top_k
        if not 1 <= tokens <= MOST_TOKENS or 3 * size * count * hidden * inner > MOST_EXPERTS_BYTES:
            continue
        cell = {"local": count, "matrix": hidden * inner, "skew": skew, "rows": rows}
        x = routing(round(tokens), hidden, inner, count, top_k, skew=skew)
        found.append(Point(part, x, "grid", MAIN, cell))
    for tokens, hidden, inner, count, top_k, local in sizes.expert_bases:
        spread = routing(2 * tokens, hidden, inner, 4 * count, 2 * top_k, local=local)  # as many rows
        found.append(Point(part, spread, "grid", "shared", {"shared": 1}))
    held_out = (routing(*some, local=local, skew=skew) for skew, *some, local in sizes.expert_held_out)
    return found + [Point(part, x, "held_out") for x in held_out]


def _by_bytes(
    part: str, values: Iterable[int], held_out: Iterable[int], x: Callable[[int], dict], moved: Callable
) -> list[Point]:
    grid = [Point(part, x(value), "grid", MAIN, {"bytes": moved(x(value))}) for value in values]
    return grid + [Point(part, x(value), "held_out") for value in held_out]


def sampling(sizes: Sizes) -> list[Point]:
    """Rows of logits."""
    rows, held_out, vocabulary, other = sizes.sampling
    found = _by_bytes(
        "sampling", rows, (), lambda n: {"rows": n, "vocabulary": vocabulary}, BYTES["sampling"]
    )
    return found + [Point("sampling", {"rows": n, "vocabulary": other}, "held_out") for n in held_out]


def elementwise(sizes: Sizes) -> list[Point]:
    """Norm, rotary embedding and activation; they have (almost) the same bytes and share a cell."""
    found = []
    for tokens in sizes.elementwise:
        cell = {"bytes": 8 * tokens * sizes.hidden}
        for op, width in (("norm", sizes.hidden), ("rotary", 2 * sizes.hidden), ("activation", sizes.width)):
            x = {"op": op, "tokens": tokens, "width": width}
            found.append(Point("elementwise", x, "grid", MAIN, cell))
    for op, tokens, width in sizes.elementwise_held_out:
        found.append(Point("elementwise", {"op": op, "tokens": tokens, "width": width}, "held_out"))
    return found


def kv_write(sizes: Sizes) -> list[Point]:
    """Writes of tokens into their slots."""
    values, held_out = sizes.kv_write
    shape = {"kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim, "element_bytes": 2}
    return _by_bytes("kv_write", values, held_out, lambda n: {"tokens": n} | shape, BYTES["kv_write"])


def block_copy(sizes: Sizes) -> list[Point]:
    """Block copies within the pool; gathering and scattering are held out, too."""
    values, held_out = sizes.block_copy
    shape = {"op": "copy", "block_size": 16, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
    found = _by_bytes("block_copy", values, held_out, lambda n: {"blocks": n} | shape, BYTES["block_copy"])
    moves = [{"blocks": values[-2]} | shape | {"op": op} for op in ("gather", "scatter")]
    return found + [Point("block_copy", x, "held_out") for x in moves]


def host_copies(sizes: Sizes) -> list[Point]:
    """Series of copies between the GPU and pinned memory."""
    values, held_out = sizes.host_copy
    return [
        point
        for part in ("to_host", "to_gpu")
        for point in _by_bytes(part, values, held_out, lambda n: {"bytes": n}, lambda x: x["bytes"])
    ]


def all_reduce(sizes: Sizes, count: int) -> list[Point]:
    """All-reduces over 2, 4, 8 GPUs, up to the number present."""
    values, held_out = sizes.all_reduce
    found = []
    for gpus in (2**power for power in range(1, count.bit_length())):
        for moved in values:
            x = {"gpus": gpus, "bytes": moved}
            found.append(Point("all_reduce", x, "grid", MAIN, x))
        found += [Point("all_reduce", {"gpus": gpus, "bytes": moved}, "held_out") for moved in held_out]
    return found


def composed(sizes: Sizes, device: Device) -> list[Point]:
    """Whole layers of several geometries with several batches, and the head after the last layer."""
    layers = [
        {"what": "layer"} | geometry | batch
        for geometry, batch in product(sizes.geometries, sizes.batches)
        if geometry["weight_bytes"] == 2 or device.capability >= WITH_FP8
    ]
    heads = [
        {"what": "head", "rows": rows, "hidden": hidden, "vocabulary": sizes.vocabulary}
        for hidden, rows in sizes.heads
    ]
    return [Point("composed", x, "held_out") for x in (*layers, *heads)]
