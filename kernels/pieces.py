"""How contexts are distributed over the programs of decode attention: evenly, in runs of tiles.

    contexts   |----------------------------|----|-------|    tiles of all sequences, one after the other
    shares     |    0    |    1    |    2    |    3     |    starts = [(0, 0), (0, 10), (0, 20), (1, 0), ...]

There are as many shares as the GPU holds programs at once, divided by the KV heads, so that no last wave
leaves most of the GPU idle; with little work there are fewer, so that each has some tiles. A program works
through its share, sequence by sequence. A sequence within one share is then done. For one that is split, each
share leaves a part, and a second kernel merges the parts. If all programs fit the GPU at once and no context
is worth splitting, each sequence has its own program, and nothing is merged.

`starts` holds the beginning of each share, (sequence, tile within it). It is the same in all layers of a
step, so engines compute it once with `cut`. The host checks given pieces for batch, tiling, KV heads, window
and `longest` before any launch; the kernel checks the lengths, which are on the GPU (faults.py). Pieces are
stale if a length differs from the one they were cut for. Shares always cover all sequences to their current
ends, so the result is correct even with stale pieces.

    eager        pieces = cut(lengths, ...)              each step
    one graph    cut and all layers are captured         each replay cuts into the same memory
    both         pieces = cut(lengths, longest=the maximum length, ...), layers are captured with them;
                 then each step cut(lengths, ..., out=pieces), and the graph
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvsim.kernels.checks import INTEGERS, expect_between, expect_tensor
from kvsim.kernels.faults import (
    bounded,
    expect_no_faults,
    faults_on,
    named,
    tell_longest,
    tell_tokens,
)
from kvsim.kernels.launch import Gpu, Launch, Tiling, decode_tiling, gpu_of, shares_of

AT_ONCE = 1024
"""Sequences whose tiles are counted per iteration."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Contexts split into shares. `cut(..., out=pieces)` reuses the memory for other lengths.

    Attributes
    ----------
    batch, longest, kv_heads, window, tiling
        Sequences, the bound of their lengths, and the kernel parameters they were cut for.
    shares : int
        Number of shares per KV head.
    starts : Tensor or None
        [shares + 1, 2] int32: the sequence and its tile that each share begins with; None if every sequence
        is a share.
    lengths : Tensor
        [batch] int32: a copy of the lengths that were cut.
    """

    batch: int
    longest: int
    kv_heads: int
    window: int | None
    tiling: Tiling
    shares: int
    starts: torch.Tensor | None
    lengths: torch.Tensor


@triton.jit
def tiles_of(length, window, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Tiles of contexts of these lengths, or of the parts in the window."""
    begin = tl.zeros_like(length)
    if WINDOW:
        begin = tl.maximum(length - window, 0) // TILE * TILE
    return (length - begin + TILE - 1) // TILE


@triton.jit(do_not_specialize=["batch", "window", "longest", "told"])
def tiles_kernel(
    lengths,  # [batch]
    copy,  # int32 [batch]
    before,  # int32 [batch + 1]
    faults,  # int64 [PLACES], host memory
    batch,
    window,
    longest,
    told,  # upper bound of the tokens of all sequences
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Copy the lengths, write the running sum of their tiles, and report wrong bounds; one program."""
    total, tokens = 0, tl.full((), 0, tl.int64)
    tl.store(before, total)
    for start in range(0, batch, AT_ONCE):
        seq = start + tl.arange(0, AT_ONCE)
        found = tl.load(lengths + seq, mask=seq < batch, other=0)
        length = bounded(found, longest)
        who = tl.max(tl.where(found != length, named(seq, found), 0), 0)
        tell_longest(faults, who, longest, who > 0)
        tl.store(copy + seq, length, mask=seq < batch)
        tokens += tl.sum(length.to(tl.int64), 0)
        upto = total + tl.cumsum(tiles_of(length, window, TILE, WINDOW), 0)
        tl.store(before + 1 + seq, upto, mask=seq < batch)
        total = tl.max(upto, 0)
    tell_tokens(faults, tokens, told)


@triton.jit(do_not_specialize=["batch", "shares"])
def starts_kernel(
    before,  # int32 [batch + 1]
    starts,  # int32 [shares + 1, 2]
    batch,
    shares,
    AT_ONCE: tl.constexpr,
):
    """Find where each share begins: the last sequence with at most that many tiles before it."""
    share = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    tile = (share.to(tl.int64) * tl.load(before + batch) // shares).to(tl.int32)
    low, high = tl.zeros_like(share), tl.zeros_like(share) + batch + 1
    width = batch
    while width > 0:  # before[low] <= tile
        middle = (low + high) // 2
        found = (tl.load(before + middle, mask=share <= shares, other=0) <= tile) & (middle > low)
        low, high = tl.where(found, middle, low), tl.where(found, high, tl.maximum(middle, low + 1))
        width //= 2
    low = tl.where(share == 0, 0, low)
    tl.store(starts + 2 * share, low, mask=share <= shares)
    skipped = tile - tl.load(before + low, mask=share <= shares, other=0)
    tl.store(starts + 2 * share + 1, tl.where(share == 0, 0, skipped), mask=share <= shares)


def cut(
    lengths: torch.Tensor,
    *,
    longest: int,
    kv_heads: int,
    head_dim: int,
    element_bytes: int = 2,
    group: int = 1,
    tokens: int | None = None,
    window: int | None = None,
    splits: int | None = None,
    tiling: Tiling | None = None,
    out: Pieces | None = None,
    gpu: Gpu | None = None,
) -> Pieces:
    """Split contexts into shares, once for all layers of a step.

    Parameters
    ----------
    lengths : Tensor
        [batch] int32 or int64: tokens of each sequence, 0 for none.
    longest, tokens : int
        Upper bounds of each length and of their sum; `tokens` is `batch * longest` if not given.
    kv_heads, head_dim, element_bytes, group : int
        Geometry of the keys, and query heads per KV head; they determine how many programs run at once.
    window, splits, tiling
        As in `decode_attention`.
    out : Pieces
        Pieces for as many sequences, the same kernel and a `longest` at least as large. Their memory is
        overwritten, so captured graphs that read it continue with these lengths and as many shares.

    Returns
    -------
    Pieces
        `out`, or new pieces; filled on the current stream.

    Raises
    ------
    TypeError, ValueError
        The message names the argument. A length above `longest` or a sum above `tokens` is raised late
        (faults.py).
    """
    pieces, launches = plan_cut(
        lengths, longest=longest, kv_heads=kv_heads, tokens=tokens, window=window, splits=splits,
        tiling=tiling or decode_tiling(head_dim, element_bytes, group), out=out, gpu=gpu,
    )  # fmt: skip
    for launch in launches:
        launch.run()
    expect_no_faults(lengths.device)
    return pieces


def plan_cut(
    lengths: torch.Tensor,
    *,
    longest: int,
    kv_heads: int,
    tokens: int | None,
    window: int | None,
    splits: int | None,
    tiling: Tiling,
    out: Pieces | None = None,
    gpu: Gpu | None = None,
) -> tuple[Pieces, list[Launch]]:
    """The pieces that `cut` returns, and the launches that fill them."""
    expect_tensor("lengths", lengths, ("batch",), INTEGERS)
    batch, device = len(lengths), lengths.device
    expect_between("longest", longest, 0, 2**31 - 1)
    most = batch * longest
    told = most if tokens is None else tokens
    if not 0 <= told <= most:
        raise ValueError(f"tokens must be 0 to batch * longest = {batch} * {longest} = {most}, got {tokens}")
    expect_between("splits", 1 if splits is None else splits, 1, 65535)
    if out is None:
        shares = _shares(batch, longest, kv_heads, told, window, splits, tiling, gpu or gpu_of(device))
        numbers = {"dtype": torch.int32, "device": device}
        starts = None if shares is None else torch.empty((shares + 1, 2), **numbers)
        copy = torch.empty(batch, **numbers)
        out = Pieces(batch, longest, kv_heads, window, tiling, shares or batch, starts, copy)
    elif splits is not None:
        raise ValueError("splits are what out was made with: it keeps its shares")
    expect_fit("out", out, lengths, longest=longest, kv_heads=kv_heads, window=window, tiling=tiling)
    before = torch.empty(batch + 1, dtype=torch.int32, device=device)
    counting = {
        "lengths": lengths,
        "copy": out.lengths,
        "before": before,
        "faults": faults_on(device),
        "batch": batch,
        "window": window or 0,
        "longest": longest,
        "told": told,
        "TILE": tiling.tile,
        "WINDOW": window is not None,
        "AT_ONCE": AT_ONCE,
    }
    launches = [Launch(tiles_kernel, (1, 1, 1), counting, 4, 1)]
    if out.starts is not None:
        sharing = {"before": before, "starts": out.starts, "batch": batch, "shares": out.shares}
        grid = (triton.cdiv(out.shares + 1, AT_ONCE), 1, 1)
        launches.append(Launch(starts_kernel, grid, sharing | {"AT_ONCE": AT_ONCE}, 4, 1))
    return out, launches


def _shares(
    batch: int,
    longest: int,
    kv_heads: int,
    tokens: int,
    window: int | None,
    splits: int | None,
    tiling: Tiling,
    gpu: Gpu,
) -> int | None:
    """The number of shares, from the bounds of the lengths; None: one per sequence."""
    tile = tiling.tile
    seen = longest if window is None else min(longest, window + tile - 1)
    tokens = min(tokens, batch * seen)
    if splits is None:
        return shares_of(gpu, tiling, batch=batch, kv_heads=kv_heads, tokens=tokens, longest=seen)
    each = -(-max(seen, 1) // (splits * tile)) * tile
    return None if splits == 1 else max(1, -(-tokens // each))


def expect_fit(
    name: str,
    pieces: Pieces,
    lengths: torch.Tensor,
    *,
    longest: int,
    kv_heads: int,
    window: int | None,
    tiling: Tiling,
) -> None:
    """Raise ValueError if pieces were cut for something else, as far as the host can tell."""
    if pieces.lengths.device != lengths.device:
        raise ValueError(f"{name} must be on {lengths.device}, as lengths are, got {pieces.lengths.device}")
    made = pieces.batch, pieces.kv_heads, pieces.window, pieces.tiling
    wanted = len(lengths), kv_heads, window, tiling
    if made != wanted:
        said = "{} sequences, for {} KV heads, window {}, {}".format
        raise ValueError(f"{name} must be of {said(*wanted)}; got those of {said(*made)}")
    if longest > pieces.longest:
        raise ValueError(
            f"{name} must be of contexts of up to longest = {longest} tokens; got those of up to "
            f"{pieces.longest}"
        )


def cut_or_given(
    pieces: Pieces | None,
    lengths: torch.Tensor,
    *,
    longest: int,
    kv_heads: int,
    tokens: int | None,
    window: int | None,
    splits: int | None,
    tiling: Tiling,
    gpu: Gpu,
) -> tuple[Pieces, list[Launch]]:
    """The given pieces, which must fit, or those of `plan_cut` with its launches."""
    if pieces is None:
        pieces, launches = plan_cut(
            lengths, longest=longest, kv_heads=kv_heads, tokens=tokens, window=window, splits=splits,
            tiling=tiling, gpu=gpu,
        )  # fmt: skip
        needed = pieces.starts is not None or tokens is not None  # otherwise there is nothing to count
        return pieces, launches if needed else []
    if tokens is not None or splits is not None:
        raise ValueError("tokens and splits are what pieces are made with: give them to cut")
    expect_fit("pieces", pieces, lengths, longest=longest, kv_heads=kv_heads, window=window, tiling=tiling)
    return pieces, []
