"""Swap: copy blocks from anywhere in the pool into one contiguous staging buffer, and back.

    gather:   staging[0, i] = keys[blocks[i]], staging[1, i] = values[blocks[i]]
    scatter:  keys[blocks[i]] = staging[0, i], values[blocks[i]] = staging[1, i]

    bytes moved = 2 * 2 * blocks * block_size * kv_heads * head_dim * bytes of an element: each read and
    written, keys and values

A block of one layer is small (64 KiB at 16 tokens of 8 heads of 128 in bf16, keys and values), and a copy
over the bus takes microseconds to start, so gathering turns many small copies into a large one. The kernel is
the one in copy.py, with one side in order. Target blocks of a scatter must be distinct.
"""

import torch

from kvsim.kernels.checks import INTEGERS, expect_between, expect_pool, expect_runnable, expect_tensor
from kvsim.kernels.copy import POOL_DTYPES, plan_move
from kvsim.kernels.launch import INTERPRETED, Launch


def gather_blocks(
    keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor | None = None
) -> torch.Tensor:
    """Copy blocks of the pools into a staging buffer, in this order.

    Parameters
    ----------
    keys, values : Tensor
        The pools, [num_blocks, block_size, kv_heads, head_dim].
    blocks : Tensor
        [blocks] int32 or int64.
    staging : Tensor
        [2, blocks, block_size, kv_heads, head_dim] of the pools' type: keys, values. Allocated by default.

    Returns
    -------
    Tensor
        `staging`.

    Raises
    ------
    TypeError, ValueError
        A tensor has a wrong type, shape or device; the message names the argument.
    """
    if staging is None:
        staging = keys.new_empty((2, *blocks.shape, *keys.shape[1:]))
    for launch in plan_gather(keys, values, blocks, staging):
        launch.run()
    return staging


def scatter_blocks(
    keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor
) -> None:
    """Copy a staging buffer into blocks of the pools: the inverse of `gather_blocks`, with its arguments."""
    for launch in plan_scatter(keys, values, blocks, staging):
        launch.run()


def plan_gather(
    keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor
) -> list[Launch]:
    """The launches of `gather_blocks`; tensors may be on the meta device."""
    count = _checked(keys, values, blocks, staging)
    return [
        plan_move(pool, stage, blocks, None, count)
        for pool, stage in zip((keys, values), staging.unbind(), strict=True)
    ]


def plan_scatter(
    keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor
) -> list[Launch]:
    """The launches of `scatter_blocks`; tensors may be on the meta device."""
    count = _checked(keys, values, blocks, staging)
    return [
        plan_move(stage, pool, None, blocks, count)
        for pool, stage in zip((keys, values), staging.unbind(), strict=True)
    ]


def _checked(keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor) -> int:
    """Check the arguments; returns the number of blocks to move."""
    _, *block = expect_pool(("keys", "values"), (keys, values), POOL_DTYPES, keys.device)
    expect_tensor("blocks", blocks, ("blocks",), INTEGERS, keys.device)
    count = blocks.shape[0]
    expect_tensor("staging", staging, (2, count, *block), (keys.dtype,), keys.device)
    expect_runnable(keys, INTERPRETED)
    expect_between("blocks: blocks", count, 0, 2**31 - 1)
    return count
