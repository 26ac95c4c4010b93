"""Decode attention: one new token per sequence over its cached keys and values, paged or contiguous.

    out[s, h] = softmax(scale * q[s, h] . K) V    over the tokens max(0, length - window) .. length - 1 of
                                                  sequence s, in KV head h // group; zeros for length 0

    bytes moved = 2 * sum(tokens seen) * kv_heads * head_dim * bytes of a KV element
                + 2 * batch * heads * head_dim * bytes of a query element
                + table entries read + 4 * 4 * (head_dim + 1) bytes per head and share of a cut context

It is bound by the first term. Each key and value is read once: the query heads that share a KV head are
the rows of one tile, padded to 16 rows, which a matrix instruction needs anyway. All contexts together are
shared out evenly among as many programs as the GPU holds at once (pieces.py), so that none waits for a second
turn and all end together, however long the contexts are; then a second kernel merges what was cut.

Paged and contiguous are the same kernel with other addresses (see tiles.py). The addresses of the next
tile are fetched while this one is computed, so that both kinds have equally many loads in flight, and the
difference between them is what paging costs.
"""

import torch
import triton
import triton.language as tl

from kvsim.kernels.checks import (
    HALVES,
    INTEGERS,
    expect_between,
    expect_cache,
    expect_homes,
    expect_runnable,
    expect_tensor,
)
from kvsim.kernels.launch import (
    INTERPRETED,
    LEAST_ROWS,
    Gpu,
    Launch,
    Tiling,
    decode_tiling,
    gpu_of,
    next_power_of_2,
)
from kvsim.kernels.pieces import Pieces, plan_cut
from kvsim.kernels.tiles import fold, load_rows, scores_of, slots_of

LOG2_E = 1.4426950408889634
MOST_ROWS = 128
"""Query rows that the registers of a program hold, of 8 warps."""


@triton.jit(do_not_specialize=["home_stride", "window"])
def decode_kernel(
    q,  # [batch, kv_heads * GROUP, HEAD_DIM]
    k,  # [slots, kv_heads, HEAD_DIM]
    v,
    homes,  # PAGED: block tables [batch, home_stride]; else the first slots [batch]
    lengths,  # [batch]
    starts,  # SHARED: int32 [shares + 1, 2], (sequence, tile) that each share begins with
    out,  # [batch, kv_heads * GROUP, HEAD_DIM]
    partial,  # SHARED: float32 [2 * shares, kv_heads * GROUP, HEAD_DIM]
    logsum,  # SHARED: float32 [2 * shares, kv_heads * GROUP], in base 2
    scale_log2,
    value_scale,
    row,  # elements of a slot
    home_stride,
    kv_heads,
    window,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGED: tl.constexpr,
    WINDOW: tl.constexpr,
    SHARED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A share of all contexts, or one sequence's context, for one KV head."""
    share, kv_head = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    heads = kv_heads * GROUP
    begin_seq, skipped, before_last, stop = share.to(tl.int64), 0, 0, 0
    if SHARED:
        begin_seq = tl.load(starts + 2 * share).to(tl.int64)
        skipped = tl.load(starts + 2 * share + 1)
        before_last = tl.load(starts + 2 * share + 2) - begin_seq.to(tl.int32)
        stop = tl.load(starts + 2 * share + 3)  # tiles of the last sequence; 0: it is the next share's
    else:
        before_last = 1

    r, d, t = tl.arange(0, ROWS), tl.arange(0, HEAD_PAD), tl.arange(0, TILE)
    mine = (r < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    column = kv_head * HEAD_DIM + d
    for turn in range(0, before_last + (stop > 0).to(tl.int32) if SHARED else 1):
        seq = begin_seq + turn
        end = tl.load(lengths + seq).to(tl.int32)
        first = 0
        if WINDOW:
            first = tl.maximum(end - window, 0)
        begin = first // TILE * TILE
        if SHARED:
            end = tl.where(turn == before_last, tl.minimum(begin + stop * TILE, end), end)
            begin += tl.where(turn == 0, skipped * TILE, 0)
        head = seq * heads + kv_head * GROUP + r
        query = tl.load(q + head[:, None] * HEAD_DIM + d[None, :], mask=mine, other=0.0)
        if PAGED:
            home = homes + seq * home_stride
        else:
            home = tl.load(homes + seq).to(tl.int64)

        m = tl.full([ROWS], -float("inf"), tl.float32)
        denominator = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
        token = begin + t
        inside = (token >= first) & (token < end)
        slot = slots_of(home, token, inside, BLOCK_SIZE, PAGED)
        for _ in range(begin, end, TILE):
            key = load_rows(k, slot, row, column, inside, HEAD_DIM, HEAD_PAD)
            value = load_rows(v, slot, row, column, inside, HEAD_DIM, HEAD_PAD)
            score = tl.where(inside[None, :], scores_of(query, key, scale_log2, UPCAST), -float("inf"))
            token += TILE
            inside = token < end
            slot = slots_of(home, token, inside, BLOCK_SIZE, PAGED)
            m, denominator, acc = fold(score, value, m, denominator, acc, query.dtype, False, UPCAST)

        result = acc * (value_scale / tl.where(denominator > 0, denominator, 1.0))[:, None]
        continued = (turn == 0) & (skipped > 0)
        if SHARED and (continued | (turn == before_last)):
            at = (2 * share - continued.to(tl.int32)).to(tl.int64) * heads + kv_head * GROUP + r
            tl.store(partial + at[:, None] * HEAD_DIM + d[None, :], result, mask=mine)
            tl.store(logsum + at, m + tl.log2(tl.where(denominator > 0, denominator, 1.0)), mask=r < GROUP)
        else:
            tl.store(out + head[:, None] * HEAD_DIM + d[None, :], result.to(out.dtype.element_ty), mask=mine)


@triton.jit
def reduce_kernel(
    partial,  # float32 [2 * shares, heads, HEAD_DIM]
    logsum,  # float32 [2 * shares, heads], in base 2
    starts,  # int32 [shares + 1, 2]
    out,  # [batch, heads, HEAD_DIM]
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PARTS: tl.constexpr,
):
    """All parts of a head of a cut sequence: out = sum(2^logsum part) / sum(2^logsum), PARTS at a time.

    A sequence is cut where a share begins within it; the program of the first such share merges it.
    """
    share, shares, heads = tl.program_id(1) + 1, tl.num_programs(1) + 1, tl.num_programs(0)
    seq, skipped = tl.load(starts + 2 * share), tl.load(starts + 2 * share + 1)
    if skipped == 0:
        return
    if (tl.load(starts + 2 * share - 2) == seq) & (tl.load(starts + 2 * share - 1) > 0):
        return

    d = tl.arange(0, HEAD_PAD)
    m, denominator = -float("inf"), 0.0
    acc = tl.zeros([HEAD_PAD], tl.float32)
    for start in range(share - 1, shares, PARTS):  # the end of the share before, the beginnings of others
        part = start + tl.arange(0, PARTS)
        there = (part < share) | (tl.load(starts + 2 * part, mask=part < shares, other=-1) == seq)
        at = (2 * part - (part >= share).to(tl.int32)).to(tl.int64) * heads + tl.program_id(0)
        weight = tl.load(logsum + at, mask=there, other=-float("inf"))
        piece = tl.load(
            partial + at[:, None] * HEAD_DIM + d[None, :],
            mask=there[:, None] & (d < HEAD_DIM)[None, :],
            other=0.0,
        )
        m_new = tl.maximum(m, tl.max(weight, 0))
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
        fade = tl.exp2(m - shift)
        weight = tl.exp2(weight - shift)
        denominator = denominator * fade + tl.sum(weight, 0)
        acc = acc * fade + tl.sum(piece * weight[:, None], 0)
        m = m_new
    result = acc / tl.where(denominator > 0, denominator, 1.0)
    place = (seq.to(tl.int64) * heads + tl.program_id(0)) * HEAD_DIM + d
    tl.store(out + place, result.to(out.dtype.element_ty), mask=d < HEAD_DIM)


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
    splits: int | None = None,
    pieces: Pieces | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Attention of one token per sequence over its cached context, the token itself included.

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
        No length is above it. The host knows it; asking the GPU would stall it.
    tokens : int
        About their sum; `batch * longest` when not given. It decides how many programs share the work, so
        that a wrong one costs time and nothing else.
    block_table : Tensor
        [batch, most blocks] int32 or int64: paged addressing. Entries behind a sequence's last block, or
        wholly behind its window, are not read. Either this or `starts`.
    starts : Tensor
        [batch] int32 or int64: contiguous addressing; the slot of each sequence's token 0.
    out : Tensor
        Like the query; made when not given.
    scale : float
        Of the scores; 1 / sqrt(head_dim) when not given.
    window : int
        Only the last so many tokens are seen.
    key_scale, value_scale : float
        What stored keys and values are multiplied by (8-bit floats).
    splits : int
        Shares that a context of `longest` tokens takes; chosen from the GPU and the batch when not given.
    pieces : Pieces
        What `kvsim.kernels.pieces.cut` made of these lengths, the same for all layers; computed when not
        given, by launches of its own. Made of other lengths of as many sequences, they are as right, but the
        programs are not as even.
    tiling : Tiling
        Instead of the table's.

    Returns
    -------
    Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        A tensor with a wrong type, shape or device, or a number out of range: they name the argument.
    """
    if out is None and isinstance(query, torch.Tensor):
        out = torch.empty_like(query)
    for launch in plan_decode(
        query, keys, values, lengths, out, longest=longest, tokens=tokens, block_table=block_table,
        starts=starts, scale=scale, window=window, key_scale=key_scale, value_scale=value_scale,
        splits=splits, pieces=pieces, tiling=tiling,
    ):  # fmt: skip
        launch.run()
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
    splits: int | None = None,
    pieces: Pieces | None = None,
    tiling: Tiling | None = None,
    gpu: Gpu | None = None,
) -> list[Launch]:
    """Its one to four launches; tensors may be on the meta device, for a `gpu` that is named."""
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

    group, head_pad = heads // kv_heads, next_power_of_2(head_dim)
    expect_between("query: heads for each KV head", group, 0, MOST_ROWS)
    tiling = tiling or decode_tiling(head_dim, keys.element_size(), group)
    launches: list[Launch] = []
    if pieces is None:
        pieces, launches = plan_cut(
            lengths, longest=longest, kv_heads=kv_heads, tokens=tokens, window=window, splits=splits,
            tiling=tiling, gpu=gpu,
        )  # fmt: skip
    elif (pieces.batch, pieces.tile) != (batch, tiling.tile):
        raise ValueError(
            f"pieces must be of {batch} sequences in tiles of {tiling.tile} tokens, got those of "
            f"{pieces.batch} in tiles of {pieces.tile}"
        )
    shared = pieces.starts is not None
    partial, logsum = out, out
    if shared:
        partial = torch.empty((2 * pieces.shares, heads, head_dim), dtype=torch.float32, device=query.device)
        logsum = torch.empty((2 * pieces.shares, heads), dtype=torch.float32, device=query.device)
    arguments = {
        "q": query,
        "k": keys,
        "v": values,
        "homes": homes,
        "lengths": lengths,
        "starts": pieces.starts if shared else lengths,
        "out": out,
        "partial": partial,
        "logsum": logsum,
        "scale_log2": (head_dim**-0.5 if scale is None else scale) * key_scale * LOG2_E,
        "value_scale": value_scale,
        "row": kv_heads * head_dim,
        "home_stride": homes.shape[1] if paged else 0,
        "kv_heads": kv_heads,
        "window": window or 0,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "HEAD_PAD": head_pad,
        "ROWS": max(LEAST_ROWS, next_power_of_2(group)),
        "TILE": tiling.tile,
        "BLOCK_SIZE": block_size if paged else 1,
        "PAGED": paged,
        "WINDOW": window is not None,
        "SHARED": shared,
        "UPCAST": INTERPRETED and query.dtype is torch.bfloat16,  # whose products are wrong there
    }
    grid = (kv_heads * pieces.shares, 1, 1)
    launches.append(Launch(decode_kernel, grid, arguments, tiling.warps, tiling.stages, tiling.registers))
    if shared and pieces.shares > 1:
        arguments = {
            "partial": partial,
            "logsum": logsum,
            "starts": pieces.starts,
            "out": out,
            "HEAD_DIM": head_dim,
            "HEAD_PAD": head_pad,
            "PARTS": 16,
        }
        launches.append(Launch(reduce_kernel, (heads, pieces.shares - 1, 1), arguments, 1, 2))
    return launches
