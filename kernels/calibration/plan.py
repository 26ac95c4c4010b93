"""The points that a calibration will measure, the device, and the estimated time."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil
from pathlib import Path

from kvsim.kernels.calibration.device import Device, found_device
from kvsim.kernels.calibration.grid import points
from kvsim.kernels.calibration.points import EXPERTS, Point, components, launches_of, useful
from kvsim.kernels.calibration.profile import FORMAT
from kvsim.kernels.calibration.timing import Datasheet, datasheet_of, launches_wanted

GROUP = 6
"""Points of a part between two writes to the journal."""

TURNS = 5
"""Replays of long launches, including warm-up."""
SECONDS_OF_A_POINT = 0.1
"""Overhead of a point: making tensors, capturing a graph, warming up."""

SECONDS_OF_A_VARIANT: Mapping[str, float] = {
    "decode": 2.5, "latent": 2.5, "prefill": 3.5, "experts": 2.0, "experts_fp8": 2.0
}  # fmt: skip
"""Compile time of a kernel variant; 0.5 for all others."""


TIMED_BY = ("points", "launches", "layer", "steps", "all_reduce", "bench", "room", "timing", "drift")
"""The modules here that affect launches and measured times; drift.py has the sentinels."""


@dataclass(frozen=True)
class Plan:
    """The points to measure, and the device.

    Attributes
    ----------
    device : Device
        The device, with its versions.
    quick : bool
        Whether there are fewer points.
    points : tuple of Point
        All points, in order.
    """

    device: Device
    quick: bool
    points: tuple[Point, ...]

    @property
    def kind(self) -> str:
        """The kind of the profile."""
        return "rehearsal" if self.device.rehearsal else "calibrated"

    @property
    def sheet(self) -> Datasheet | None:
        """The vendor's datasheet of the device, if known."""
        return None if self.device.rehearsal else datasheet_of(self.device.name)

    @property
    def groups(self) -> list[list[Point]]:
        """Points that are measured together."""
        found = []
        for _, some in groupby(self.points, lambda point: point.part):
            part = list(some)
            found += [part[i : i + GROUP] for i in range(0, len(part), GROUP)]
        return found

    @property
    def parts(self) -> Mapping[str, int]:
        """Part -> its number of points."""
        return {part: len(list(some)) for part, some in groupby(self.points, lambda point: point.part)}

    @property
    def digest(self) -> str:
        """A hash of the points, the kernels and how they are launched."""
        text = "\n".join(f"{point.role} {point.table} {point.key}" for point in self.points)
        return hashlib.sha256(f"{FORMAT} {self.quick}\n{launching()}\n{text}".encode()).hexdigest()[:16]

    def estimated_s(self, points: list[Point] | None = None) -> float:
        """Estimated seconds for these points, or all of them; from the datasheet."""
        return sum(self._estimated_s(point) for point in (self.points if points is None else points))

    @cached_property
    def _compiling_s(self) -> Mapping[str, float]:
        """Key of a point -> seconds to compile the kernels that no earlier point uses."""
        found, known = {}, set()
        for point in self.points:
            new = set(variants_of(point)) - known
            known |= new
            found[point.key] = sum(SECONDS_OF_A_VARIANT.get(part, 0.5) for part, *_ in sorted(new, key=str))
        return found

    def _estimated_s(self, point: Point) -> float:
        if self.device.rehearsal:
            return 0.3 if point.part == "composed" else 0.03
        bandwidth = (self.sheet.gb_per_s if self.sheet else 1000) * 0.8e9
        peak = (self.sheet.tflops if self.sheet else 200) * 0.6e12
        moved, flops = useful(point)
        if point.part in {"to_host", "to_gpu"}:
            moved, bandwidth = point.x["bytes"], 2e10
        launch_s = 5e-6 + moved / bandwidth + flops / peak
        launches = launches_wanted(moved) if point.part == "composed" else launches_of(moved, flops)
        return self._compiling_s[point.key] + SECONDS_OF_A_POINT + TURNS * launches * launch_s


def variants_of(point: Point) -> Iterable[tuple[object, ...]]:
    """The separately compiled kernel variants that a point needs, each starting with the part."""
    x = point.x
    if point.part == "composed":
        return [variant for one, _ in components(x) for variant in variants_of(one)]
    if point.part in {"decode", "prefill"}:
        return [(point.part, *(x[name] for name in ("group", "head_dim", "element_bytes", "block_size")))]
    if point.part == "latent":  # further query heads take more programs
        return [(point.part, min(x["heads"], 32), x["element_bytes"], x["block_size"])]
    if point.part in EXPERTS:  # tiles of 16 rows, and up to three times doubled
        return [(point.part, min(max((ceil(x["rows"]) - 1).bit_length(), 4), 7))]
    if point.part == "elementwise":  # rows are padded to the next power of two
        return [(point.part, x["op"], x["width"].bit_length())]
    return [(point.part,)] if point.part in {"kv_write", "block_copy"} else []


def launching() -> str:
    """The source code that affects times: the kernels, how they are launched and timed."""
    from kvsim.kernels import launch

    sources = sorted(Path(launch.__file__).parent.glob("*.py")) + [
        Path(__file__).with_name(f"{name}.py") for name in TIMED_BY
    ]
    return "\n".join([*(path.read_text(encoding="utf-8") for path in sources), launch.described()])


def plan(quick: bool = False, interpret: bool = False) -> Plan:
    """The plan for this machine's first GPU, or for a rehearsal on its CPU.

    Raises
    ------
    NotInstalledError, NoGpuError, CalibrationError
        See errors.py.
    """
    device = found_device(interpret)
    return Plan(device, quick, tuple(points(device, quick)))
