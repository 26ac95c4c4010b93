"""KV write: store keys and values of new tokens in the slots that the allocator gave them.

    keys[slots[j]] = key[j] / key_scale, values[slots[j]] = value[j] / value_scale    (pools seen as slots)

    bytes moved = 2 * tokens * kv_heads * head_dim * (bytes of an input element + bytes of a KV element)
                + 8 * tokens

8-bit floats saturate at the largest value (448 in e4m3, 57,344 in e5m2). Tokens with a slot below 0 are not
written: they pad captured graphs, which have a fixed size.
"""

import torch
import triton
import triton.language as tl

from kvsim.kernels.checks import (
    FP8,
    HALVES,
    INTEGERS,
    expect_between,
    expect_pool,
    expect_runnable,
    expect_tensor,
)
from kvsim.kernels.launch import INTERPRETED, Gpu, Launch, gpu_of

ELEMENTS = 1024
"""Elements of a row that a program writes: one 16-byte load per thread in 4 warps."""


@triton.jit
def write_kernel(
    key,  # [tokens, row]
    value,  # [tokens, row]
    k,  # [slots, row]
    v,  # [slots, row]
    slots,  # [tokens]
    key_factor,
    value_factor,
    row,
    LARGEST: tl.constexpr,  # 0: no saturation
    ELEMENTS: tl.constexpr,
):
    """Write a range of one token's row."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    at = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    new_key = tl.load(key + token * row + at, mask=at < row, other=0.0)
    new_value = tl.load(value + token * row + at, mask=at < row, other=0.0)
    if LARGEST > 0:
        scaled_key = new_key.to(tl.float32) * key_factor
        scaled_value = new_value.to(tl.float32) * value_factor
        new_key = tl.clamp(scaled_key, -LARGEST, LARGEST).to(k.dtype.element_ty)
        new_value = tl.clamp(scaled_value, -LARGEST, LARGEST).to(v.dtype.element_ty)
    tl.store(k + slot * row + at, new_key, mask=at < row)
    tl.store(v + slot * row + at, new_value, mask=at < row)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Write the keys and values of some tokens into the pools.

    Parameters
    ----------
    key, value : Tensor
        [tokens, kv_heads, head_dim], float16 or bfloat16.
    keys, values : Tensor
        The pools, [num_blocks, block_size, kv_heads, head_dim], of the same type or 8-bit floats.
    slots : Tensor
        [tokens] int32 or int64: `table[i // block_size] * block_size + i % block_size` for token i of a
        sequence; no slot twice. Below 0: the token is skipped.
    key_scale, value_scale : float
        Factors by which stored keys and values will be multiplied; only for 8-bit floats.

    Raises
    ------
    TypeError, ValueError
        A tensor has a wrong type, shape or device, or a scale has no effect; the message names the argument.
    """
    plan_write(key, value, keys, values, slots, key_scale=key_scale, value_scale=value_scale).run()


def plan_write(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    gpu: Gpu | None = None,
) -> Launch:
    """The launch of `write_kv`; tensors may be on the meta device if `gpu` is given."""
    expect_tensor("key", key, ("tokens", "kv_heads", "head_dim"), HALVES)
    expect_runnable(key, INTERPRETED)
    tokens, kv_heads, head_dim = key.shape
    eights = FP8 if (gpu or gpu_of(key.device)).has_fp8 else FP8[1:]
    *_, pool_heads, pool_dim = expect_pool(
        ("keys", "values"), (keys, values), (key.dtype, *eights), key.device
    )
    expect_tensor("key", key, ("tokens", pool_heads, pool_dim), (key.dtype,), key.device)
    expect_tensor("value", value, tuple(key.shape), (key.dtype,), key.device)
    expect_tensor("slots", slots, (tokens,), INTEGERS, key.device)
    expect_between("key: tokens", tokens, 0, 2**31 - 1)
    narrow = keys.dtype in FP8
    for name, scale in (("key_scale", key_scale), ("value_scale", value_scale)):
        if scale <= 0 or (scale != 1 and not narrow):
            allowed = "above 0" if narrow else f"1 for keys of {keys.dtype}"
            raise ValueError(f"{name} must be {allowed}, got {scale}")
    row = kv_heads * head_dim
    arguments = {
        "key": key,
        "value": value,
        "k": keys,
        "v": values,
        "slots": slots,
        "key_factor": 1 / key_scale,
        "value_factor": 1 / value_scale,
        "row": row,
        "LARGEST": torch.finfo(keys.dtype).max if narrow else 0.0,
        "ELEMENTS": ELEMENTS,
    }
    return Launch(write_kernel, (tokens, triton.cdiv(row, ELEMENTS), 1), arguments, 4, 1)
