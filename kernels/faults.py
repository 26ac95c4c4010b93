"""Errors that only the GPU detects: kernels write them to host memory, which the host reads without waiting.

    tokens    the sum of the lengths, if it is above the host's bound
    stale     a sequence whose length differs from that when the pieces were cut, and its length
    longest   a sequence with a length below 0 or above `longest`, that length, and `longest`

Waiting for the GPU would stall the launch, so these errors come late, like CUDA's own: from a later call that
takes lengths, or from `expect_no_faults`, which an engine calls when it waits for the GPU anyway, as for
sampled tokens. With too small a sum or stale pieces the result is correct, but work is less evenly
distributed. A length out of bounds is clipped, so nothing beyond a block table is read.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

PLACES = 4
TOKENS = 0
"""The index of the sum; then come the stale sequence, the one that is too long, and `longest`."""


@triton.jit
def named(seq, length):
    """A sequence and its length as one number, so that both are written at once; never 0."""
    within = tl.minimum(tl.maximum(length, -2147483647), 2147483647)
    return ((seq + 1).to(tl.int64) << 32) + within.to(tl.int64)


@triton.jit
def bounded(length, longest):
    """Lengths, clipped to the valid range."""
    return tl.minimum(tl.maximum(length, 0), longest).to(tl.int32)


@triton.jit
def tell_tokens(faults, tokens, told):
    """Report that the lengths sum to more than `told` tokens."""
    tl.store(faults, tokens, mask=tokens > told)


@triton.jit
def tell_stale(faults, who, is_stale):
    """Report a stale piece; `who`: a sequence and its length, from `named`."""
    tl.store(faults + 1, who, mask=is_stale)


@triton.jit
def tell_longest(faults, who, longest, is_longer):
    """Report a length out of bounds; `who`: a sequence and its length, from `named`."""
    tl.store(faults + 2, who, mask=is_longer)
    tl.store(faults + 3, tl.zeros_like(who) + longest, mask=is_longer)


def faults_on(device: torch.device) -> torch.Tensor:
    """[PLACES] int64 in pinned memory, which the GPU can access; zeros unless there are errors.

    A device without an index is the current one: "cuda" and "cuda:0" share one tensor.
    """
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    return _made_for(device.type, index)


@lru_cache
def _made_for(kind: str, index: int) -> torch.Tensor:
    return torch.zeros(
        PLACES, dtype=torch.int64, device="meta" if kind == "meta" else "cpu", pin_memory=kind == "cuda"
    )


def expect_no_faults(device: torch.device) -> None:
    """Raise ValueError for errors that kernels on a device have found so far; each is raised once.

    Waits for the GPU only if there is an error and no graph is being captured, since launches in flight may
    report the same error again.
    """
    if device.type == "meta":
        return
    found = faults_on(device).numpy()
    if not found.any():
        return
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize(device)
    tokens, stale, longer, longest = found.tolist()
    found[:] = 0
    if longer:
        seq, length = read(longer)
        raise ValueError(
            f"longest must be at least every length; sequence {seq} has length {length}, and a call was "
            f"given longest = {longest}"
        )
    if tokens:
        raise ValueError(f"tokens must be at least {tokens}, the sum of the lengths; a call was given less")
    if stale:
        seq, length = read(stale)
        raise ValueError(
            f"pieces are stale: sequence {seq} has length {length}, another than they were cut of"
        )


def read(who: int) -> tuple[int, int]:
    """(sequence, length) from a value made by `named`."""
    after = (who + 2**31) >> 32
    return after - 1, who - (after << 32)
