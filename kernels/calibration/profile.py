"""The profile that a calibration writes: one JSON file a GPU, good for any model and tensor parallelism.

A step of an engine is a sum of parts. The time of one launch of a part (or of the launches that make it up):

    seconds = (t0_s + merged * merge_s + pnorm(bytes / bandwidth_bytes_per_s, work / work_per_s))
              * product of its tables

with bytes and work as form.py computes them from tokens, heads and matrix sizes: never from a model's name.
Everything is per GPU: with tensor parallelism give the heads and columns that one GPU has.

    format      1
    kind        "calibrated", or "rehearsal": made on a CPU or by hand, no measurement
    name        of the profile
    gpu         name in sim/models/gpus.toml, or null where the device is none of them
    device      {name, memory_bytes, capability [major, minor], multiprocessors, count (of such GPUs)}
    measured    {date (ISO 8601, UTC), driver, cuda, cublas, torch, triton, python, kvsim, seconds, quick,
                 plan (digest of points, kernels and how they are launched), tilings (of the kernels),
                 clocks [{when, clocks.sm, power.limit, mig.mode.current, slowed_by, ...: what nvidia-smi says
                         of the card under load, as text}],
                 sentinels [{when, decode [seconds], product [seconds]}]: the same two launches each time
                 drift {decode, product}: slowest median over fastest, minus 1
                 faults [text]: what speaks against it (soundness.py)}; what is unknown is null
    limits      {bandwidth_bytes_per_s, flops_per_s} by datasheet, or null: what is faster is refused
    ceilings    {copy_bytes_per_s (read + written), read_bytes_per_s, matrix_flops_per_s}, each measured
    launch      {eager_s   host time of one launch outside of graphs: a step takes at least launches * eager_s
                 graph_s   one empty kernel in a CUDA graph; contained in every t0_s, to be read, not added
                 replay_s  host time of starting one CUDA graph, not waiting for it; once a step
                 cut_s     sharing out the contexts of decode attention (kernels/pieces.py), once a step for
                           all its layers: with windowed and other layers, once for each of both. Absent from
                           earlier profiles, and where kernels do not share out}
    parts       {name: part}, see below
    composed    {points [point], error}: whole layers with real block tables and mixed lengths, measured, and
                summed from the parts; never fitted. A point has also consists_of {part: predicted seconds}
    refused     [{part, x, median_s, reason, fits}]: what failed (without median_s; fits false: it was too
                large for the device), or was faster than the device can be; never fitted

A part:

    form        {t0_s, bandwidth_bytes_per_s, work_per_s or null (no work term), p: 1, 1.5, 2 or 3}
                and merge_s, of kernels that merge pieces of contexts. Earlier profiles have other p, too
    constants   numbers that form.py needs to compute the work (tile sizes, pieces): see there
    base        the values of the axes of one-dimensional tables at which the main table was measured: ratio 1
    tables      [{axes [{name, offset, values}], ratio}]: nested lists, first axis outermost, measured / form.
                A place between the values is found on log2(value + offset), and the ratio is linear there,
                in all axes at once; outside, the value of the edge holds. The ratios of all tables multiply
    range       {axis: [least, most]} that was measured: outside is extrapolation
    points      [point]: {x {argument: number or text}, role, median_s, p10_s, p90_s, launches,
                samples_s (every turn: seconds of one launch), and what follows from x and the fit: place
                {axis: number}, bytes, work, predicted_s}
                role "grid": it is a cell of a table. "shape": helps to fit the form only (skewed batches).
                "held_out": chosen before anything was measured, enters no fit and no table
    unmeasured  [x]: cells that did not fit the memory (or were refused): they have their neighbour's ratio
    error       {fitted, held_out}: {points, mean, median, worst} of |predicted / measured - 1|, or null

Parts and their axes (values are numbers, mostly whole):

    decode       sequence_heads (sequences x KV heads), context_tokens (mean of the sequences), block_size
                 (tokens), group (query heads a KV head), head_dim, element_bytes (of a key)
    latent       heads (query heads, 16 at least), sequences, context_tokens, width (numbers of a row: latent
                 and position), block_size, element_bytes; absent from quick profiles
    prefill      tokens (of all chunks), prefix_tokens (mean of what is cached before each), block_size,
                 group, head_dim
    product      tokens, inputs, outputs: [tokens, inputs] times weights [inputs, outputs], 16-bit
    lm_head      the same, for the output matrix: tokens is rows that need logits
    sampling     bytes: rows * vocabulary * 2
    elementwise  bytes, of one launch: norm with residual 8 * tokens * hidden;
                 rotary 4 * tokens * (heads + kv_heads) * head_dim; activation 6 * tokens * intermediate
    kv_write     bytes, as in kernels/write.py without the slots:
                 2 * tokens * kv_heads * head_dim * (2 + element_bytes)
    block_copy   bytes, read and written, of all copies in one layer:
                 4 * copied tokens * kv_heads * head_dim * element_bytes;
                 gathering into a staging buffer and scattering from it move as much a token
    to_host      bytes of one copy out of many in a row from the GPU to pinned memory of the host
    to_gpu       the other way. By block: 2 * layers * blocks copies, each of block_size * kv_heads *
                 head_dim * element_bytes. Batched: one copy of everything, and a block_copy in each layer
    all_reduce   gpus, bytes (of one GPU's input); absent where there was only one GPU

How they make a step of n tokens (prompts and decoding), m rows with logits, on CUDA graphs:

    replay_s + cut_s
             + layers * (2 norms + product(n, qkv) + rotary + kv_write + decode + prefill + product(n, out)
                         + product(n, gate and up) + activation + product(n, down)
                         + 2 all_reduce(n * hidden * 2))
             + norm + lm_head(m) + sampling(m) + layers * block_copy + swaps

and without graphs at least `launches * eager_s`. A part that has nothing to do costs nothing. In models with
latents (MLA) `latent` takes the place of decode.
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
    """Write a profile, whole or not at all; then remove the journal that it was made from.

    Raises OSError where the file cannot be written.
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
    """JSON with as much on a line as fits, and numbers to DIGITS digits."""
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
    """The same with floats to DIGITS significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
