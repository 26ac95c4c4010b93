"""Block copy: whole blocks to other places in the same pool, for copy-on-write.

    keys[target] = keys[source], values[target] = values[source]    for each pair (source, target)

    bytes moved = pairs * 2 * 2 * block_size * kv_heads * head_dim * bytes of an element: each read and
    written, keys and values

Bytes are moved as 64-bit integers regardless of type, so copies are exact. Pairs are copied concurrently, in
any order: no block may be a target twice, or both a target and a source.

Swapping (swap.py) uses the same kernel with only one side addressed through a list of blocks.
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
from kvsim.kernels.launch import INTERPRETED, Launch

WORD = torch.int64
WORDS = 1024
"""Words moved by a program: 8 KiB, two 16-byte loads per thread in 4 warps."""

POOL_DTYPES = (*HALVES, *FP8)


@triton.jit(do_not_specialize=["source_stride", "target_stride"])
def move_kernel(
    source_pool,  # [blocks, words]
    target_pool,  # [blocks, words]
    sources,  # LISTED_SOURCES: copy i reads the block sources[i * source_stride]
    targets,
    words,  # words per block
    source_stride,
    target_stride,
    LISTED_SOURCES: tl.constexpr,
    LISTED_TARGETS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copy a range of one block."""
    turn = tl.program_id(0).to(tl.int64)
    source, target = turn, turn
    if LISTED_SOURCES:
        source = tl.load(sources + turn * source_stride).to(tl.int64)
    if LISTED_TARGETS:
        target = tl.load(targets + turn * target_stride).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    moved = tl.load(source_pool + source * words + word, mask=word < words)
    tl.store(target_pool + target * words + word, moved, mask=word < words)


def as_words(pool: torch.Tensor) -> torch.Tensor:
    """The same bytes as [blocks, words]; head sizes are multiples of 16, so they always divide evenly."""
    return pool.flatten(1).view(WORD)


def plan_move(
    source_pool: torch.Tensor,
    target_pool: torch.Tensor,
    sources: torch.Tensor | None,
    targets: torch.Tensor | None,
    count: int,
) -> Launch:
    """The launch that copies `count` blocks; None as a list means 0, 1, 2, ..."""
    source_words, target_words = as_words(source_pool), as_words(target_pool)
    words = source_words.shape[1]
    arguments = {
        "source_pool": source_words,
        "target_pool": target_words,
        "sources": source_words if sources is None else sources,
        "targets": target_words if targets is None else targets,
        "words": words,
        "source_stride": 0 if sources is None else sources.stride(0),
        "target_stride": 0 if targets is None else targets.stride(0),
        "LISTED_SOURCES": sources is not None,
        "LISTED_TARGETS": targets is not None,
        "WORDS": WORDS,
    }
    return Launch(move_kernel, (count, triton.cdiv(words, WORDS), 1), arguments, 4, 1)


def copy_blocks(keys: torch.Tensor, values: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy blocks within the pools.

    Parameters
    ----------
    keys, values : Tensor
        The pools, [num_blocks, block_size, kv_heads, head_dim].
    pairs : Tensor
        [pairs, 2] int32 or int64: (source, target). Targets differ from each other and from all sources.

    Raises
    ------
    TypeError, ValueError
        A tensor has a wrong type, shape or device; the message names the argument.
    """
    for launch in plan_copy(keys, values, pairs):
        launch.run()


def plan_copy(keys: torch.Tensor, values: torch.Tensor, pairs: torch.Tensor) -> list[Launch]:
    """The launches of `copy_blocks`; tensors may be on the meta device."""
    expect_pool(("keys", "values"), (keys, values), POOL_DTYPES, keys.device)
    expect_tensor("pairs", pairs, ("pairs", 2), INTEGERS, keys.device)
    expect_runnable(keys, INTERPRETED)
    expect_between("pairs: pairs", pairs.shape[0], 0, 2**31 - 1)
    return [plan_move(pool, pool, pairs[:, 0], pairs[:, 1], pairs.shape[0]) for pool in (keys, values)]
