"""The public tables of measured kernels: each row as a calibration point, and which rows are refused.

Source: ai-dynamo/aiconfigurator at 095f58a (Apache-2.0, NVIDIA). A row is one call in milliseconds inside a
CUDA graph. `Sieve` refuses three kinds of rows. The same keys, or six weight matrices, are replayed, so small
data may come from the L2 cache. Some rows are faster than the datasheet allows. And some products take 1.5
times as long as the same matrix with fewer and with more tokens, because the GPU was disturbed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq

from kvsim.kernels.calibration.fit import Measured
from kvsim.kernels.calibration.points import MAIN, Point

Row = Mapping[str, object]

HELD_OUT_OF_100 = 15
"""Percentage of rows, and of whole shapes, that are held out: drawn by the CRC of their names, so fixed."""

DISTURBED = 1.5
"""A product that is this many times as slow as the same matrix with more tokens, and with fewer (up to NEAR
times), was disturbed. This concerns 4.8 % of a B200's fp8 products, which are twice as slow as their
neighbours, and at most 0.8 % of all others. For the fewest tokens, only those with more are compared, as a
product may be padded. On B200 and its kin, fp8 products of one token, the first to be timed, take two to
three times as long as those of two."""
NEAR = 4

RESIDENT_MATRICES = 6
"""Weight matrices that the tables' product benchmark cycles through."""


@dataclass(frozen=True)
class Gpu:
    """A GPU in the tables, by its datasheet: dense peaks in TFLOP/s by bytes of an input number."""

    table: str
    name: str
    memory_gib: int
    multiprocessors: int
    capability: tuple[int, int]
    l2_mb: int
    gb_per_s: float
    tflops: Mapping[float, float]
    link_gb_per_s: float | None
    pcie_gb_per_s: float

    @property
    def one_launch(self) -> bool:
        """Whether vLLM's attention over a 16-bit cache is FlashAttention 2: one launch, prompts and decodes.

        Hopper uses FlashAttention 3 and 4, B200 and its kin FlashInfer, which either pack the heads of a
        group or launch separately. The tables' column `kernel_source` says which is used.
        """
        return self.capability[0] in (8, 12)


GPUS = (
    Gpu("a100_sxm", "a100-80gb", 80, 108, (8, 0), 40, 2039, {2: 312}, 300, 32),
    Gpu("h100_sxm", "h100", 80, 132, (9, 0), 50, 3350, {2: 989, 1: 1979}, 450, 64),
    Gpu("h200_sxm", "h200", 141, 132, (9, 0), 50, 4800, {2: 989, 1: 1979}, 450, 64),
    Gpu("b200_sxm", "b200", 180, 148, (10, 0), 126, 7700, {2: 2250, 1: 4500, 0.5625: 9000}, 900, 64),
    Gpu("gb200", "gb200", 186, 152, (10, 0), 126, 8000, {2: 2500, 1: 5000, 0.5625: 10000}, 900, 64),
    Gpu("b300_sxm", "b300", 270, 148, (10, 3), 126, 8000, {2: 2250, 1: 4500, 0.5625: 13500}, 900, 64),
    Gpu("l40s", "l40s", 48, 142, (8, 9), 96, 864, {2: 362, 1: 733}, None, 32),
    Gpu(
        *("rtx_pro_6000_server", "rtx-pro-6000-server", 96, 188, (12, 0), 128, 1597),
        *({2: 504, 1: 1007, 0.5625: 2015}, None, 64),
    ),
)


def rows(tables: Path, file: str, gpu: Gpu, **wanted: object) -> list[dict[str, object]]:
    """The rows of a GPU with these values, from the newest version that has any."""
    filters = [("gpu", "=", gpu.table), *((name, "=", value) for name, value in wanted.items())]
    found = pq.read_table(tables / f"{file}.parquet", filters=filters).to_pylist()
    newest = max((release(row) for row in found), default=())
    return [row for row in found if release(row) == newest]


def release(row: Row) -> tuple[int, ...]:
    """`0.24.0` as numbers."""
    return tuple(int(part) for part in str(row["version"]).split("."))


def drawn(*names: object) -> bool:
    """Whether the row or shape with these names is held out."""
    return crc32(repr(names).encode()) % 100 < HELD_OUT_OF_100


@dataclass
class Sieve:
    """Refuses impossible rows: those faster than the GPU, and those read from its L2 cache.

    Attributes
    ----------
    refused : dict
        Part -> reason -> number of rows.
    """

    gpu: Gpu
    refused: dict[str, dict[str, int]] = field(default_factory=dict)

    def kept(self, part: str, found: Iterator["Timed"], peak_tflops: float) -> list[Measured]:
        """The remaining rows, as measured points."""
        timed = list(found)
        reached = [
            each.read_bytes / each.seconds
            for each in timed
            if each.replayed_bytes > 2e6 * self.gpu.l2_mb and each.role != "held_out"
        ]
        memory = min(float(np.quantile(reached, 0.99)), self.gpu.gb_per_s * 1e9) if reached else np.inf
        kept, disturbed = [], disturbed_of(timed) if part == "product" else set()
        for i, each in enumerate(timed):
            reason = self._reason(each, memory, peak_tflops * 1e12)
            if reason is None and i in disturbed:
                reason = "disturbed: fewer and more tokens with the same matrix take much less"
            if reason is None:
                kept.append(each.measured(part))
            else:
                reasons = self.refused.setdefault(part, {})
                reasons[reason] = reasons.get(reason, 0) + 1
        return kept

    def _reason(self, each: "Timed", memory: float, peak: float) -> str | None:
        if each.flops / each.seconds > peak:
            return "more than the peak"
        bandwidth = each.read_bytes / each.seconds
        if bandwidth > self.gpu.gb_per_s * 1e9:
            return "more than the bandwidth of the datasheet"
        if each.replayed_bytes < 1e6 * self.gpu.l2_mb and bandwidth > memory:
            return "read from the L2 cache: more than any larger row reaches"
        return None


def disturbed_of(products: Sequence["Timed"]) -> set[int]:
    """Products much slower than the same matrix with more tokens and, if any, with fewer."""
    matrices: dict[tuple[float, float], list[tuple[float, float, int]]] = {}
    for i, each in enumerate(products):
        row = each.x["tokens"], each.seconds, i
        matrices.setdefault((each.x["inputs"], each.x["outputs"]), []).append(row)
    found = set()
    for some in matrices.values():
        some.sort()
        least = np.inf
        later = [least := min(least, seconds) for _, seconds, _ in reversed(some)][::-1]
        for at, (tokens, seconds, i) in enumerate(some):
            fewer = [other for n, other, _ in some[max(at - NEAR, 0) : at] if n * NEAR >= tokens]
            if seconds > DISTURBED * max(min(fewer, default=0), later[at]):
                found.add(i)
    return found


@dataclass(frozen=True)
class Timed:
    """A row: what was launched, its cell, and the least it must read and compute.

    `new_shape`: no row with its heads, matrices or experts is used in a fit.
    """

    x: Mapping[str, float]
    cell: Mapping[str, float] | None
    seconds: float
    read_bytes: float
    replayed_bytes: float
    flops: float
    held_out: bool
    new_shape: bool

    @property
    def role(self) -> str:
        """The role of the point: a cell of the table, or held out."""
        return "held_out" if self.held_out or self.new_shape or self.cell is None else "grid"

    def measured(self, part: str) -> Measured:
        """The row as a calibration point."""
        x = {**self.x, "new_shape": self.new_shape}
        point = Point(part, x, self.role, MAIN, dict(self.cell or {}))
        return Measured(point, self.seconds, self.seconds, self.seconds, 1)
