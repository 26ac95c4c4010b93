"""The decode attention kernels: one share of all contexts for a KV head, and the merging of split contexts.

The query heads that share a KV head are the rows of one tile, padded to the 16 rows that a matrix instruction
needs. Model features are selected at compile time:

    SOFTCAP   scores are bounded (Gemma-2)
    SINKS     a learned logit per head in the softmax's denominator, nothing in its numerator (gpt-oss)
    ROPE      multi-head latent attention (DeepSeek): one row of HEAD_DIM + ROPE numbers per token is the key
              of all query heads, its first HEAD_DIM are the value. Blocks of query heads take the place of KV
              heads; they read the same rows at the same time, from the L2 cache

The addresses of the next tile are fetched while this one is computed, even with contiguous addressing
(tiles.py). Both kinds then have equally many loads in flight, and their difference is the cost of paging.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kvsim.kernels.faults import bounded, faults_on, named, tell_longest, tell_stale
from kvsim.kernels.launch import INTERPRETED, LEAST_ROWS, Launch, Tiling, next_power_of_2
from kvsim.kernels.pieces import Pieces
from kvsim.kernels.tiles import capped, fold, in_half, load_rows, scores_of, slots_of, weight_of


@triton.jit(do_not_specialize=["home_stride", "window", "longest"])
def decode_kernel(
    q,  # [batch, kv_heads * GROUP, HEAD_DIM + ROPE]
    k,  # [slots, kv_heads, HEAD_DIM]; ROPE: [slots, HEAD_DIM + ROPE], and v is the same
    v,
    homes,  # PAGED: block tables [batch, home_stride]; else the first slots [batch]
    lengths,  # [batch]
    starts,  # SHARED: int32 [shares + 1, 2], (sequence, tile in it) where each share begins
    made_of,  # GIVEN: int32 [batch], the lengths that the pieces were cut for
    faults,  # int64 [PLACES], host memory
    sinks,  # SINKS: [kv_heads * GROUP]
    out,  # [batch, kv_heads * GROUP, HEAD_DIM]
    partial,  # SHARED: float32 [2 * shares, kv_heads * GROUP, HEAD_DIM]
    logsum,  # SHARED: float32 [2 * shares, kv_heads * GROUP], in base 2
    scale_log2, value_scale, softcap,
    row,  # elements of a slot
    home_stride, kv_heads, window, longest,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr, WINDOW: tl.constexpr,
    SHARED: tl.constexpr, GIVEN: tl.constexpr, UPCAST: tl.constexpr, ROPE: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Compute a share of all contexts, or one sequence's context, for one KV head."""
    share, kv_head = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    begin_seq, skipped, before_last, stop = share_of(starts, share, SHARED)
    r, d = tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    mine = (r < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    column = d if ROPE else kv_head * HEAD_DIM + d
    for turn in range(0, before_last + (stop > 0).to(tl.int32) if SHARED else 1):
        seq = begin_seq + turn
        length = tl.load(lengths + seq)
        end = bounded(length, longest)
        tell_longest(faults, named(seq, length), longest, length != end)
        if GIVEN:
            tell_stale(faults, named(seq, length), tl.load(made_of + seq) != end)
        first = tl.maximum(end - window, 0) if WINDOW else 0
        begin = first // TILE * TILE
        if SHARED:
            end = tl.where(turn == before_last, tl.minimum(begin + stop * TILE, end), end)
            begin += tl.where(turn == 0, skipped * TILE, 0)
        head = (seq * kv_heads + kv_head) * GROUP + r
        home = homes + seq * home_stride if PAGED else tl.load(homes + seq).to(tl.int64)
        m, denominator, acc = context_of(
            q + head[:, None] * (HEAD_DIM + ROPE), k, v, home, first, begin, end, column, row, scale_log2,
            softcap, GROUP, HEAD_DIM, HEAD_PAD, ROWS, TILE, BLOCK_SIZE, PAGED, UPCAST, ROPE, SOFTCAP,
        )  # fmt: skip
        result = acc * (value_scale / tl.where(denominator > 0, denominator, 1.0))[:, None]
        continued = (turn == 0) & (skipped > 0)
        if SHARED and (continued | (turn == before_last)):
            part = (2 * share - continued.to(tl.int32)).to(tl.int64)
            at = (part * kv_heads + kv_head) * GROUP + r
            tl.store(partial + at[:, None] * HEAD_DIM + d[None, :], result, mask=mine)
            tl.store(logsum + at, m + tl.log2(tl.where(denominator > 0, denominator, 1.0)), mask=r < GROUP)
        else:
            if SINKS:
                sink = tl.load(sinks + kv_head * GROUP + r, mask=r < GROUP, other=0.0)
                whole = denominator + weight_of(sink, m)
                result *= tl.where(denominator > 0, denominator / whole, 0.0)[
                    :, None
                ]  # 0 if there is no token
            tl.store(out + head[:, None] * HEAD_DIM + d[None, :], result.to(out.dtype.element_ty), mask=mine)


@triton.jit
def share_of(starts, share, SHARED: tl.constexpr):
    """(first sequence, its tiles in earlier shares, sequences before the last, the last's tiles; 0: none)."""
    begin_seq, skipped, before_last, stop = share.to(tl.int64), 0, 1, 0
    if SHARED:
        begin_seq = tl.load(starts + 2 * share).to(tl.int64)
        skipped = tl.load(starts + 2 * share + 1)
        before_last = tl.load(starts + 2 * share + 2) - begin_seq.to(tl.int32)
        stop = tl.load(starts + 2 * share + 3)
    return begin_seq, skipped, before_last, stop


@triton.jit
def context_of(
    query_rows, k, v, home, first, begin, end, column, row, scale_log2, softcap,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr, UPCAST: tl.constexpr,
    ROPE: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Attend to tokens begin .. end of a context from `first` on: (maximum, denominator, weighted values)."""
    r, d = tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    mine = (r < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    query = tl.load(query_rows + d[None, :], mask=mine, other=0.0)
    if ROPE:
        e = tl.arange(0, ROPE)
        rotated = tl.load(query_rows + HEAD_DIM + e[None, :], mask=(r < GROUP)[:, None], other=0.0)
    if k.dtype.element_ty.primitive_bitwidth == 8 and query.dtype == tl.bfloat16:
        most = tl.max(tl.abs(query.to(tl.float32)), 1)
        if ROPE:
            most = tl.maximum(most, tl.max(tl.abs(rotated.to(tl.float32)), 1))
            rotated, _ = in_half(rotated, most)
        query, unit = in_half(query, most)
        scale_log2 *= unit
    m = tl.full([ROWS], -float("inf"), tl.float32)
    denominator = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    token = begin + tl.arange(0, TILE)
    inside = (token >= first) & (token < end)
    slot = slots_of(home, token, inside, BLOCK_SIZE, PAGED)
    for _ in range(begin, end, TILE):
        key = load_rows(k, slot, row, column, inside, HEAD_DIM, HEAD_PAD)
        if ROPE:
            value = key
            position = load_rows(k, slot, row, HEAD_DIM + e, inside, ROPE, ROPE)
            score = scores_of(query, key, scale_log2, UPCAST)
            score += scores_of(rotated, position, scale_log2, UPCAST)
        else:
            value = load_rows(v, slot, row, column, inside, HEAD_DIM, HEAD_PAD)
            score = scores_of(query, key, scale_log2, UPCAST)
        if SOFTCAP:
            score = capped(score, softcap)
        score = tl.where(inside[None, :], score, -float("inf"))
        token += TILE
        inside = token < end
        slot = slots_of(home, token, inside, BLOCK_SIZE, PAGED)
        m, denominator, acc = fold(score, value, m, denominator, acc, query.dtype, False, UPCAST)
    return m, denominator, acc


@triton.jit
def reduce_kernel(
    partial,  # float32 [2 * shares, heads, HEAD_DIM]
    logsum,  # float32 [2 * shares, heads], in base 2
    starts,  # int32 [shares + 1, 2]
    sinks,  # SINKS: [heads]
    out,  # [batch, heads, HEAD_DIM]
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PARTS: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Merge a split sequence's parts for one head: out = sum(2^logsum part) / sum(2^logsum), PARTS at a time.

    A sequence is split where a share begins inside it; the program of the first such share merges it.
    """
    share, shares, heads = tl.program_id(1), tl.num_programs(1), tl.num_programs(0)
    seq, skipped = tl.load(starts + 2 * share), tl.load(starts + 2 * share + 1)
    if skipped == 0:
        return
    if (tl.load(starts + 2 * share - 2) == seq) & (tl.load(starts + 2 * share - 1) > 0):
        return

    d = tl.arange(0, HEAD_PAD)
    m, denominator = -float("inf"), 0.0
    acc = tl.zeros([HEAD_PAD], tl.float32)
    for start in range(share - 1, shares, PARTS):  # the previous share's end, the others' beginnings
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
    if SINKS:
        denominator += weight_of(tl.load(sinks + tl.program_id(0)), m)
    result = acc / tl.where(denominator > 0, denominator, 1.0)
    place = (seq.to(tl.int64) * heads + tl.program_id(0)) * HEAD_DIM + d
    tl.store(out + place, result.to(out.dtype.element_ty), mask=d < HEAD_DIM)


def attending(
    arguments: dict[str, Any], sinks: torch.Tensor | None, pieces: Pieces, tiling: Tiling, given: bool
) -> list[Launch]:
    """The launches of both kernels. Missing arguments become 0, and derived ones are added.

    `given`: the pieces were not cut by a preceding launch.
    """
    query, out, homes = (arguments[name] for name in ("q", "out", "homes"))
    head_dim, (_, heads, _), paged = arguments["HEAD_DIM"], query.shape, homes.dim() == 2
    shared, head_pad = pieces.starts is not None, next_power_of_2(head_dim)
    partial, logsum = out, out
    if shared:
        partial = torch.empty((2 * pieces.shares, heads, head_dim), dtype=torch.float32, device=query.device)
        logsum = torch.empty((2 * pieces.shares, heads), dtype=torch.float32, device=query.device)
    common = {
        "starts": pieces.starts if shared else pieces.lengths,
        "sinks": out if sinks is None else sinks,
        "partial": partial,
        "logsum": logsum,
        "HEAD_PAD": head_pad,
        "SINKS": sinks is not None,
    }
    arguments = {"softcap": 0.0, "window": 0, "ROPE": 0} | arguments | common
    arguments |= {
        "home_stride": homes.shape[1] if paged else 0,
        "ROWS": max(LEAST_ROWS, next_power_of_2(arguments["GROUP"])),
        "TILE": tiling.tile,
        "BLOCK_SIZE": arguments["BLOCK_SIZE"] if paged else 1,
        "PAGED": paged,
        "WINDOW": arguments["window"] > 0,
        "SHARED": shared,
        "made_of": pieces.lengths,
        "faults": faults_on(query.device),
        "GIVEN": given,
        "UPCAST": INTERPRETED and query.dtype is torch.bfloat16,  # bf16 products are wrong in the interpreter
        "SOFTCAP": arguments["softcap"] > 0,
    }
    grid = (arguments["kv_heads"] * pieces.shares, 1, 1)
    found = [Launch(decode_kernel, grid, arguments, tiling.warps, tiling.stages, tiling.registers)]
    if shared and pieces.shares > 1:
        merging = common | {"out": out, "HEAD_DIM": head_dim, "PARTS": 16}
        grid = (heads, pieces.shares, 1)
        found.append(Launch(reduce_kernel, grid, merging, max(1, head_pad // 256), 2))
    return found
