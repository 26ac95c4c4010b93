"""Decode attention over latents (MLA: DeepSeek, Kimi): all query heads read one row per token.

    out[s, h] = softmax(scale * q[s, h] . K) K[:, :latent]       K: [tokens, latent + rope] of sequence s

    bytes moved = sum(tokens) * (latent + rope) * bytes of an element
                + batch * heads * (2 * latent + rope) * bytes of a query element

The matrix that maps latents to keys is absorbed into the query; the one for values is applied to the output.
A row is read once and is both key and value: 128 heads compute 278,528 operations on its 1,152 bytes, 242 per
byte, about as many as a GPU can do while it reads one. Query heads are processed in blocks of `rows` or
fewer, whose programs run side by side and share the rows through the L2 cache.

It uses the kernel of decode.py (attend.py), with blocks of heads as the KV heads.
"""

import torch

from kvsim.kernels.attend import attending
from kvsim.kernels.checks import (
    FP8,
    HALVES,
    INTEGERS,
    expect_between,
    expect_homes,
    expect_runnable,
    expect_tensor,
)
from kvsim.kernels.decode import LOG2_E
from kvsim.kernels.faults import expect_no_faults
from kvsim.kernels.launch import INTERPRETED, Gpu, Launch, Tiling, gpu_of, latent_tiling
from kvsim.kernels.pieces import Pieces, cut, cut_or_given


def latent_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    *,
    latent: int,
    scale: float,
    longest: int,
    tokens: int | None = None,
    block_table: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    cache_scale: float = 1.0,
    splits: int | None = None,
    pieces: Pieces | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Attention of one token per sequence over its cached latents, including the token itself.

    Parameters
    ----------
    query : Tensor
        [batch, heads, latent + rope], float16 or bfloat16. Heads: up to 32, or a multiple of 32; for 8-bit
        caches 16.
    cache : Tensor
        [num_blocks, block_size, latent + rope], of the type of the query or 8-bit floats; block_size 1 to
        256.
    lengths : Tensor
        [batch] int32 or int64: tokens of each sequence, 0 for none.
    latent : int
        How many numbers of a row are also its value: a power of two, 32 to 512. The rest, 16 to 128 and also
        a power of two, encode the position.
    scale : float
        Scale of the scores: 1 / sqrt(head size of the model before absorption), 1 / sqrt(192) in DeepSeek-V3.
    longest, tokens, block_table, starts, splits, pieces, tiling
        As in `decode_attention`.
    out : Tensor
        [batch, heads, latent]; allocated if not given.
    cache_scale : float
        Factor for the stored numbers (8-bit floats).

    Returns
    -------
    Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        As for `decode_attention`.
    """
    if out is None and isinstance(query, torch.Tensor):
        out = query.new_empty((*query.shape[:-1], latent))
    for launch in plan_latent(
        query, cache, lengths, out, latent=latent, scale=scale, longest=longest, tokens=tokens,
        block_table=block_table, starts=starts, cache_scale=cache_scale, splits=splits, pieces=pieces,
        tiling=tiling,
    ):  # fmt: skip
        launch.run()
    expect_no_faults(query.device)
    return out


def plan_latent(
    query: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    *,
    latent: int,
    scale: float,
    longest: int,
    tokens: int | None = None,
    block_table: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    cache_scale: float = 1.0,
    splits: int | None = None,
    pieces: Pieces | None = None,
    tiling: Tiling | None = None,
    gpu: Gpu | None = None,
) -> list[Launch]:
    """The one to four launches; tensors may be on the meta device if `gpu` is given."""
    expect_tensor("query", query, ("batch", "heads", "latent + rope"), HALVES)
    expect_runnable(query, INTERPRETED)
    batch, heads, width = query.shape
    gpu = gpu or gpu_of(query.device)
    kinds = (query.dtype, *FP8) if gpu.has_fp8 else (query.dtype, torch.float8_e5m2)
    expect_tensor("cache", cache, ("num_blocks", "block_size", width), kinds, query.device)
    expect_between("cache: block_size", cache.shape[1], 1, 256)
    expect_power_of_2("latent", latent, 32, 512)
    expect_power_of_2("query: width - latent", width - latent, 16, 128)
    expect_tensor("lengths", lengths, (batch,), INTEGERS, query.device)
    expect_tensor("out", out, (batch, heads, latent), (query.dtype,), query.device)
    homes, paged = expect_homes(block_table, starts, batch, query.device), starts is None
    expect_between("longest", longest, 0, (homes.shape[1] if paged else cache.shape[0]) * cache.shape[1])
    expect_between("query: batch", batch, 0, 65535)
    tiling = tiling or latent_tiling(cache.element_size(), heads, gpu)
    blocks = blocks_of(heads, tiling, "query: heads")
    given = pieces is not None
    pieces, launches = cut_or_given(
        pieces, lengths, longest=longest, kv_heads=blocks, tokens=tokens, window=None, splits=splits,
        tiling=tiling, gpu=gpu,
    )  # fmt: skip
    arguments = {
        "q": query,
        "k": cache,
        "v": cache,
        "homes": homes,
        "lengths": lengths,
        "longest": longest,
        "out": out,
        "scale_log2": scale * cache_scale * LOG2_E,
        "value_scale": cache_scale,
        "row": width,
        "kv_heads": blocks,
        "GROUP": heads // blocks,
        "HEAD_DIM": latent,
        "BLOCK_SIZE": cache.shape[1],
        "ROPE": width - latent,
    }
    return [*launches, *attending(arguments, None, pieces, tiling, given)]


def blocks_of(heads: int, tiling: Tiling, name: str = "heads") -> int:
    """How many programs read the same rows side by side; ValueError unless heads fill whole blocks."""
    group = min(heads, tiling.rows)
    if heads % max(group, 1):
        raise ValueError(f"{name} must be up to {group} or a multiple of {group}, got {heads}")
    return heads // group if group else 1


def cut_latents(
    lengths: torch.Tensor,
    *,
    heads: int,
    longest: int,
    element_bytes: int = 2,
    tokens: int | None = None,
    tiling: Tiling | None = None,
    out: Pieces | None = None,
    gpu: Gpu | None = None,
) -> Pieces:
    """Like `pieces.cut`, for `latent_attention` with `heads` query heads over elements of `element_bytes`.

    Raises TypeError or ValueError, which name the argument.
    """
    tiling = tiling or latent_tiling(element_bytes, heads, gpu or gpu_of(lengths.device))
    blocks = blocks_of(heads, tiling)
    return cut(
        lengths, longest=longest, kv_heads=blocks, head_dim=512, tokens=tokens, tiling=tiling, out=out,
        gpu=gpu,
    )  # fmt: skip


def expect_power_of_2(name: str, value: int, low: int, high: int) -> None:
    """Raise ValueError unless `value` is a power of two within bounds."""
    if not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} must be a power of two, {low} to {high}, got {value}")
