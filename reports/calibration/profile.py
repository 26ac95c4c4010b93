"""A calibrated profile in the form that tables and figures need: points, fitted forms, errors.

`fit_of` reads every field that a report uses, so damaged files are refused before anything is printed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

from kvsim.sim.cost.calibrated.parts import Part
from kvsim.sim.cost.profile_files import ProfileFile, find_profile, is_path, profile_files
from kvsim.sim.cost.published import analytic_profile, profile_names
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.files.reading import read_json, understood
from kvsim.sim.models.catalog import gpu_named, gpu_names
from kvsim.sim.models.own_gpu import read_own_gpu
from kvsim.sim.models.spec import GpuSpec
from kvsim.sim.workload import PS_PER_S

PARTS = {
    "ceilings": "ceilings",
    "launch": "launches",
    "decode": "decode attention",
    "latent": "decode over latents",
    "prefill": "prefill attention",
    "product": "matrix products",
    "product_fp8": "products in 8 bits",
    "lm_head": "output matrix",
    "experts": "experts",
    "experts_fp8": "experts in 8 bits",
    "sampling": "sampling",
    "elementwise": "norm, rotary, gate",
    "kv_write": "KV write",
    "block_copy": "block copies",
    "to_host": "GPU to host",
    "to_gpu": "host to GPU",
    "all_reduce": "all-reduce",
    "composed": "composed steps",
}
"""Part of a profile -> its title; others keep their names."""


@dataclass(frozen=True)
class Error:
    """The error of some points, |predicted / measured - 1|."""

    points: int
    mean: float
    median: float
    worst: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Error | None":
        """From (predicted, measured) pairs; None if there are none."""
        errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
        return cls(len(errors), fmean(errors), median(errors), max(errors)) if errors else None

    @classmethod
    def stated(cls, error: Mapping[str, float] | None) -> "Error | None":
        """From an error stated in a profile."""
        if error is None:
            return None
        return cls(
            int(error["points"]), *(_number(error[key], least=0.0) for key in ("mean", "median", "worst"))
        )


@dataclass(frozen=True)
class Timed:
    """A measured point.

    Attributes
    ----------
    x : Mapping
        The arguments of the launch.
    role : str
        "grid", "shape" or "held_out".
    median_s, p10_s, p90_s : float
        Seconds of one launch.
    predicted_s : float
        From the form and its ratios.
    place : Mapping
        Its coordinates on the part's axes; empty for a composed step.
    form_s : float
        From the form alone; for a composed step, equal to `predicted_s`.
    moved : float
        Bytes moved.
    """

    x: Mapping[str, Any]
    role: str
    median_s: float
    p10_s: float
    p90_s: float
    predicted_s: float
    place: Mapping[str, float]
    form_s: float
    moved: float

    @property
    def spread(self) -> float:
        """Half the distance from the 10th to the 90th percentile, over the median."""
        return (self.p90_s - self.p10_s) / 2 / self.median_s

    @property
    def off(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted_s / self.median_s - 1


@dataclass(frozen=True)
class Fitted:
    """A part of the profile.

    Attributes
    ----------
    form : Mapping
        t0_s, bandwidth_bytes_per_s, work_per_s, p; merge_s if pieces of contexts are merged.
    base : Mapping
        The main table's values on the axes of the other tables.
    ratios : tuple of float
        Minimum and maximum of the main table.
    unmeasured : int
        Cells of it that were not measured and take a neighbour's ratio.
    fitted_error, held_out_error : Error or None
        Errors of form and ratios together, as stated in the profile.
    """

    name: str
    form: Mapping[str, Any]
    base: Mapping[str, float]
    ratios: tuple[float, float]
    points: Sequence[Timed]
    unmeasured: int
    fitted_error: Error | None
    held_out_error: Error | None

    @property
    def title(self) -> str:
        """The part's title."""
        return PARTS.get(self.name, self.name)

    @property
    def main(self) -> list[Timed]:
        """The points of the main table."""
        return [one for one in self.points if one.role == "grid" and self._at_base(one)]

    @property
    def held_out(self) -> list[Timed]:
        """The points left out of the fit and the tables."""
        return [one for one in self.points if one.role == "held_out"]

    @property
    def form_error(self) -> Error | None:
        """The error of the form alone, at the points it was fitted to."""
        return Error.of((one.form_s, one.median_s) for one in self.main)

    @property
    def count(self) -> int:
        """The number of measured points."""
        return sum(error.points for error in (self.fitted_error, self.held_out_error) if error is not None)

    def _at_base(self, one: Timed) -> bool:
        return all(one.place.get(axis, value) == value for axis, value in self.base.items())


@dataclass(frozen=True)
class Fit:
    """A profile: its file, its parts in order, its composed steps and their error."""

    file: ProfileFile
    parts: Sequence[Fitted]
    composed: Sequence[Timed]
    composed_error: Error | None

    @property
    def provenance(self) -> str:
        """Whether the profile was measured, and when."""
        return f"{'rehearsal, not a measurement' if self.file.rehearsal else 'measured'}, {self.file.date}"


@dataclass(frozen=True)
class Analytic:
    """An analytic profile that ships with kvsim; sim/cost/published.py describes its contents."""

    content: Mapping[str, Any]


def fit_of(found: ProfileFile) -> Fit:
    """Read the profile in a file; KvsimError in one line if a field is invalid."""
    content = found.content
    with understood(f"profile {found.path}"):
        parts = [_fitted(name, part) for name, part in content["parts"].items()]
        composed = [_timed(row, None) for row in content["composed"]["points"]]
        composed_error = Error.stated(content["composed"]["error"])
        for group in ("device", "measured", "limits", "ceilings", "launch"):
            if not isinstance(content[group], Mapping):
                raise TypeError(f"{group} must hold names and values")
        for group in ("limits", "ceilings", "launch"):
            for value in content[group].values():
                _number(value, least=0.0, none=True)
        _check_origin(content["device"], content["measured"])
        for row in content["refused"]:
            str(row["reason"])
    return Fit(found, parts, composed, composed_error)


def _check_origin(device: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Check the device and the conditions of the measurement; unknown values may be missing or null."""
    str(device["name"])
    _number(device["memory_bytes"])
    for value in (device.get("multiprocessors"), device.get("count"), measured.get("seconds")):
        _number(value, least=0.0, none=True)
    for group in (device.get("capability"), measured.get("clocks")):
        if group is not None and not isinstance(group, list):
            raise TypeError(f"{group!r} where a list must be")
    if not all(isinstance(record, Mapping) for record in measured.get("clocks") or ()):
        raise TypeError("clocks must hold names and values")


def any_profile(text: str) -> "Fit | Analytic | GpuSpec":
    """The profile for a name from `sim gpus` or a path: measured, analytic, or a datasheet's numbers."""
    if is_path(text) and Path(text).expanduser().is_file():
        analytic = _analytic_in(Path(text).expanduser())
        if analytic is not None:
            return Analytic(analytic)
        own = read_own_gpu(Path(text).expanduser())
        if own is not None:
            return own
    found = find_profile(text, rehearsals=True)
    if found is not None:
        return fit_of(found)
    if text in profile_names():
        return Analytic(analytic_profile(text))
    if text.strip().lower() in gpu_names():
        return gpu_named(text)
    yours = [one.name for one in profile_files() if isinstance(one, ProfileFile) and not one.elsewhere]
    raise unknown("profile", text, list(dict.fromkeys([*yours, *profile_names(), *gpu_names()])))


def _analytic_in(path: Path) -> Mapping[str, Any] | None:
    """The contents of a file of published figures; None if the file is something else or unreadable."""
    try:
        content = read_json(path, str(path))
    except KvsimError:
        return None
    shipped = isinstance(content, dict) and content.get("name") in profile_names()
    return content if shipped and content == analytic_profile(content["name"]) else None


def _fitted(name: str, part: Mapping[str, Any]) -> Fitted:
    form = Part(name, part)
    return Fitted(
        name=name,
        form=shown_form(part),
        base={axis: _number(value, least=0.0) for axis, value in part["base"].items()},
        ratios=_extent(part["tables"][0]["ratio"] if part["tables"] else 1.0),
        points=[_timed(row, form) for row in part["points"]],
        unmeasured=len(part["unmeasured"]),
        fitted_error=Error.stated(part["error"]["fitted"]),
        held_out_error=Error.stated(part["error"]["held_out"]),
    )


def shown_form(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The form of a part; for all-reduces, with the smallest start time over the GPU counts."""
    form, starts = part["form"], part.get("constants", {}).get("starts")
    if not starts:
        return dict(form)
    return {**form, "t0_s": form["t0_s"] + min(starts.values()) / form["work_per_s"], "work_per_s": None}


def _timed(row: Mapping[str, Any], form: Part | None) -> Timed:
    """A point; composed steps have no coordinates."""
    predicted_s = _number(row["predicted_s"])
    moved, work = (_number(row[key], least=0.0) if form else 0.0 for key in ("bytes", "work"))
    place = {str(name): _number(value, least=0.0) for name, value in row["place"].items()} if form else {}
    merging_ps = form.merge_ps * place.pop("merged", 0.0) if form else 0.0  # merging is not an axis
    return Timed(
        x={str(name): value for name, value in row["x"].items()},
        role=str(row["role"]),
        median_s=_number(row["median_s"]),
        p10_s=_number(row["p10_s"]),
        p90_s=_number(row["p90_s"]),
        predicted_s=predicted_s,
        place=place,
        form_s=(form.form_ps(moved, work) + merging_ps) / PS_PER_S if form else predicted_s,
        moved=moved,
    )


def _extent(ratio: Any) -> tuple[float, float]:  # noqa: ANN401 - nested lists
    """Minimum and maximum of nested lists."""
    if not isinstance(ratio, Sequence):
        return (_number(ratio),) * 2
    pairs = [_extent(row) for row in ratio]
    return min(low for low, _ in pairs), max(high for _, high in pairs)


def _number(value: Any, least: float | None = None, none: bool = False) -> float:  # noqa: ANN401 - JSON
    """Check that a value is a positive number, or at least `least` if given."""
    if value is None and none:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} where a number must be")
    if not isfinite(value) or (value < least if least is not None else value <= 0):
        raise ValueError(f"{value!r} where a positive number must be")
    return float(value)
