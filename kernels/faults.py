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


def faults_on(device: torch.device) -> torch.Tensor:
    """[2] int64, zeros unless something is wrong; pinned, so that the GPU reaches it.

    A device without an index is the current one: "cuda" and "cuda:0" have the same.
    """
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    return _made_for(device.type, index)


@lru_cache
def _made_for(kind: str, index: int) -> torch.Tensor:
    return torch.zeros(
        2, dtype=torch.int64, device="meta" if kind == "meta" else "cpu", pin_memory=kind == "cuda"
    )


def expect_no_faults(device: torch.device) -> None:
    """Raise ValueError for what kernels on a device have found wrong so far; it is told once.

    Only then it waits for the GPU: launches under way may find the same once more.
    """
    if device.type == "meta":
        return
    found = faults_on(device).numpy()
    if not found.any():
        return
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    tokens, stale = found.tolist()
    found[:] = 0
    if tokens:
        raise ValueError(f"tokens must be at least {tokens}, the sum of the lengths; a call was given less")
    if stale:
        raise ValueError("pieces are stale: a call was given lengths that have changed since they were cut")
