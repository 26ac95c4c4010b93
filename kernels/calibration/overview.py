"""A calibration's plan in plain numbers: the points of each part, those left out, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kvsim.kernels.calibration.errors import DeviceLostError
from kvsim.kernels.calibration.grid import points
from kvsim.kernels.calibration.journal import Journal
from kvsim.kernels.calibration.plan import Plan
from kvsim.kernels.calibration.points import Point
from kvsim.kernels.calibration.timing import words_of

Values = tuple[float, float] | tuple[str, ...]
"""(minimum, maximum) of numbers; all values of strings."""

BOUNDLESS_BYTES = 2**62
NEWEST = (99, 0)


@dataclass(frozen=True)
class PlannedPart:
    """The points of a part.

    Attributes
    ----------
    part : str
        A part of the profile; or "ceilings", "launch" or "composed".
    points, held_out, done : int
        Numbers of all points, of held-out ones, and of those in the journal.
    values : Mapping
        Launch argument -> its values.
    left_s : float
        Estimated time for the points still to be measured.
    """

    part: str
    points: int
    held_out: int
    done: int
    values: Mapping[str, Values]
    left_s: float


def overview(planned: Plan, journal: Journal) -> list[PlannedPart]:
    """Every part, in the order of measurement."""
    found = []
    for part, some in groupby(planned.points, lambda point: point.part):
        members = list(some)
        left = [point for point in members if point.key not in journal.samples]
        held_out = sum(point.role == "held_out" for point in members)
        found.append(
            PlannedPart(
                part, len(members), held_out, len(members) - len(left), values_of(members),
                planned.estimated_s(left),
            )
        )  # fmt: skip
    return found


def values_of(some: Sequence[Point]) -> dict[str, Values]:
    """For every launch argument, the values at which it is measured."""
    columns: dict[str, list[float | str]] = {}
    for point in some:
        for name, value in point.x.items():
            columns.setdefault(name, []).append(value)
    found: dict[str, Values] = {}
    for name, column in columns.items():
        numbers = [value for value in column if not isinstance(value, str)]
        texts = dict.fromkeys(value for value in column if isinstance(value, str))
        found[name] = tuple(texts) if texts else (min(numbers), max(numbers))
    return found


def left_out(planned: Plan) -> dict[str, str]:
    """Part -> which of its points are not measured on this device, and why."""
    device, here = planned.device, {point.key for point in planned.points}
    found = {}
    if not device.rehearsal:
        for why, other in (
            ("would not fit the memory", replace(device, memory_bytes=BOUNDLESS_BYTES)),
            ("need a newer GPU (8 bits: compute capability 8.9)", replace(device, capability=NEWEST)),
        ):
            more = [point.part for point in points(other, planned.quick) if point.key not in here]
            for part in dict.fromkeys(more):
                counted = f"{more.count(part)} points that {why}"
                found[part] = f"{found[part]}, {counted}" if part in found else counted
    if not any(point.part == "latent" for point in planned.points):
        found["latent"] = "few models have latents: the full grid measures them"
    if not any(point.part == "all_reduce" for point in planned.points):
        found["all_reduce"] = "it takes two GPUs"
    return found


MUCH_BYTES = 2**30
"""Other programs hold memory if more than this is in use: a driver and our own context hold less."""


def held_by_others(planned: Plan) -> int:
    """Bytes of GPU memory held by other programs; 0 if it is little."""
    if planned.device.rehearsal:
        return 0
    import torch

    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        raise DeviceLostError(f"the GPU does not answer: {words_of(error)}") from error
    held = total - free - torch.cuda.memory_reserved()
    return held if held > MUCH_BYTES else 0
