"""How kernels are launched: tile sizes, warps and stages from an explicit table, the length of a piece,
and a launch as a value that can be run, or compiled without a GPU.

No autotuning: it needs a GPU, its choice differs from run to run, and a captured graph must not change.
The table is by what the registers and the shared memory must hold: the padded head size and the bytes of a
key's element. `benchmarks/kernels.py tune` measures the alternatives on a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter on the CPU: read when they are defined, as Triton does."""

PROGRAMS_PER_MULTIPROCESSOR = 4
"""Programs of the decode kernel that a multiprocessor should have at once, to keep enough loads in flight."""

LEAST_CHUNK_TOKENS = 256
"""A context is not split into pieces shorter than this: below it, starting and reducing costs more."""


@dataclass(frozen=True)
class Gpu:
    """What a launch depends on.

    Attributes
    ----------
    capability : tuple of int
        Compute capability, (9, 0) for Hopper.
    multiprocessors : int
        How many there are.
    """

    capability: tuple[int, int]
    multiprocessors: int

    @property
    def has_fp8(self) -> bool:
        """Whether Triton converts float8_e4m3fn there."""
        return self.capability >= (8, 9)


REHEARSAL = Gpu((9, 0), 2)
"""Stands for the GPU in the interpreter; few multiprocessors, so that few programs are interpreted."""


@lru_cache
def gpu_of(device: torch.device) -> Gpu:
    """The GPU that a tensor is on, or REHEARSAL."""
    if device.type != "cuda":
        return REHEARSAL
    found = torch.cuda.get_device_properties(device)
    return Gpu((found.major, found.minor), found.multi_processor_count)


@dataclass(frozen=True)
class Tiling:
    """How one program works.

    Attributes
    ----------
    tile : int
        Keys and values in flight per loop iteration, in tokens; a power of two, at least 16.
    warps : int
        Warps of a program.
    stages : int
        Depth of the software pipeline.
    rows : int
        Rows of the query tile (query tokens x heads of a group); 0: as many as the group needs.
    """

    tile: int
    warps: int
    stages: int
    rows: int = 0


DECODE: Mapping[tuple[int, int], Tiling] = {
    (32, 1): Tiling(128, 4, 3),
    (32, 2): Tiling(128, 4, 3),
    (64, 1): Tiling(128, 4, 3),
    (64, 2): Tiling(64, 4, 3),
    (128, 1): Tiling(64, 4, 3),
    (128, 2): Tiling(64, 4, 2),
    (256, 1): Tiling(64, 8, 3),
    (256, 2): Tiling(32, 4, 3),
}
"""(padded head size, bytes of an element of the keys) -> tiling of decode attention."""

PREFILL: Mapping[tuple[int, int], Tiling] = {
    (32, 1): Tiling(64, 8, 3, rows=128),
    (32, 2): Tiling(64, 8, 3, rows=128),
    (64, 1): Tiling(64, 8, 3, rows=128),
    (64, 2): Tiling(64, 8, 3, rows=128),
    (128, 1): Tiling(64, 8, 3, rows=128),
    (128, 2): Tiling(64, 8, 3, rows=128),
    (256, 1): Tiling(32, 8, 2, rows=64),
    (256, 2): Tiling(32, 8, 2, rows=128),
}
"""The same for prefill attention, on Hopper and B200: operands are read from shared memory."""

PREFILL_IN_REGISTERS: Mapping[tuple[int, int], Tiling] = {
    (32, 1): Tiling(32, 4, 3, rows=64),
    (32, 2): Tiling(64, 8, 3, rows=128),
    (64, 1): Tiling(32, 8, 3, rows=128),
    (64, 2): Tiling(64, 8, 3, rows=128),
    (128, 1): Tiling(32, 8, 3, rows=64),
    (128, 2): Tiling(64, 8, 3, rows=64),
    (256, 1): Tiling(32, 8, 2, rows=32),
    (256, 2): Tiling(32, 8, 2, rows=64),
}
"""The same on Ampere, Ada and consumer Blackwell: all operands pass through registers, 99 KB will do."""


def described() -> str:
    """The tables, as text: what a measurement was made with."""
    limits = {"programs": PROGRAMS_PER_MULTIPROCESSOR, "least": LEAST_CHUNK_TOKENS}
    tables = {"decode": DECODE, "prefill": PREFILL, "prefill_in_registers": PREFILL_IN_REGISTERS}
    return "\n".join(f"{name} {table}" for name, table in (limits | tables).items())


def next_power_of_2(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def decode_tiling(head_dim: int, element_bytes: int) -> Tiling:
    """The entry of DECODE for a head size."""
    return DECODE[next_power_of_2(head_dim), element_bytes]


def prefill_tiling(head_dim: int, element_bytes: int, gpu: Gpu) -> Tiling:
    """The entry of PREFILL or PREFILL_IN_REGISTERS for a head size."""
    table = PREFILL if gpu.capability[0] in {9, 10} else PREFILL_IN_REGISTERS
    return table[next_power_of_2(head_dim), element_bytes]


def piece_tokens(gpu: Gpu, token_heads: int, longest: int, tile: int) -> int:
    """How long a piece of a context should be.

    Parameters
    ----------
    gpu : Gpu
        Where it runs.
    token_heads : int
        Tokens of all contexts x KV heads.
    longest : int
        The longest context, or what of it lies in the window.
    tile : int
        Tokens of one loop iteration: a piece is a whole number of them.

    Returns
    -------
    int
        Such that the pieces of the longest context are even, and all pieces together about as many as the
        programs that the GPU holds at once.
    """
    programs = gpu.multiprocessors * PROGRAMS_PER_MULTIPROCESSOR
    pieces = round(longest * programs / max(token_heads, 1))
    pieces = max(1, min(pieces, longest // max(LEAST_CHUNK_TOKENS, tile)))
    return max(1, -(-longest // (pieces * tile))) * tile


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: nothing has run yet.

    Attributes
    ----------
    kernel : triton.JITFunction
        The kernel, or its interpreted double.
    grid : tuple of int
        Programs along the three axes.
    arguments : Mapping
        Every argument of the kernel by name, constexpr ones included.
    warps, stages : int
        As in Tiling.
    """

    kernel: triton.JITFunction
    grid: tuple[int, int, int]
    arguments: Mapping[str, object]
    warps: int
    stages: int

    @property
    def options(self) -> Mapping[str, object]:
        """What the compiler is told beside the arguments."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def run(self) -> None:
        """Start the kernel on the current stream; nothing to do is nothing launched."""
        if 0 not in self.grid:
            self.kernel[self.grid](**self.arguments, **self.options)
