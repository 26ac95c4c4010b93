"""How kernels are launched: tile sizes, warps and stages from a table, the number of shares, and a launch as
a value that can be run, or compiled without a GPU.

There is no autotuning: it needs a GPU, its choice varies from run to run, and a captured graph must not
change. The table is keyed by what determines the use of registers and shared memory: the padded head size and
the bytes of a key's element. `benchmarks/kernels.py tune` measures the alternatives on a GPU.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import torch
import triton

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter on the CPU; like Triton, read when they are defined."""

REGISTERS = 65_536
"""Registers per multiprocessor, on all NVIDIA GPUs since 2012."""
MOST_REGISTERS = 255
"""Maximum registers per thread."""

LEAST_ROWS, MOST_GROUP = 16, 32
"""A matrix instruction has at least 16 rows; more than 32 query heads per KV head need twice the warps."""

LEAST_SHARE_TOKENS = 256
"""Contexts are not split into smaller shares, as starting and merging would cost more."""


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that a launch depends on.

    Attributes
    ----------
    capability : tuple of int
        Compute capability, (9, 0) for Hopper.
    multiprocessors : int
        Number of multiprocessors.
    """

    capability: tuple[int, int]
    multiprocessors: int

    @property
    def has_fp8(self) -> bool:
        """Whether Triton converts float8_e4m3fn there."""
        return self.capability >= (8, 9)

    @property
    def shared_kib(self) -> int:
        """Shared memory of a multiprocessor, KiB."""
        return {(8, 0): 164, (8, 7): 164, (9, 0): 228, (10, 0): 228, (10, 3): 228}.get(self.capability, 100)


REHEARSAL = Gpu((9, 0), 2)
"""Stands in for the GPU in the interpreter; few multiprocessors keep the number of programs small."""


@lru_cache
def gpu_of(device: torch.device) -> Gpu:
    """The GPU that a tensor is on, or REHEARSAL."""
    if device.type != "cuda":
        return REHEARSAL
    found = torch.cuda.get_device_properties(device)
    return Gpu((found.major, found.minor), found.multi_processor_count)


@dataclass(frozen=True)
class Tiling:
    """The configuration of one program.

    Attributes
    ----------
    tile : int
        Keys and values in flight per loop iteration, in tokens; a power of two, at least 16.
    warps : int
        Warps per program.
    stages : int
        Depth of the software pipeline.
    rows : int
        Rows of the query tile (query tokens x heads of a group); 0: as many as the group needs.
    programs : int
        Programs that a multiprocessor holds at once; 0: unconstrained. The compiler gets a register limit
        that makes room for them, and decode attention starts exactly this many.
    shared_kib : int
        Shared memory per program, KiB.
    """

    tile: int
    warps: int
    stages: int
    rows: int = 0
    programs: int = 0
    shared_kib: int = 0

    @property
    def registers(self) -> int | None:
        """Maximum registers per thread so that the programs fit."""
        threads = 32 * self.warps * self.programs
        return min(REGISTERS // threads // 8 * 8, MOST_REGISTERS) if threads else None

    def at_once(self, gpu: Gpu) -> int:
        """Programs that the whole GPU holds; fewer than registers allow if shared memory is short."""
        programs = min(self.programs, gpu.shared_kib // (self.shared_kib + 1))  # the system reserves 1
        return gpu.multiprocessors * max(programs, 1)


DECODE: Mapping[tuple[int, int], Tiling] = {
    (32, 1): Tiling(128, 4, 3, programs=3, shared_kib=22),
    (32, 2): Tiling(128, 4, 3, programs=3, shared_kib=38),
    (64, 1): Tiling(128, 4, 3, programs=2, shared_kib=39),
    (64, 2): Tiling(64, 4, 3, programs=4, shared_kib=37),
    (128, 1): Tiling(64, 4, 3, programs=2, shared_kib=39),
    (128, 2): Tiling(64, 4, 3, programs=2, shared_kib=71),
    (256, 1): Tiling(64, 8, 3, programs=1, shared_kib=75),
    (256, 2): Tiling(32, 4, 3, programs=2, shared_kib=74),
}
"""(padded head size, bytes of a key's element) -> tiling of decode attention, for up to 16 query heads."""

LATENT: Mapping[int, Tiling] = {
    1: Tiling(32, 8, 2, rows=16, programs=1, shared_kib=52),
    2: Tiling(32, 8, 2, rows=32, programs=1, shared_kib=74),
}
"""Bytes of an element -> tiling of decode attention over latents of 512 numbers; `rows`: query heads per
program, as many as the registers hold."""

LATENT_ON_HOPPER: Mapping[tuple[int, int], Tiling] = {
    (1, 16): Tiling(32, 4, 2, rows=16, programs=2, shared_kib=52),
    (1, 32): Tiling(64, 8, 2, rows=32, programs=1, shared_kib=104),
    (1, 64): Tiling(64, 8, 2, rows=64, programs=1, shared_kib=180),
    (2, 32): Tiling(64, 8, 3, rows=32, programs=1, shared_kib=185),
    (2, 64): Tiling(64, 8, 2, rows=64, programs=1, shared_kib=217),
}
"""(bytes of an element, query heads per program) -> tiling on Hopper. All but (2, 32) spill some registers
and are faster nevertheless, as 64 rows suit the matrix units: 128 heads at 64 x 4096 take 369 us instead of
892 on an H200, in 8 bits 486 instead of 1,998 on an H100."""

PREFILL: Mapping[tuple[int, int], Tiling] = {
    (32, 1): Tiling(64, 8, 3, rows=128),
    (32, 2): Tiling(64, 8, 3, rows=128),
    (64, 1): Tiling(64, 8, 3, rows=128),
    (64, 2): Tiling(64, 8, 3, rows=128),
    (128, 1): Tiling(64, 8, 3, rows=128),
    (128, 2): Tiling(64, 8, 3, rows=128, programs=1),
    (256, 1): Tiling(32, 8, 2, rows=64),
    (256, 2): Tiling(32, 8, 2, rows=128),
}
"""Same keys -> tiling of prefill attention on Hopper and B200, which read operands from shared memory."""

PREFILL_IN_REGISTERS: Mapping[tuple[int, int], Tiling] = {
    (32, 1): Tiling(32, 4, 3, rows=64),
    (32, 2): Tiling(64, 8, 3, rows=128),
    (64, 1): Tiling(32, 8, 3, rows=128),
    (64, 2): Tiling(64, 8, 3, rows=128),
    (128, 1): Tiling(32, 8, 3, rows=64),
    (128, 2): Tiling(64, 8, 3, rows=64, programs=1),
    (256, 1): Tiling(32, 8, 2, rows=64),
    (256, 2): Tiling(32, 8, 2, rows=64),
}
"""The same for Ampere, Ada and consumer Blackwell, where all operands pass through registers and 99 KB
suffices. If a program takes more than half of an A100's shared memory, Triton 3.6 still spills to leave
registers for two, unless it is told that there is only one."""


def tilings() -> dict[str, dict[str, Mapping[str, object]]]:
    """The tables as plain data: table -> "head size x bytes of an element", or bytes and heads -> tiling."""
    latents = {(512, size): tiling for size, tiling in LATENT.items()}
    tables = {
        "decode": DECODE, "latent": latents, "prefill": PREFILL, "prefill_in_registers": PREFILL_IN_REGISTERS
    }  # fmt: skip
    found = {
        name: {f"{head_dim} x {size}": asdict(tiling) for (head_dim, size), tiling in table.items()}
        for name, table in tables.items()
    }
    hopper = {
        f"512 x {size}, {rows} heads": asdict(tiling) for (size, rows), tiling in LATENT_ON_HOPPER.items()
    }
    return found | {"latent_on_hopper": hopper}


def described() -> str:
    """The tables as text, to record with a measurement."""
    return f"{LEAST_SHARE_TOKENS}\n{DECODE}\n{LATENT}\n{LATENT_ON_HOPPER}\n{PREFILL}\n{PREFILL_IN_REGISTERS}"


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def decode_tiling(head_dim: int, element_bytes: int, group: int = 1) -> Tiling:
    """The entry of DECODE for a head size; more query heads per KV head take more registers."""
    found = DECODE[next_power_of_2(head_dim), element_bytes]
    if group > MOST_GROUP:
        return replace(found, warps=8, programs=1, stages=min(found.stages, 2))
    return replace(found, programs=min(found.programs, 2)) if group > LEAST_ROWS else found


def latent_tiling(element_bytes: int, heads: int, gpu: Gpu) -> Tiling:
    """The entry of LATENT or LATENT_ON_HOPPER for `heads` query heads."""
    if gpu.capability[0] != 9:
        return LATENT[element_bytes]
    if heads % 64 == 0:
        return LATENT_ON_HOPPER[element_bytes, 64]
    return LATENT_ON_HOPPER[element_bytes, 16 if element_bytes == 1 and heads <= LEAST_ROWS else 32]


def prefill_tiling(head_dim: int, element_bytes: int, gpu: Gpu) -> Tiling:
    """The entry of PREFILL or PREFILL_IN_REGISTERS for a head size."""
    table = PREFILL if gpu.capability[0] in {9, 10} else PREFILL_IN_REGISTERS
    return table[next_power_of_2(head_dim), element_bytes]


def shares_of(
    gpu: Gpu, tiling: Tiling, *, batch: int, kv_heads: int, tokens: int, longest: int
) -> int | None:
    """The number of programs per KV head that share all contexts; None: one program per sequence.

    Parameters
    ----------
    gpu, tiling : Gpu, Tiling
        The GPU, and the program's configuration.
    batch, kv_heads : int
        Sequences, and KV heads.
    tokens, longest : int
        Tokens of all contexts, and of the longest one, or the part of it in the window.
    """
    programs = tiling.at_once(gpu)
    if batch * kv_heads <= programs and longest < 2 * LEAST_SHARE_TOKENS:
        return None
    wanted = max(batch, -(-tokens // max(LEAST_SHARE_TOKENS, tiling.tile)))
    return max(1, min(programs // kv_heads, wanted))


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, not yet run.

    Attributes
    ----------
    kernel : triton.JITFunction
        The kernel, or its interpreted counterpart.
    grid : tuple of int
        Programs along the three axes.
    arguments : Mapping
        Every argument of the kernel by name, including constexpr ones.
    warps, stages, registers : int
        As in Tiling; None: the compiler chooses the number of registers.
    """

    kernel: triton.JITFunction
    grid: tuple[int, int, int]
    arguments: Mapping[str, object]
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> Mapping[str, object]:
        """The compiler options besides the arguments."""
        found = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return found | ({"maxnreg": self.registers} if self.registers else {})

    def run(self) -> None:
        """Start the kernel on the current stream; an empty grid launches nothing."""
        if 0 not in self.grid:
            self.kernel[self.grid](**self.arguments, **self.options)
