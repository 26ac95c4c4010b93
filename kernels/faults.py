"""What only the GPU sees to be wrong: kernels write it into the host's memory, which is read without waiting.

    tokens   the sum of the lengths, where it is above what the host said
    pieces   1, where a share has not as many tiles as when it was cut: the lengths have changed since

To ask the GPU would stall the launch. So these errors come late, as CUDA's own do: from a later call of what
takes `tokens` or pieces, or from `expect_no_faults`, which an engine asks where it waits for the GPU anyway,
as for sampled tokens. What was computed is right; the programs were not as even as they could be.
"""

from functools import lru_cache

import torch

TOKENS, PIECES = 0, 1
"""Places of the two."""


@lru_cache
def faults_on(device: torch.device) -> torch.Tensor:
    """[2] int64, zeros unless something is wrong; pinned, so that the GPU reaches it."""
    meta, pinned = device.type == "meta", device.type == "cuda"
    return torch.zeros(2, dtype=torch.int64, device="meta" if meta else "cpu", pin_memory=pinned)


def expect_no_faults(device: torch.device) -> None:
    """Raise ValueError for what kernels on a device have found wrong so far; it is told once."""
    if device.type == "meta":
        return
    found = faults_on(device).numpy()
    if not found.any():
        return
    tokens, stale = found.tolist()
    found[:] = 0
    if tokens:
        raise ValueError(f"tokens must be at least {tokens}, the sum of the lengths; a call was given less")
    if stale:
        raise ValueError("pieces are stale: a call was given lengths that have changed since they were cut")
