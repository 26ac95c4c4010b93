"""How the contexts are shared out among the programs of decode attention: evenly, in stretches of tiles.

    contexts   |----------------------------|----|-------|    tiles of all sequences, one behind the other
    shares     |    0    |    1    |    2    |    3     |    starts = [(0, 0), (0, 10), (0, 20), (1, 0), ...]

There are as many shares as the GPU holds programs at once, divided by the KV heads, so that there is no last
wave that most of the GPU waits for; where there is little to do, fewer, so that each has some tiles still. A
program works through its share, sequence by sequence. A sequence that lies in one share is done then; of one
that is cut each share leaves a part, and a second kernel merges them. Where all programs fit the GPU at once
and no context is worth cutting, each sequence has a program of its own, and nothing is merged.

`starts` holds where each share begins, (sequence, tile of it). It is the same in all layers of a step, so
engines compute it once: `cut`. The next step has other lengths, and pieces of before are refused: by torch's
count of writes to the tensor, before anything is launched; where a captured graph or a kernel wrote it, which
torch does not count, by the kernel, late (faults.py). Shares cover all sequences to their ends, whatever the
lengths are by then, so the result is right even so.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvsim.kernels.checks import INTEGERS, expect_between, expect_tensor
from kvsim.kernels.faults import expect_no_faults, faults_on
from kvsim.kernels.launch import Gpu, Launch, Tiling, decode_tiling, gpu_of, shares_of

AT_ONCE = 1024
"""Sequences whose tiles are counted in one go."""


@dataclass(frozen=True)
class Pieces:
    """Contexts shared out.

    Attributes
    ----------
    batch, tile, kv_heads, window : int
        Sequences, tokens of a tile, and KV heads and window of whom they are for.
    shares : int
        How many there are, for each KV head.
    starts : Tensor or None
        [shares + 1, 3] int32: the sequence and the tile of it that each share begins with, and how many tiles
        lie before; None where every sequence is a share.
    lengths, writes : Tensor, int or None
        What they were made of, and how often it had been written by then; None where torch does not count.
    """

    batch: int
    tile: int
    kv_heads: int
    window: int | None
    shares: int
    starts: torch.Tensor | None
    lengths: torch.Tensor
    writes: int | None


@triton.jit
def tiles_of(length, window, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Tiles of contexts of these lengths, or of what of them lies in the window."""
    begin = tl.zeros_like(length)
    if WINDOW:
        begin = tl.maximum(length - window, 0) // TILE * TILE
    return (length - begin + TILE - 1) // TILE


@triton.jit(do_not_specialize=["batch", "window", "told"])
def tiles_kernel(
    lengths,  # [batch]
    before,  # int32 [batch + 1]
    faults,  # int64 [2], the host's
    batch,
    window,
    told,  # tokens of all sequences, at most
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Running sum of the sequences' tiles, by one program; it finds more tokens than it was told."""
    total, tokens = 0, tl.full((), 0, tl.int64)
    tl.store(before, total)
    for start in range(0, batch, AT_ONCE):
        seq = start + tl.arange(0, AT_ONCE)
        length = tl.load(lengths + seq, mask=seq < batch, other=0).to(tl.int32)
        tokens += tl.sum(length.to(tl.int64), 0)
        upto = total + tl.cumsum(tiles_of(length, window, TILE, WINDOW), 0)
        tl.store(before + 1 + seq, upto, mask=seq < batch)
        total = tl.max(upto, 0)
    tl.store(faults, tokens, mask=tokens > told)


@triton.jit(do_not_specialize=["batch", "shares"])
def starts_kernel(
    before,  # int32 [batch + 1]
    starts,  # int32 [shares + 1, 3]
    batch,
    shares,
    AT_ONCE: tl.constexpr,
):
    """Where each share begins: the last sequence that no more tiles lie before. The first begins with all."""
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
    tl.store(starts + 3 * share, low, mask=share <= shares)
    skipped = tile - tl.load(before + low, mask=share <= shares, other=0)
    tl.store(starts + 3 * share + 1, tl.where(share == 0, 0, skipped), mask=share <= shares)
    tl.store(starts + 3 * share + 2, tile, mask=share <= shares)


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
    gpu: Gpu | None = None,
) -> Pieces:
    """Share out contexts, once for all layers of a step.

    Parameters
    ----------
    lengths : Tensor
        [batch] int32 or int64: tokens of each sequence, 0 for none.
    longest, tokens : int
        No length is above `longest`, and their sum not above `tokens`, `batch * longest` when not given.
    kv_heads, head_dim, element_bytes, group : int
        Of the keys, and query heads of each of their heads: how many programs run at once follows from them.
    window, splits, tiling
        As in `decode_attention`.

    Returns
    -------
    Pieces
        `starts` is filled on the current stream.

    Raises
    ------
    TypeError, ValueError
        They name the argument. A sum above `tokens` is told late (faults.py).
    """
    pieces, launches = plan_cut(
        lengths, longest=longest, kv_heads=kv_heads, tokens=tokens, window=window, splits=splits,
        tiling=tiling or decode_tiling(head_dim, element_bytes, group), gpu=gpu,
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
    gpu: Gpu | None = None,
) -> tuple[Pieces, list[Launch]]:
    """What `cut` returns, with nothing launched yet."""
    expect_tensor("lengths", lengths, lengths.shape[:1], INTEGERS)
    (batch,), tile = lengths.shape, tiling.tile
    most = batch * longest
    told = most if tokens is None else tokens
    expect_between("tokens", told, 0, most)
    expect_between("splits", 1 if splits is None else splits, 1, 65535)
    seen = longest if window is None else min(longest, window + tile - 1)
    tokens = min(told, batch * seen)
    if splits is None:
        shares = shares_of(
            gpu or gpu_of(lengths.device), tiling, batch=batch, kv_heads=kv_heads, tokens=tokens, longest=seen
        )
    else:
        each = -(-max(seen, 1) // (splits * tile)) * tile
        shares = None if splits == 1 else max(1, -(-tokens // each))
    before = torch.empty(batch + 1, dtype=torch.int32, device=lengths.device)
    counting = {
        "lengths": lengths,
        "before": before,
        "faults": faults_on(lengths.device),
        "batch": batch,
        "window": window or 0,
        "told": told,
        "TILE": tile,
        "WINDOW": window is not None,
        "AT_ONCE": AT_ONCE,
    }
    counted = Launch(tiles_kernel, (1, 1, 1), counting, 4, 1)
    made_of = lengths, writes_of(lengths)
    if shares is None:  # nothing to cut; but whoever tells a sum is told when it is wrong
        return Pieces(batch, tile, kv_heads, window, batch, None, *made_of), [counted] * (told < most)
    starts = torch.empty((shares + 1, 3), dtype=torch.int32, device=lengths.device)
    sharing = {"before": before, "starts": starts, "batch": batch, "shares": shares, "AT_ONCE": AT_ONCE}
    return Pieces(batch, tile, kv_heads, window, shares, starts, *made_of), [
        counted,
        Launch(starts_kernel, (triton.cdiv(shares + 1, AT_ONCE), 1, 1), sharing, 4, 1),
    ]


def writes_of(tensor: torch.Tensor) -> int | None:
    """How often torch has written into a tensor's memory; None in inference mode, where it does not count."""
    return None if tensor.is_inference() else tensor._version


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
    """Pieces that were given, which must be of these lengths, or those of `plan_cut` and its launches."""
    if pieces is None:
        return plan_cut(
            lengths, longest=longest, kv_heads=kv_heads, tokens=tokens, window=window, splits=splits,
            tiling=tiling, gpu=gpu,
        )  # fmt: skip
    if tokens is not None or splits is not None:
        raise ValueError("tokens and splits are what pieces are made with: give them to cut")
    made = pieces.batch, pieces.tile, pieces.kv_heads, pieces.window
    wanted = len(lengths), tiling.tile, kv_heads, window
    if made != wanted:
        said = "{} sequences in tiles of {} tokens, for {} KV heads, window {}".format
        raise ValueError(f"pieces must be of {said(*wanted)}; got those of {said(*made)}")
    if (pieces.lengths.data_ptr(), pieces.writes) != (lengths.data_ptr(), writes_of(lengths)):
        raise ValueError(
            "pieces are stale: they must be of the tensor lengths, and that not written since they were cut"
        )
    return pieces, []
