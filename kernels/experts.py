"""The routed experts of a layer: each token through the gated MLPs that it chose, summed by weight.

    row(t, k) = factor[t, k] * down[e] (silu(gate[e] x[t]) * (up[e] x[t]))         e = chosen[t, k]
    out[t]    = sum of its rows; those of experts on other GPUs count as 0

Five launches, as in engines:

    count     per expert: its rows, and each row's number among them
    arrange   tiles of rows, each of one expert; the last tile of an expert may be partly filled
    gated     a tile's rows by its expert's gate and up, and the activation
    down      the activated rows by the same expert's down, times their factors
    add       the rows of each token

    bytes moved at least = bytes of an element * 3 * hidden * inner * experts that are chosen

8-bit floats (e4m3) have one scale for a tensor. Accumulators and factors are in 32 bits, and rows before
they are added in the type of `out`.
"""

import torch
import triton
import triton.language as tl

from kvsim.kernels.checks import HALVES, expect_between, expect_runnable, expect_tensor
from kvsim.kernels.launch import INTERPRETED, Gpu, Launch, gpu_of, next_power_of_2

LEAST_TILE, MOST_TILE = 16, 128
"""Rows of a tile: a matrix instruction has at least 16; more than 128 take too many registers."""
COLUMNS, DEPTH_BYTES = 128, 128
"""Columns of weights that a program multiplies by, gate and up together, and how much of a row at a time."""
CHUNK, STRETCH = 32, 1024
"""Rows that a program arranges; rows that it counts at a time, and elements of a row that it adds."""


@triton.jit
def count_kernel(chosen, numbers, counts, rows, SIZE: tl.constexpr):
    """Count the rows of one expert, and number them."""
    expert, found = tl.program_id(0), 0
    for start in range(0, rows, SIZE):
        row = start + tl.arange(0, SIZE)
        own = (tl.load(chosen + row, mask=row < rows, other=-1) == expert).to(tl.int32)
        tl.store(numbers + row, found + tl.cumsum(own, 0) - 1, mask=own > 0)
        found += tl.sum(own, 0)
    tl.store(counts + expert, found)


@triton.jit
def arrange_kernel(
    chosen,  # [rows]
    numbers,  # [rows]
    counts,  # [experts]
    order,  # [tiles, TILE]: rows
    owners,  # [tiles]: experts, -1 for a tile too many
    filled,  # [tiles]: rows in it
    rows,
    experts,
    tiles,
    TILE: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Place some rows, and tell the experts of as many tiles."""
    expert, at = tl.arange(0, EXPERTS), tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    count = tl.load(counts + expert, mask=expert < experts, other=0)
    needed = (count + TILE - 1) // TILE
    ends = tl.cumsum(needed, 0)
    own = tl.load(chosen + at, mask=at < rows, other=-1)
    here = (own >= 0) & (own < experts)
    number = tl.load(numbers + at, mask=here, other=0)
    first = tl.sum(tl.where(expert[None, :] < own[:, None], needed[None, :], 0), 1)
    tl.store(order + first * TILE + number, at, mask=here)
    before = ends[None, :] <= at[:, None]
    owner = tl.sum(before.to(tl.int32), 1)
    left = tl.sum(tl.where(expert[None, :] == owner[:, None], count[None, :], 0), 1)
    left -= (at - tl.sum(tl.where(before, needed[None, :], 0), 1)) * TILE
    inside = at < tiles
    tl.store(owners + at, tl.where(owner < experts, owner, -1), mask=inside)
    tl.store(filled + at, tl.minimum(left, TILE), mask=inside)


@triton.jit
def added(some, columns, total, UPCAST: tl.constexpr):
    """Rows times columns, added to their total."""
    if UPCAST:
        total += tl.dot(some.to(tl.float32), tl.trans(columns.to(tl.float32)))
    else:
        total = tl.dot(some, tl.trans(columns), total)
    return total


@triton.jit
def expert_kernel(
    x,  # [rows // share, inputs]
    weights,  # [experts, outputs, inputs]; gated: [experts, 2 * outputs, inputs], gates before ups
    factors,  # [rows]; not read if gated
    order,
    owners,
    filled,
    out,  # [rows, outputs]
    inputs,
    outputs,
    share,  # rows of a token
    scale,  # of the sums
    stored,  # scale of `out`
    GATED: tl.constexpr,
    LARGEST: tl.constexpr,  # 0: no saturation
    UPCAST: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Multiply a tile of rows by some columns of its expert's weights."""
    tile = tl.program_id(1)
    expert = tl.load(owners + tile).to(tl.int64)
    if expert < 0:
        return
    at, depth = tl.arange(0, TILE), tl.arange(0, DEPTH)
    kept = at < tl.load(filled + tile)
    row = tl.load(order + tile * TILE + at, mask=kept, other=0)
    source = x + (row // share).to(tl.int64)[:, None] * inputs + depth[None, :]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < outputs
    if GATED:
        weights += expert * 2 * outputs * inputs
    else:
        weights += expert * outputs * inputs
    matrix = weights + column[:, None] * inputs + depth[None, :]
    total = tl.zeros([TILE, COLUMNS], tl.float32)
    upward = tl.zeros([TILE, COLUMNS], tl.float32)
    for done in range(0, inputs, DEPTH):
        left = (depth < inputs - done)[None, :]
        some = tl.load(source + done, mask=kept[:, None] & left, other=0.0)
        wanted = inside[:, None] & left
        total = added(some, tl.load(matrix + done, mask=wanted, other=0.0), total, UPCAST)
        if GATED:
            ups = tl.load(matrix + outputs * inputs + done, mask=wanted, other=0.0)
            upward = added(some, ups, upward, UPCAST)
    total *= scale
    if GATED:
        total = total * tl.sigmoid(total) * (upward * scale)
    else:
        total *= tl.load(factors + row, mask=kept, other=0.0)[:, None]
    if LARGEST > 0:
        total = tl.clamp(total * stored, -LARGEST, LARGEST)
    target = out + row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=kept[:, None] & inside[None, :])


@triton.jit
def add_kernel(rows, chosen, out, hidden, share, experts, STRETCH: tl.constexpr):
    """Add the rows of one token, a range of each."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    total = tl.zeros([STRETCH], tl.float32)
    for k in range(share):
        row = token * share + k
        own = tl.load(chosen + row)
        size = tl.where((own >= 0) & (own < experts), hidden, 0)
        total += tl.load(rows + row * hidden + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + at, total.to(out.dtype.element_ty), mask=at < hidden)


def routed_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    factors: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float = 1.0,
) -> None:
    """Write the experts' output for some tokens.

    Parameters
    ----------
    x : Tensor
        [tokens, hidden], float16 or bfloat16; or float8_e4m3fn, where the GPU has it.
    chosen : Tensor
        [tokens, top_k] int32: experts, none twice for a token. Any other number is an expert of another GPU.
    factors : Tensor
        [tokens, top_k] float32: the weights of the sum.
    gate_up : Tensor
        [experts, 2 * inner, hidden], of x's type: the rows of the gate before those of up.
    down : Tensor
        [experts, hidden, inner], of x's type.
    out : Tensor
        [tokens, hidden], float16 or bfloat16.
    scale : float
        Of 8-bit floats: x, and what the activation stores, are `scale` times the numbers that they stand for.
        Weights stand for themselves.

    Raises
    ------
    TypeError, ValueError
        A tensor has a wrong type, shape or device, or the scale has no effect; the message names it.
    """
    for launch in plan_experts(x, chosen, factors, gate_up, down, out=out, scale=scale):
        launch.run()


def tile_of(rows: int, experts: int) -> int:
    """Rows of a tile: what an expert has on average, rounded up to a power of two."""
    return min(max(next_power_of_2(-(-rows // experts)), LEAST_TILE), MOST_TILE)


def plan_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    factors: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float = 1.0,
    gpu: Gpu | None = None,
) -> list[Launch]:
    """The launches of `routed_experts`; tensors may be on the meta device if `gpu` is given."""
    narrow = _expect_experts(
        x, chosen, factors, (gate_up, down), out, has_fp8=(gpu or gpu_of(x.device)).has_fp8
    )
    if scale <= 0 or (scale != 1 and not narrow):
        raise ValueError(f"scale must be {'above 0' if narrow else f'1 for {x.dtype}'}, got {scale}")
    (tokens, hidden), (experts, _, inner), (_, top_k) = x.shape, down.shape, chosen.shape
    rows = tokens * top_k
    tile = tile_of(rows, experts)
    tiles = rows // tile + min(rows, experts)  # at most
    expect_between("x: tiles of rows", tiles, 0, 65_535)

    def new(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    numbers, counts, order, owners, filled = new(rows), new(experts), new(tiles, tile), new(tiles), new(tiles)
    activated, products = new(rows, inner, dtype=x.dtype), new(rows, hidden, dtype=out.dtype)
    arranged = {"order": order, "owners": owners, "filled": filled}
    count = {"chosen": chosen, "numbers": numbers, "counts": counts, "rows": rows, "SIZE": STRETCH}
    arrange = {
        "chosen": chosen, "numbers": numbers, "counts": counts, **arranged, "rows": rows, "experts": experts,
        "tiles": tiles, "TILE": tile, "EXPERTS": next_power_of_2(experts), "CHUNK": CHUNK,
    }  # fmt: skip
    both = {
        **arranged, "factors": factors, "scale": float(1 / scale), "stored": float(scale), "TILE": tile,
        "DEPTH": DEPTH_BYTES // x.element_size(), "UPCAST": INTERPRETED and x.dtype == torch.bfloat16,
    }  # fmt: skip
    gated = both | {
        "x": x, "weights": gate_up, "out": activated, "inputs": hidden, "outputs": inner, "share": top_k,
        "GATED": True, "COLUMNS": COLUMNS // 2, "LARGEST": torch.finfo(x.dtype).max if narrow else 0.0,
    }  # fmt: skip
    downward = both | {
        "x": activated, "weights": down, "out": products, "inputs": inner, "outputs": hidden, "share": 1,
        "GATED": False, "COLUMNS": COLUMNS, "LARGEST": 0.0,
    }  # fmt: skip
    add = {
        "rows": products, "chosen": chosen, "out": out, "hidden": hidden, "share": top_k, "experts": experts,
        "STRETCH": STRETCH,
    }  # fmt: skip
    warps, stages = (8, 3) if tile == MOST_TILE else (4, 4)
    return [
        Launch(count_kernel, (experts if rows else 0, 1, 1), count, 4, 1),
        Launch(arrange_kernel, (triton.cdiv(max(rows, tiles), CHUNK), 1, 1), arrange, 4, 1),
        Launch(expert_kernel, (triton.cdiv(inner, COLUMNS // 2), tiles, 1), gated, warps, stages),
        Launch(expert_kernel, (triton.cdiv(hidden, COLUMNS), tiles, 1), downward, warps, stages),
        Launch(add_kernel, (tokens, triton.cdiv(hidden, STRETCH), 1), add, 4, 1),
    ]


def _expect_experts(
    x: torch.Tensor, chosen: torch.Tensor, factors: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor, *, has_fp8: bool,
) -> bool:  # fmt: skip
    """Check the arguments; whether they are 8-bit floats."""
    kinds = (*HALVES, torch.float8_e4m3fn) if has_fp8 else HALVES
    expect_tensor("x", x, ("tokens", "hidden"), kinds)
    expect_runnable(x, INTERPRETED)
    (tokens, hidden), (gate_up, down) = x.shape, weights
    expect_tensor("chosen", chosen, (tokens, "top_k"), (torch.int32,), x.device)
    expect_tensor("factors", factors, tuple(chosen.shape), (torch.float32,), x.device)
    expect_tensor("down", down, ("experts", hidden, "inner"), (x.dtype,), x.device)
    experts, _, inner = down.shape
    expect_tensor("gate_up", gate_up, (experts, 2 * inner, hidden), (x.dtype,), x.device)
    narrow = x.dtype not in HALVES
    expect_tensor("out", out, (tokens, hidden), HALVES if narrow else (x.dtype,), x.device)
    expect_between("down: experts", experts, 1, 1024)
    expect_between("chosen: top_k", chosen.shape[1], 1, 1024)
    for name, size in (("x: hidden", hidden), ("down: inner", inner)):
        if size % 16 or not size:
            raise ValueError(f"{name} must be a multiple of 16, got {size}")
    return narrow
