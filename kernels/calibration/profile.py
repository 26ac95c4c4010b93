"""The profile that a calibration writes: one JSON file per GPU, for any model and tensor parallelism.

A step of an engine is a sum of parts. The time of one launch of a part (or of the launches that make it up):

    seconds = (t0_s + merged * merge_s + pnorm(bytes / bandwidth_bytes_per_s, work / work_per_s))
              * product of its tables

with bytes and work computed by form.py from tokens, heads and matrix sizes, never from a model's name.
Everything is per GPU: with tensor parallelism, use the heads and columns of one GPU.

    format      1
    kind        "calibrated", or "rehearsal": made on a CPU or by hand, no measurement
    name        of the profile
    gpu         name in sim/models/gpus.toml, or null if the device is not listed there
    device      {name, memory_bytes, capability [major, minor], multiprocessors, count (of such GPUs)}
    measured    {date (ISO 8601, UTC), driver, cuda, cublas, torch, triton, python, kvsim, seconds, quick,
                 plan (digest of points, kernels and how they are launched), tilings (of the kernels),
                 clocks [{when, clocks.sm, power.limit, mig.mode.current, slowed_by, ...: nvidia-smi's report
                         on the card under load, as text}],
                 sentinels [{when, decode [seconds], product [seconds]}]: the same two launches each time
                 drift {decode, product}: slowest median over fastest, minus 1
                 faults [text]: reasons to distrust it (soundness.py)}; unknown values are null
    limits      {bandwidth_bytes_per_s, flops_per_s} by datasheet, or null: faster points are refused
    ceilings    {copy_bytes_per_s (read + written), read_bytes_per_s, matrix_flops_per_s}, each measured
    launch      {eager_s   host time of one launch outside of graphs: a step takes at least launches * eager_s
                 graph_s   one empty kernel in a CUDA graph; included in every t0_s, for information only
                 replay_s  host time of starting one CUDA graph, not waiting for it; once per step
                 cut_s     cutting the contexts of decode attention (kernels/pieces.py), once per step for
                           all its layers; with windowed and other layers, once for each kind. Absent from
                           earlier profiles, and if kernels do not cut contexts together}
    parts       {name: part}, see below
    composed    {points [point], error}: whole layers with real block tables and mixed lengths, measured, and
                summed from the parts; never fitted. A point also has consists_of {part: predicted seconds}
    refused     [{part, x, median_s, reason, fits}]: points that failed (without median_s; fits false: too
                large for the device), or were faster than the device can be; never fitted

A part:

    form        {t0_s, bandwidth_bytes_per_s, work_per_s or null (no work term), p: 1, 1.5, 2 or 3}
                and merge_s, for kernels that merge pieces of contexts. Earlier profiles have other p, too
    constants   numbers that form.py needs to compute the work (tile sizes, pieces): see there
    base        the values of the axes of one-dimensional tables at which the main table was measured: ratio 1
    tables      [{axes [{name, offset, values}], ratio}]: nested lists, first axis outermost, measured / form.
                Between values the ratio is interpolated linearly in log2(value + offset), along all axes
                together; outside, the value at the edge applies. The ratios of all tables multiply
    range       {axis: [least, most]} that was measured: outside is extrapolation
    points      [point]: {x {argument: number or text}, role, median_s, p10_s, p90_s, launches,
                samples_s (every turn: seconds of one launch), and values derived from x and the fit: place
                {axis: number}, bytes, work, predicted_s}
                role "grid": a cell of a table. "shape": only helps to fit the form (skewed batches).
                "held_out": chosen before anything was measured, enters no fit and no table
    unmeasured  [x]: cells that did not fit in memory (or were refused): they have their neighbour's ratio
    error       {fitted, held_out}: {points, mean, median, worst} of |predicted / measured - 1|, or null

Parts and their axes (values are numbers, mostly whole):

    decode       sequence_heads (sequences x KV heads), context_tokens (mean of the sequences), block_size
                 (tokens), group (query heads per KV head), head_dim, element_bytes (of a key)
    latent       heads (query heads, at least 16), sequences, context_tokens, width (numbers of a row: latent
                 and position), block_size, element_bytes; absent from quick profiles
    prefill      tokens (of all chunks), prefix_tokens (mean tokens cached before each), block_size,
                 group, head_dim
    product      tokens, inputs, outputs: [tokens, inputs] times weights [inputs, outputs], 16-bit
    product_fp8  the same with weights of 8 bits (e4m3, one scale), the conversion of inputs from 16 bits
                 included; absent from earlier profiles, and if the GPU does not compute with 8 bits
    experts      local (experts on this GPU), matrix (hidden * inner), rows (tokens * top_k / all experts),
                 skew (exponent of their popularity's power law), shared (1 if other GPUs have further ones):
                 kernels/experts.py; of one GPU's part, if every GPU has a part of each expert. Absent from
                 earlier profiles
    experts_fp8  the same with weights of 8 bits, the conversion of the tokens included
    lm_head      the same as product, for the output matrix: tokens is rows that need logits
    sampling     bytes: rows * vocabulary * 2
    elementwise  bytes, of one launch: norm with residual 8 * tokens * hidden;
                 rotary 4 * tokens * (heads + kv_heads) * head_dim; activation 6 * tokens * intermediate
    kv_write     bytes, as in kernels/write.py without the slots:
                 2 * tokens * kv_heads * head_dim * (2 + element_bytes)
    block_copy   bytes, read and written, of all copies in one layer:
                 4 * copied tokens * kv_heads * head_dim * element_bytes;
                 gathering into a staging buffer and scattering from it move as much per token
    to_host      bytes of one copy, among many in a row, from the GPU to pinned memory of the host
    to_gpu       the other way. By block: 2 * layers * blocks copies, each of block_size * kv_heads *
                 head_dim * element_bytes. Batched: one copy of everything, and a block_copy in each layer
    all_reduce   gpus, bytes (of one GPU's input); absent if there was only one GPU

The sum for a step of n tokens (prefill and decode), m rows with logits, with CUDA graphs:

    replay_s + cut_s
             + layers * (2 norms + product(n, qkv) + rotary + kv_write + decode + prefill + product(n, out)
                         + product(n, gate and up) + activation + product(n, down)
                         + 2 all_reduce(n * hidden * 2))
             + norm + lm_head(m) + sampling(m) + layers * block_copy + swaps

with experts, a product(n, router), their choice and experts instead of the last two products and the
activation; and without graphs at least `launches * eager_s`. A part without work costs nothing. In models
with latents (MLA) `latent` takes the place of decode.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
DIGITS = 6
WIDTH = 118


def write_profile(profile: Mapping[str, Any], path: Path, journal: Path | None = None) -> None:
    """Write a profile atomically, then remove its journal.

    Raises OSError if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text_of(profile) + "\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if journal is not None:
        journal.unlink(missing_ok=True)


def text_of(value: Any, indent: int = 0) -> str:  # noqa: ANN401
    """JSON with as much per line as fits, and numbers to DIGITS digits."""
    short = json.dumps(rounded(value), allow_nan=False)
    if not isinstance(value, Mapping | list) or indent + len(short) <= WIDTH:
        return short
    space = " " * (indent + 1)
    if isinstance(value, Mapping):
        rows = [f"{json.dumps(name)}: {text_of(one, indent + 1)}" for name, one in value.items()]
        return "{\n" + ",\n".join(space + row for row in rows) + "\n" + " " * indent + "}"
    rows = [text_of(one, indent + 1) for one in value]
    return "[\n" + ",\n".join(space + row for row in rows) + "\n" + " " * indent + "]"


def rounded(value: Any) -> Any:  # noqa: ANN401
    """The value with floats rounded to DIGITS significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
