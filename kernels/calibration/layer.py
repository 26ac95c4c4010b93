"""The small kernels of a layer, fused as in engines: norm with residual, rotary embedding, gated activation.

    norm        residual += x; out = residual / sqrt(mean(residual^2) + 1e-6) * weight
                bytes = 8 * tokens * hidden: two read, two written
    rotary      first half * cos - second half * sin, second half * cos + first half * sin, of every query and
                key head                                    bytes = 4 * tokens * (heads + kv_heads) * head_dim
    activation  gate / (1 + exp(-gate)) * up                bytes = 6 * tokens * intermediate
    quantize    x * SCALE in 8 bits (e4m3), before a product with weights of 8 bits

They are timed, together with torch's products and this package's attention, as the parts of a layer. They
compute in 32 bits and store 16, but for `quantize`.
"""

import torch
import triton
import triton.language as tl

from kvsim.kernels.launch import Launch, next_power_of_2

STRETCH = 1024
"""Elements of a row per program of the activation; of all rows, of `quantize`."""

SCALE, MOST_E4M3 = 64.0, tl.constexpr(448.0)
"""The scale of activations in 8 bits, one for a tensor, known beforehand; the largest number they can hold.
Normal numbers, and those that are smaller by the root of the hidden size, stay clear of both ends."""


@triton.jit
def norm_kernel(x, residual, weight, out, hidden, SIZE: tl.constexpr):
    """Norm of one token."""
    at = tl.arange(0, SIZE)
    place, mask = tl.program_id(0).to(tl.int64) * hidden + at, at < hidden
    total = tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(residual + place, total.to(residual.dtype.element_ty), mask=mask)
    scale = 1 / tl.sqrt(tl.sum(total * total, 0) / hidden + 1e-6)
    gain = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, (total * scale * gain).to(out.dtype.element_ty), mask=mask)


@triton.jit
def rotary_kernel(x, out, cosine, sine, row, heads, HALF: tl.constexpr, HEADS: tl.constexpr):
    """Rotate one token: the first heads * 2 * HALF of its `row` elements of x."""
    token = tl.program_id(0).to(tl.int64)
    h, d = tl.arange(0, HEADS), tl.arange(0, HALF)
    mask = (h < heads)[:, None] & (d < HALF)[None, :]
    at = h[:, None] * (2 * HALF) + d[None, :]
    cos, sin = tl.load(cosine + token * HALF + d)[None, :], tl.load(sine + token * HALF + d)[None, :]
    first = tl.load(x + token * row + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + token * row + HALF + at, mask=mask, other=0.0).to(tl.float32)
    place = token * heads * (2 * HALF) + at
    tl.store(out + place, (first * cos - second * sin).to(out.dtype.element_ty), mask=mask)
    tl.store(out + place + HALF, (second * cos + first * sin).to(out.dtype.element_ty), mask=mask)


@triton.jit
def activation_kernel(x, out, width, STRETCH: tl.constexpr):
    """Activate a range of one token: x is [tokens, 2 * width], gates before ups."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    mask = at < width
    gate = tl.load(x + token * 2 * width + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + token * 2 * width + width + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * width + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=mask)


@triton.jit
def quantize_kernel(x, out, scale, size, STRETCH: tl.constexpr):
    """Convert a range of x to 8 bits."""
    at = tl.program_id(0).to(tl.int64) * STRETCH + tl.arange(0, STRETCH)
    mask = at < size
    scaled = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * scale
    kept = tl.minimum(tl.maximum(scaled, -MOST_E4M3), MOST_E4M3)
    tl.store(out + at, kept.to(out.dtype.element_ty), mask=mask)


@triton.jit
def read_kernel(source, out, SIZE: tl.constexpr, TURNS: tl.constexpr):
    """Read everything and keep a sum, so that nothing is optimized away."""
    total = tl.zeros([SIZE], tl.float32)
    at = tl.program_id(0).to(tl.int64) * SIZE * TURNS + tl.arange(0, SIZE)
    for turn in range(TURNS):
        total += tl.load(source + at + turn * SIZE)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def empty_kernel(x):
    """Do nothing."""


def norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Launch:
    """Write `residual` and `out`; all [tokens, hidden], the weight [hidden]."""
    tokens, hidden = x.shape
    arguments = {
        "x": x, "residual": residual, "weight": weight, "out": out, "hidden": hidden,
        "SIZE": next_power_of_2(hidden),
    }  # fmt: skip
    return Launch(norm_kernel, (tokens, 1, 1), arguments, 8, 1)


def rotary(x: torch.Tensor, out: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> Launch:
    """Write `out` [tokens, heads, head_dim] from the first columns of x [tokens, any]; tables [tokens, half].

    head_dim is a power of two.
    """
    tokens, heads, head_dim = out.shape
    arguments = {
        "x": x, "out": out, "cosine": cosine, "sine": sine, "row": x.shape[1], "heads": heads,
        "HALF": head_dim // 2, "HEADS": next_power_of_2(heads),
    }  # fmt: skip
    return Launch(rotary_kernel, (tokens, 1, 1), arguments, 4, 1)


def activation(x: torch.Tensor, out: torch.Tensor) -> Launch:
    """Write `out`, [tokens, width], from x, [tokens, 2 * width]."""
    tokens, width = out.shape
    arguments = {"x": x, "out": out, "width": width, "STRETCH": STRETCH}
    return Launch(activation_kernel, (tokens, triton.cdiv(width, STRETCH), 1), arguments, 4, 1)


def quantize(x: torch.Tensor, out: torch.Tensor) -> Launch:
    """Write `out`, 8-bit numbers of x's shape; both contiguous."""
    arguments = {"x": x, "out": out, "scale": SCALE, "size": x.numel(), "STRETCH": STRETCH}
    return Launch(quantize_kernel, (triton.cdiv(x.numel(), STRETCH), 1, 1), arguments, 4, 1)


def read(source: torch.Tensor, sums: torch.Tensor) -> Launch:
    """Read all of a float32 tensor of len(sums) * 8192 elements."""
    arguments = {"source": source, "out": sums, "SIZE": 2048, "TURNS": 4}
    return Launch(read_kernel, (len(sums), 1, 1), arguments, 8, 1)


def empty(x: torch.Tensor) -> Launch:
    """Do nothing; a kernel needs an argument."""
    return Launch(empty_kernel, (1, 1, 1), {"x": x}, 1, 1)
