"""Prefill attention: a chunk of new tokens per sequence over its cached context, including the chunk.

    out[j, h] = softmax(scale * q[j, h] . K) V    over the tokens max(0, p - window + 1) .. p, where
                                                  p = length - count + j' is the position of query j, the
                                                  j'-th of `count` new tokens of its sequence

    products    = 4 * heads * head_dim * (query, key) pairs seen: the bound for chunks of a few hundred
                  tokens or more
    bytes moved >= 2 * sum(lengths) * kv_heads * head_dim * bytes of a KV element, once per query tile (they
                  come from the cache after the first), + 2 * tokens * heads * head_dim * bytes of a query

The chunk's keys and values are written first (write.py). A query tile is ROWS // group tokens times the heads
of one KV group, so that small chunks also fill a tile and a key is loaded once per group. A group with more
heads than rows is split into blocks, each with its own programs, as registers hold no more. Key tiles that
every row sees entirely need no mask; those at the diagonal or at the edge of a window do. The last tiles of a
prompt, which have most to do, start first.

A context is not split: one short chunk after a very long context does not fill a GPU.
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
from kvsim.kernels.decode import LOG2_E, MOST_ROWS
from kvsim.kernels.launch import (
    INTERPRETED,
    LEAST_ROWS,
    Gpu,
    Launch,
    Tiling,
    gpu_of,
    next_power_of_2,
    prefill_tiling,
)
from kvsim.kernels.tiles import fold, load_rows, scores_of, slots_of


@triton.jit(do_not_specialize=["home_stride", "window"])
def prefill_kernel(
    q,  # [tokens, kv_heads * BLOCKS * GROUP, HEAD_DIM]
    k,  # [slots, kv_heads, HEAD_DIM]
    v,
    homes,  # PAGED: block tables [batch, home_stride]; else the first slots [batch]
    lengths,  # [batch]
    first_queries,  # [batch + 1]
    out,  # [tokens, kv_heads * BLOCKS * GROUP, HEAD_DIM]
    scale_log2, value_scale,
    row,  # elements of a slot
    home_stride, window,
    GROUP: tl.constexpr, BLOCKS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr,
    WINDOW: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Process a tile of one sequence's queries, for one KV head or a block of its query heads."""
    QUERIES: tl.constexpr = ROWS // GROUP
    block, seq = tl.program_id(1), tl.program_id(2).to(tl.int64)
    before = tl.load(first_queries + seq).to(tl.int64)
    count = (tl.load(first_queries + seq + 1).to(tl.int64) - before).to(tl.int32)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    if start >= count:
        return
    length = tl.load(lengths + seq).to(tl.int32)

    r, d = tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    query_index = start + r // GROUP
    real = (r < QUERIES * GROUP) & (query_index < count)
    mine = real[:, None] & (d < HEAD_DIM)[None, :]
    head = (before + query_index) * (tl.num_programs(1) * GROUP) + block * GROUP + r % GROUP
    query = tl.load(q + head[:, None] * HEAD_DIM + d[None, :], mask=mine, other=0.0)
    position = length - count + tl.minimum(query_index, count - 1)
    home = homes + seq * home_stride if PAGED else tl.load(homes + seq).to(tl.int64)
    column = block // BLOCKS * HEAD_DIM + d

    first_position = length - count + start
    end = length - count + tl.minimum(start + QUERIES, count)
    begin = tl.maximum(first_position - window + 1, 0) // TILE * TILE if WINDOW else 0
    masked = begin if WINDOW else (first_position + 1) // TILE * TILE

    m = tl.full([ROWS], -float("inf"), tl.float32)
    denominator = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    token = begin + tl.arange(0, TILE)
    inside = token < end
    if WINDOW:
        inside &= token > first_position - window
    slot = slots_of(home, token, inside, BLOCK_SIZE, PAGED)
    if not WINDOW:
        token, inside, slot, m, denominator, acc = fold_keys(
            query, k, v, home, position, column, row, begin, masked, end, window, scale_log2, token, inside,
            slot, m, denominator, acc, HEAD_DIM, HEAD_PAD, TILE, BLOCK_SIZE, PAGED, False, False, UPCAST,
        )  # fmt: skip
    token, inside, slot, m, denominator, acc = fold_keys(
        query, k, v, home, position, column, row, masked, end, end, window, scale_log2, token, inside, slot,
        m, denominator, acc, HEAD_DIM, HEAD_PAD, TILE, BLOCK_SIZE, PAGED, True, WINDOW, UPCAST,
    )  # fmt: skip
    result = acc * (value_scale / denominator)[:, None]
    tl.store(out + head[:, None] * HEAD_DIM + d[None, :], result.to(out.dtype.element_ty), mask=mine)


@triton.jit
def fold_keys(
    query, k, v, home, position, column, row, begin, stop, end, window, scale_log2, token, inside, slot,
    m, denominator, acc,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PAGED: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Process key tiles from `begin` to `stop`; MASKED: not every row sees all of them."""
    for _ in range(begin, stop, TILE):
        key = load_rows(k, slot, row, column, inside, HEAD_DIM, HEAD_PAD)
        value = load_rows(v, slot, row, column, inside, HEAD_DIM, HEAD_PAD)
        if MASKED:
            seen = token[None, :] <= position[:, None]
            if WINDOW:
                seen &= token[None, :] > position[:, None] - window
            score = tl.where(seen, scores_of(query, key, scale_log2, UPCAST), -float("inf"))
        else:
            score = scores_of(query, key, scale_log2, UPCAST)
        token += TILE
        inside = token < end
        slot = slots_of(home, token, inside, BLOCK_SIZE, PAGED)
        m, denominator, acc = fold(score, value, m, denominator, acc, query.dtype, WINDOW, UPCAST)
    return token, inside, slot, m, denominator, acc


def prefill_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    first_queries: torch.Tensor,
    *,
    most_queries: int,
    block_table: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Causal attention of the last tokens of each sequence over its cached context, including themselves.

    Parameters
    ----------
    query : Tensor
        [tokens, heads, head_dim], the chunks of all sequences in order, float16 or bfloat16.
    keys, values : Tensor
        The pools, [num_blocks, block_size, kv_heads, head_dim], of the type of the query or 8-bit floats.
    lengths : Tensor
        [batch] int32 or int64: tokens of each sequence, including the chunk.
    first_queries : Tensor
        [batch + 1] int32 or int64: where each chunk begins in `query`, and the end of the last one; a
        chunk may be empty.
    most_queries : int
        The maximum length of a chunk.
    block_table, starts, out, scale, window, key_scale, value_scale, tiling
        As in `decode_attention`.

    Returns
    -------
    Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        A wrong type, shape or device of a tensor, or a number out of range; the message names the argument.
    """
    if out is None and isinstance(query, torch.Tensor):
        out = torch.empty_like(query)
    plan_prefill(
        query, keys, values, lengths, first_queries, out, most_queries=most_queries,
        block_table=block_table, starts=starts, scale=scale, window=window, key_scale=key_scale,
        value_scale=value_scale, tiling=tiling,
    ).run()  # fmt: skip
    return out


def plan_prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    first_queries: torch.Tensor,
    out: torch.Tensor,
    *,
    most_queries: int,
    block_table: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    tiling: Tiling | None = None,
    gpu: Gpu | None = None,
) -> Launch:
    """The launch of `prefill_attention`; tensors may be on the meta device if `gpu` is given."""
    expect_tensor("query", query, ("tokens", "heads", "head_dim"), HALVES)
    expect_runnable(query, INTERPRETED)
    tokens, heads, head_dim = query.shape
    gpu = gpu or gpu_of(query.device)
    block_size, kv_heads = expect_cache(query, keys, values, gpu.has_fp8)
    expect_tensor("lengths", lengths, ("batch",), INTEGERS, query.device)
    batch = lengths.shape[0]
    expect_tensor("first_queries", first_queries, (batch + 1,), INTEGERS, query.device)
    expect_tensor("out", out, tuple(query.shape), (query.dtype,), query.device)
    homes, paged = expect_homes(block_table, starts, batch, query.device), starts is None
    expect_between("lengths: batch", batch, 0, 65535)
    expect_between("most_queries", most_queries, 0, tokens)
    expect_between("window", 1 if window is None else window, 1, 2**31 - 1)

    tiling, group = tiling or prefill_tiling(head_dim, keys.element_size(), gpu), heads // kv_heads
    expect_between("query: heads for each KV head", group, 1, MOST_ROWS)
    rows = tiling.rows or max(LEAST_ROWS, next_power_of_2(group))
    blocks = next(count for count in range(1, group + 1) if group <= count * rows and group % count == 0)
    arguments = {
        "q": query,
        "k": keys,
        "v": values,
        "homes": homes,
        "lengths": lengths,
        "first_queries": first_queries,
        "out": out,
        "scale_log2": (head_dim**-0.5 if scale is None else scale) * key_scale * LOG2_E,
        "value_scale": value_scale,
        "row": kv_heads * head_dim,
        "home_stride": homes.shape[1] if paged else 0,
        "window": window or 0,
        "GROUP": group // blocks,
        "BLOCKS": blocks,
        "HEAD_DIM": head_dim,
        "HEAD_PAD": next_power_of_2(head_dim),
        "ROWS": rows,
        "TILE": tiling.tile,
        "BLOCK_SIZE": block_size if paged else 1,
        "PAGED": paged,
        "WINDOW": window is not None,
        "UPCAST": INTERPRETED and query.dtype is torch.bfloat16,
    }
    query_tiles = -(-most_queries // (rows // (group // blocks)))
    grid = (query_tiles, kv_heads * blocks, batch)
    return Launch(prefill_kernel, grid, arguments, tiling.warps, tiling.stages, tiling.registers)
