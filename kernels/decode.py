"""Decode attention: one new token per sequence over its cached keys and values, paged or contiguous.

    out[s, h] = softmax(scale * q[s, h] . K) V    over the tokens max(0, length - window) .. length - 1 of
                                                  sequence s, in KV head h // group; zeros for length 0

    bytes moved = 2 * sum(tokens seen) * kv_heads * head_dim * bytes of a KV element
                + 2 * batch * heads * head_dim * bytes of a query element
                + table entries read + 4 * 4 * (head_dim + 1) bytes per head and share of a cut context

The first term dominates. Each key and value is read once: the query heads that share a KV head are the rows
of one tile, padded to the 16 rows that a matrix instruction needs. The contexts are distributed evenly over
as many programs as the GPU holds at once (pieces.py), so that there is no second wave and all programs end
together, however long the contexts are. A second kernel merges split contexts.

The kernels are in attend.py; latent.py is the counterpart for latents.
"""

import torch

from kvsim.kernels.attend import attending
from kvsim.kernels.checks import (
    HALVES,
    INTEGERS,
    expect_between,
    expect_cache,
    expect_homes,
    expect_runnable,
    expect_tensor,
)
from kvsim.kernels.faults import expect_no_faults
from kvsim.kernels.launch import INTERPRETED, Gpu, Launch, Tiling, decode_tiling, gpu_of
from kvsim.kernels.pieces import Pieces, cut_or_given

LOG2_E = 1.4426950408889634
MOST_ROWS = 128
"""Query rows that the registers of a program with 8 warps can hold."""


def decode_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    *,
    longest: int,
    tokens: int | None = None,
    block_table: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    splits: int | None = None,
    pieces: Pieces | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Attention of one token per sequence over its cached context, including the token itself.

    Parameters
    ----------
    query : Tensor
        [batch, heads, head_dim], float16 or bfloat16; head_dim a multiple of 16, 32 to 256.
    keys, values : Tensor
        The pools, [num_blocks, block_size, kv_heads, head_dim], of the type of the query or 8-bit floats;
        block_size 1 to 256, heads a multiple of kv_heads.
    lengths : Tensor
        [batch] int32 or int64: tokens of each sequence, 0 for none.
    longest : int
        An upper bound of the lengths, given by the host, since reading it from the GPU would stall. Tokens of
        a sequence beyond it are not read, and the error is raised late (faults.py).
    tokens : int
        An upper bound of the sum of the lengths, by default `batch * longest`. Determines the number of
        programs.
    block_table : Tensor
        [batch, most blocks] int32 or int64: paged addressing. Entries after a sequence's last block, or
        wholly before its window, are not read. Either this or `starts`.
    starts : Tensor
        [batch] int32 or int64: contiguous addressing; the slot of each sequence's token 0.
    out : Tensor
        Like the query; allocated by default.
    scale : float
        Scale of the scores, by default 1 / sqrt(head_dim).
    window : int
        Attend only to the last `window` tokens.
    key_scale, value_scale : float
        Factors for the stored keys and values (8-bit floats).
    softcap : float
        Scaled scores become softcap * tanh(score / softcap).
    sinks : Tensor
        [heads], 16 or 32 bits: an extra logit per head, whose value is zero; neither scaled nor capped.
    splits : int
        Shares of a context of `longest` tokens; by default chosen from the GPU and the batch.
    pieces : Pieces
        The result of `kvsim.kernels.pieces.cut` for these lengths, the same for all layers; by default
        computed by extra launches. Excludes `tokens` and `splits`, which `cut` takes. Sequences, heads,
        window and tiling must match, and their `longest` must be at least as large.
    tiling : Tiling
        Overrides the tiling table.

    Returns
    -------
    Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        A tensor has a wrong type, shape or device, a number is out of range, or pieces do not match; the
        message names the argument. Errors that only the GPU detects (a length above `longest`, `tokens` below
        the sum, pieces for other lengths) are raised late (faults.py), with the sequence.
    """
    if out is None and isinstance(query, torch.Tensor):
        out = torch.empty_like(query)
    for launch in plan_decode(
        query, keys, values, lengths, out, longest=longest, tokens=tokens, block_table=block_table,
        starts=starts, scale=scale, window=window, key_scale=key_scale, value_scale=value_scale,
        softcap=softcap, sinks=sinks, splits=splits, pieces=pieces, tiling=tiling,
    ):  # fmt: skip
        launch.run()
    expect_no_faults(query.device)
    return out


def plan_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    *,
    longest: int,
    tokens: int | None = None,
    block_table: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    splits: int | None = None,
    pieces: Pieces | None = None,
    tiling: Tiling | None = None,
    gpu: Gpu | None = None,
) -> list[Launch]:
    """The one to four launches; tensors may be on the meta device if `gpu` is given."""
    expect_tensor("query", query, ("batch", "heads", "head_dim"), HALVES)
    expect_runnable(query, INTERPRETED)
    batch, heads, head_dim = query.shape
    gpu = gpu or gpu_of(query.device)
    block_size, kv_heads = expect_cache(query, keys, values, gpu.has_fp8)
    expect_tensor("lengths", lengths, (batch,), INTEGERS, query.device)
    expect_tensor("out", out, tuple(query.shape), (query.dtype,), query.device)
    homes, paged = expect_homes(block_table, starts, batch, query.device), starts is None
    expect_between("longest", longest, 0, (homes.shape[1] if paged else keys.shape[0]) * block_size)
    expect_between("query: batch", batch, 0, 65535)
    expect_between("window", 1 if window is None else window, 1, 2**31 - 1)

    if sinks is not None:
        expect_tensor("sinks", sinks, (heads,), (*HALVES, torch.float32), query.device)
    if softcap is not None and not 0 < softcap < float("inf"):
        raise ValueError(f"softcap must be above 0, got {softcap}")

    group = heads // kv_heads
    expect_between("query: heads for each KV head", group, 0, MOST_ROWS)
    tiling = tiling or decode_tiling(head_dim, keys.element_size(), group)
    given = pieces is not None
    pieces, launches = cut_or_given(
        pieces, lengths, longest=longest, kv_heads=kv_heads, tokens=tokens, window=window, splits=splits,
        tiling=tiling, gpu=gpu,
    )  # fmt: skip
    arguments = {
        "q": query,
        "k": keys,
        "v": values,
        "homes": homes,
        "lengths": lengths,
        "longest": longest,
        "out": out,
        "scale_log2": (head_dim**-0.5 if scale is None else scale) * key_scale * LOG2_E,
        "value_scale": value_scale,
        "softcap": softcap or 0.0,
        "row": kv_heads * head_dim,
        "kv_heads": kv_heads,
        "window": window or 0,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
    }
    return [*launches, *attending(arguments, sinks, pieces, tiling, given)]
