"""How contexts are cut among the programs of decode attention: pieces of one length, numbered through.

    contexts      |--------------------------|   |---|   |------|
    pieces        |   0   |   1   |   2   |3 |   | 4 |   |  5   |        before = [0, 4, 5, 6]

A program computes one piece for one KV head. The length of a piece follows from all tokens of the batch and
from the programs that fill the GPU: a long sequence among many short ones is cut into so many pieces that no
program takes much longer than each place on the GPU is busy anyway. (A number of splits that follows from the
count of the sequences would leave the long one to one program a head.)

`before` holds the number of the first piece of each sequence; a program finds its own by bisection. It is the
same in all layers of a step, so engines compute it once: `cut`. The host needs only two bounds that it knows,
the longest context and the sum of all.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvsim.kernels.checks import INTEGERS, expect_between, expect_tensor
from kvsim.kernels.launch import Gpu, Launch, Tiling, decode_tiling, gpu_of, piece_tokens

AT_ONCE = 1024
"""Sequences whose pieces are counted in one go."""


@dataclass(frozen=True)
class Pieces:
    """Contexts cut into pieces.

    Attributes
    ----------
    tokens : int
        Length of a piece, a whole number of tiles; the last one of a sequence may be shorter.
    most : int
        No more pieces than this.
    before : Tensor or None
        [batch + 1] int32: pieces of the sequences before each; None where every sequence is one piece.
    """

    tokens: int
    most: int
    before: torch.Tensor | None


@triton.jit(do_not_specialize=["batch", "chunk", "window"])
def pieces_kernel(
    lengths,  # [batch]
    before,  # int32 [batch + 1]
    batch,
    chunk,
    window,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Running sum of the sequences' pieces, by one program."""
    total = 0
    tl.store(before, total)
    for start in range(0, batch, AT_ONCE):
        seq = start + tl.arange(0, AT_ONCE)
        length = tl.load(lengths + seq, mask=seq < batch, other=0).to(tl.int32)
        begin = tl.zeros_like(length)
        if WINDOW:
            begin = tl.maximum(length - window, 0) // TILE * TILE
        upto = total + tl.cumsum((length - begin + chunk - 1) // chunk, 0)
        tl.store(before + 1 + seq, upto, mask=seq < batch)
        total = tl.max(upto, 0)


def cut(
    lengths: torch.Tensor,
    *,
    longest: int,
    kv_heads: int,
    head_dim: int,
    element_bytes: int = 2,
    tokens: int | None = None,
    window: int | None = None,
    splits: int | None = None,
    tiling: Tiling | None = None,
    gpu: Gpu | None = None,
) -> Pieces:
    """Cut contexts, once for all layers of a step.

    Parameters
    ----------
    lengths : Tensor
        [batch] int32 or int64: tokens of each sequence, 0 for none.
    longest, tokens : int
        No length is above `longest`, and their sum not above `tokens`; `batch * longest` when not given.
    kv_heads, head_dim, element_bytes : int
        Of the keys.
    window, splits, tiling
        As in `decode_attention`.

    Returns
    -------
    Pieces
        `before` is filled on the current stream.

    Raises
    ------
    TypeError, ValueError
        They name the argument.
    """
    pieces, launches = plan_cut(
        lengths, longest=longest, kv_heads=kv_heads, tokens=tokens, window=window, splits=splits,
        tiling=tiling or decode_tiling(head_dim, element_bytes), gpu=gpu,
    )  # fmt: skip
    for launch in launches:
        launch.run()
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
    tokens = batch * longest if tokens is None else tokens
    expect_between("tokens", tokens, 0, batch * longest)
    expect_between("splits", 1 if splits is None else splits, 1, 65535)
    seen = longest if window is None else min(longest, window + tile - 1)
    tokens = min(tokens, batch * seen)
    if splits is None:
        chunk = piece_tokens(gpu or gpu_of(lengths.device), tokens * kv_heads, seen, tile)
    else:
        chunk = max(1, -(-seen // (splits * tile))) * tile
    each = max(1, -(-seen // chunk))
    if each == 1:
        return Pieces(chunk, batch, None), []
    before = torch.empty(batch + 1, dtype=torch.int32, device=lengths.device)
    arguments = {
        "lengths": lengths,
        "before": before,
        "batch": batch,
        "chunk": chunk,
        "window": window or 0,
        "TILE": tile,
        "WINDOW": window is not None,
        "AT_ONCE": AT_ONCE,
    }
    pieces = Pieces(chunk, min(batch * each, tokens // chunk + batch), before)
    return pieces, [Launch(pieces_kernel, (1, 1, 1), arguments, 4, 1)]
