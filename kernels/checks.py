"""Errors that name the argument, its value and the allowed values."""

from collections.abc import Sequence

import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Element types that keys and values may have besides the queries' own."""

HALVES = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)


def expect_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """Raise unless a tensor is contiguous, of this shape (a string matches any size) and one of these types.

    It must also be on `device`, if that is given.

    Raises TypeError if it is not a tensor or has another element type, ValueError otherwise.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} must be {allowed}, got {str(tensor.dtype).removeprefix('torch.')}")
    fits = len(shape) == tensor.dim() and all(
        isinstance(wanted, str) or wanted == size for wanted, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} must have shape [{wanted}], got {list(tensor.shape)}")
    if device is not None and tensor.device != device:
        raise ValueError(f"{name} must be on {device}, as the first argument is, got {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {list(tensor.stride())}")


def expect_between(name: str, value: int, low: int, high: int) -> None:
    """Raise ValueError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, got {value}")


def expect_pool(
    names: tuple[str, str],
    pools: tuple[torch.Tensor, torch.Tensor],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> tuple[int, int, int, int]:
    """The shape [num_blocks, block_size, kv_heads, head_dim] of two pools, which must match."""
    for name, pool in zip(names, pools, strict=True):
        expect_tensor(name, pool, ("num_blocks", "block_size", "kv_heads", "head_dim"), dtypes, device)
    keys, values = pools
    expect_tensor(names[1], values, tuple(keys.shape), (keys.dtype,), device)
    num_blocks, block_size, kv_heads, head_dim = keys.shape
    expect_between(f"{names[0]}: block_size", block_size, 1, 256)
    expect_head_dim(f"{names[0]}: head_dim", head_dim)
    expect_between(f"{names[0]}: kv_heads", kv_heads, 1, 65535)
    return num_blocks, block_size, kv_heads, head_dim


def expect_cache(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, fp8: bool) -> tuple[int, int]:
    """(block_size, kv_heads) of the pools for a query [any, heads, head_dim].

    `fp8`: whether the GPU can convert float8_e4m3fn.
    """
    dtypes = (query.dtype, *FP8) if fp8 else (query.dtype, torch.float8_e5m2)
    heads, head_dim = query.shape[1:]
    _, block_size, kv_heads, found = expect_pool(("keys", "values"), (keys, values), dtypes, query.device)
    if found != head_dim:
        raise ValueError(f"keys: head_dim must be {head_dim}, as the query's, got {found}")
    if heads % kv_heads:
        raise ValueError(f"query: heads must be a multiple of kv_heads = {kv_heads}, got {heads}")
    return block_size, kv_heads


def expect_homes(
    block_table: torch.Tensor | None, starts: torch.Tensor | None, batch: int, device: torch.device
) -> torch.Tensor:
    """The addresses of sequences: their block tables, or their first slots."""
    if block_table is not None and starts is None:
        expect_tensor("block_table", block_table, (batch, "most blocks"), INTEGERS, device)
        return block_table
    if starts is not None and block_table is None:
        expect_tensor("starts", starts, (batch,), INTEGERS, device)
        return starts
    raise ValueError("block_table or starts must be given, one of them")


def expect_head_dim(name: str, head_dim: int) -> None:
    """Raise ValueError unless rows of this many elements can be moved in pieces of 16 bytes."""
    if head_dim % 16 or not 32 <= head_dim <= 256:
        raise ValueError(f"{name} must be a multiple of 16, 32 to 256, got {head_dim}")


def expect_runnable(tensor: torch.Tensor, interpreted: bool) -> None:
    """Raise ValueError if a kernel cannot run on the tensor's device."""
    if tensor.device.type == "cpu" and not interpreted:
        raise ValueError(
            "tensors must be on a GPU; on the CPU kernels run only in Triton's interpreter "
            "(TRITON_INTERPRET=1 in the environment before triton is imported)"
        )
