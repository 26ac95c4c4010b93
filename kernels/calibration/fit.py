"""Turn measured points into a part of the profile: form, tables of ratios, errors.

The form is fitted by least squares on log(predicted / measured), for each p of the norm and each candidate
for an undocumented constant of the device, from fixed starts; the least sum of squares wins. Held-out points
enter neither the form nor a table; they are only predicted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from statistics import fmean, median
from typing import Any

import numpy as np

from kvsim.kernels.calibration.form import MERGED, NORMS, form_s, interpolate, predict_s
from kvsim.kernels.calibration.least_squares import least_squares
from kvsim.kernels.calibration.points import MAIN, PREFIX_OFFSET, Point, Sample, features
from kvsim.kernels.calibration.timing import spread

SHAPES_COUNT = 0.5
"""Total weight of the points that only shape the form, relative to all grid points."""

STARTS = (1.0, 0.3, 3.0)
"""With a single start some held-out errors are larger (benchmarks/elsewhere/simpler.py)."""
AT_ONCE = (2, 3, 4)
"""Decode attention programs that a multiprocessor may run at once, limited by registers."""

TOKEN_TILES = (16, 32, 64, 128)
"""Rows that a library's products advance by: it chooses among kernels of several tiles."""
LEAST_WAVE = (0, 0.25, 0.5)
"""Minimum share of a wave that a product with few tiles takes, if a library also splits its inputs."""

EXPERT_TILES = (1, 16, 64, 128)
"""Rows of an expert that one tile computes, where that is not known."""
ALL_ROWS = (0, 1)
"""Whether a GPU that holds some of the experts activates and sums the rows of all, as some kernels do."""

OFFSETS = {"prefix_tokens": PREFIX_OFFSET, "skew": 1, "shared": 1}


Ratios = Mapping[tuple, float]
"""Cell of a table -> measured / form."""
Fill = Callable[[Sequence[tuple], Ratios, Sequence[Mapping[str, Any]]], dict[tuple, float]]
"""(missing cells, known ratios, axes) -> the ratios of the missing cells."""


@dataclass(frozen=True)
class Measured:
    """A point with its median, 10th and 90th percentile (seconds per launch), number of launches, samples."""

    point: Point
    median_s: float
    p10_s: float
    p90_s: float
    launches: int
    samples_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, point: Point, sample: Sample) -> "Measured":
        """From the seconds of all repeats."""
        return cls(point, *spread(sample.seconds), sample.launches, sample.seconds)


@dataclass(frozen=True)
class Bounds:
    """Upper bounds of the form's rates, in bytes and work per second; None if unknown."""

    bandwidth: float | None = None
    rate: float | None = None


def fit_part(
    planned: Sequence[Point],
    measured: Sequence[Measured],
    constants: Mapping[str, Any],
    bounds: Bounds = Bounds(),
    fill: Fill | None = None,
) -> dict[str, Any] | None:
    """Fit a part, as profile.py describes it; None if no measured points can be fitted.

    Parameters
    ----------
    planned : sequence of Point
        All points of the part, including those that could not be measured.
    measured : sequence of Measured
        The points that were measured and not refused.
    constants : Mapping
        The constants that the features need, without those that are fitted (`candidates`).
    bounds : Bounds
        Bounds of the device, by its datasheet.
    fill : Fill
        Fills unmeasured cells from measured ones; by default from the nearest cell.
    """
    fitted_to = [one for one in measured if one.point.table == MAIN and one.point.role != "held_out"]
    if not any(one.point.role == "grid" for one in fitted_to):
        return None
    if fitted_to[0].point.part == "all_reduce":
        constants = dict(constants) | per_count(fitted_to)
    found = [(*fit_form(fitted_to, one, bounds), one) for one in candidates(constants)]
    form, _, constants = min(found, key=lambda one: one[1])
    part: dict[str, Any] = {"form": form, "constants": constants, "base": {}, "tables": [], "range": {}}
    part["unmeasured"] = _main_table(part, planned, fitted_to, fill or nearest)
    _other_tables(part, measured)
    part["points"] = [_with_prediction(part, one) for one in measured]
    part["error"] = {
        "fitted": error_of(one for one in part["points"] if one["role"] != "held_out"),
        "held_out": error_of(one for one in part["points"] if one["role"] == "held_out"),
    }
    return part


def per_count(measured: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Start times and link shares by number of GPUs, each fitted alone, relative to the best."""
    alone = {}
    for count in sorted({one.point.x["gpus"] for one in measured}):
        alone[str(count)] = fit_form([one for one in measured if one.point.x["gpus"] == count], {}, Bounds())[
            0
        ]
    start = min(form["t0_s"] for form in alone.values())
    rate = max(form["bandwidth_bytes_per_s"] for form in alone.values())
    return {
        "starts": {count: form["t0_s"] / start for count, form in alone.items()},
        "shares": {count: rate / form["bandwidth_bytes_per_s"] for count, form in alone.items()},
    }


def candidates(constants: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The constants combined with each candidate value of the device's undocumented constants."""
    if "matrices" in constants:
        tiles = [{"token_tile": tile} for tile in EXPERT_TILES] if "most_tile" not in constants else [{}]
        ways = product(tiles, ALL_ROWS)
        return [dict(constants) | tile | {"all_rows": every} for tile, every in ways]
    if "tile_tokens" in constants and "shares" not in constants:
        return [dict(constants) | {"at_once": each * constants["multiprocessors"]} for each in AT_ONCE]
    if "output_tile" in constants:
        tiles = [constants["token_tile"]] if "token_tile" in constants else TOKEN_TILES
        return [
            dict(constants) | {"token_tile": tile, "least_wave": each}
            for tile, each in product(tiles, LEAST_WAVE)
        ]
    return [dict(constants)]


def fit_form(
    measured: Sequence[Measured], constants: Mapping[str, Any], bounds: Bounds
) -> tuple[dict[str, Any], float]:
    """(form, sum of squares) for the best norm."""
    found = [features(one.point, constants) for one in measured]
    rows = [(moved, work, place.get(MERGED, 0)) for moved, work, place in found]
    moved, work, merged = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    seconds = np.array([one.median_s for one in measured])
    shapes = np.array([one.point.role == "shape" for one in measured])
    heavier = SHAPES_COUNT * np.sum(~shapes) / max(np.sum(shapes), 1)
    weights = np.sqrt(np.where(shapes, max(heavier, 1), 1))
    with_work, merging = bool(work.any()), [merged] if merged.any() else []
    best: tuple[dict[str, Any], float] | None = None
    for p, scale in product(NORMS if with_work else (1,), STARTS):
        guess = [seconds.min() / 2, scale * (seconds / moved).min()]
        highest = [seconds.min(), np.inf]
        lowest = [1e-9, 1 / bounds.bandwidth if bounds.bandwidth else 0]
        if with_work:
            guess.append((seconds / work).min() / scale)
            lowest.append(1 / bounds.rate if bounds.rate else 0)
            highest.append(np.inf)
        if merging:
            guess.append(seconds.min() / 2)
            lowest.append(1e-9)
            highest.append(seconds[merged > 0].min())
        limits = np.log(np.maximum(lowest, 1e-30)), np.log(highest)
        data = (moved, work, seconds, weights, *merging)
        found, squares = least_squares(p, data, np.log(guess), limits)
        if best is None or squares < best[1] * (1 - 1e-9):
            t0, per_byte, *others = (float(number) for number in np.exp(found))
            rate = 1 / others[0] if with_work else None
            form = {"t0_s": t0, "bandwidth_bytes_per_s": 1 / per_byte, "work_per_s": rate, "p": p}
            if merging:
                form["merge_s"] = others[-1]
            best = form, squares
    assert best is not None
    return best


def _form_s(form: Mapping[str, Any], moved: float, work: float, place: Mapping[str, float]) -> float:
    return form_s(form, moved, work, place.get(MERGED, 0))


def _main_axes(planned: Sequence[Point]) -> list[dict[str, Any]]:
    cells = [point.cell for point in planned if point.role == "grid" and point.table == MAIN]
    return [
        {"name": name, "offset": OFFSETS.get(name, 0), "values": sorted({cell[name] for cell in cells})}
        for name in cells[0]
    ]


def _main_table(
    part: dict[str, Any], planned: Sequence[Point], measured: Sequence[Measured], fill: Fill
) -> list[dict]:
    """Set the main table, the range of its axes and the base; returns the unmeasured cells."""
    axes = _main_axes(planned)
    names = [axis["name"] for axis in axes]
    grid = [one for one in measured if one.point.role == "grid"]
    ratios: dict[tuple, list[float]] = {}
    for one in grid:
        moved, work, place = features(one.point, part["constants"])
        ratio = one.median_s / _form_s(part["form"], moved, work, place)
        ratios.setdefault(tuple(one.point.cell[name] for name in names), []).append(log(ratio))
    known = {cell: exp(fmean(logs)) for cell, logs in ratios.items()}
    whole = list(product(*(axis["values"] for axis in axes)))
    filled = known | fill([cell for cell in whole if cell not in known], known, axes)
    part["tables"] = [{"axes": axes, "ratio": _nest(filled, axes, ())}]
    part["base"] = {name: value for name, value in place.items() if name not in (*names, MERGED)}
    for i, name in enumerate(names):
        values = [cell[i] for cell in known]
        part["range"][name] = [min(values), max(values)]
    part["range"] |= {name: [value, value] for name, value in part["base"].items()}
    return [dict(zip(names, cell, strict=True)) for cell in whole if cell not in known]


def nearest(missing: Sequence[tuple], known: Ratios, axes: Sequence[Mapping[str, Any]]) -> dict[tuple, float]:
    """For each unmeasured cell, the ratio of its nearest measured neighbour."""
    return {cell: known[_nearest(cell, known, axes)] for cell in missing}


def _nearest(cell: tuple, known: Mapping[tuple, float], axes: Sequence[Mapping[str, Any]]) -> tuple:
    """The measured cell that is the fewest steps away; steps along the last axis count least."""
    places = [{value: i for i, value in enumerate(axis["values"])} for axis in axes]

    def away(other: tuple) -> tuple[int, ...]:
        return tuple(abs(at[a] - at[b]) for at, a, b in zip(places, cell, other, strict=True))

    return min(known, key=lambda other: (away(other), other))


def _nest(ratios: Mapping[tuple, float], axes: Sequence[Mapping[str, Any]], cell: tuple) -> Any:  # noqa: ANN401
    """Ratios as nested lists, the first axis outermost."""
    if len(cell) == len(axes):
        return ratios[cell]
    return [_nest(ratios, axes, (*cell, value)) for value in axes[len(cell)]["values"]]


def _other_tables(part: dict[str, Any], measured: Sequence[Measured]) -> None:
    """Append a table for every other measured axis, relative to the base."""
    main = part["tables"][0]
    for name, base in part["base"].items():
        ratios: dict[float, list[float]] = {base: [0.0]}
        for one in measured:
            if one.point.role == "grid" and one.point.table == name:
                moved, work, place = features(one.point, part["constants"])
                predicted = _form_s(part["form"], moved, work, place) * interpolate(main, place)
                ratios.setdefault(one.point.cell[name], []).append(log(one.median_s / predicted))
        values = sorted(ratios)
        if len(values) > 1:
            axis = {"name": name, "offset": OFFSETS.get(name, 0), "values": values}
            part["tables"].append({"axes": [axis], "ratio": [exp(fmean(ratios[value])) for value in values]})
            part["range"][name] = [values[0], values[-1]]


def _with_prediction(part: Mapping[str, Any], one: Measured) -> dict[str, Any]:
    moved, work, place = features(one.point, part["constants"])
    return described(one) | {
        "place": dict(place), "bytes": moved, "work": work, "predicted_s": predict_s(part, moved, work, place)
    }  # fmt: skip


def described(one: Measured) -> dict[str, Any]:
    """The measurement of a point as the profile stores it."""
    return {
        "x": dict(one.point.x), "role": one.point.role, "median_s": one.median_s, "p10_s": one.p10_s,
        "p90_s": one.p90_s, "launches": one.launches,
    } | ({"samples_s": list(one.samples_s)} if one.samples_s else {})  # fmt: skip


def error_of(points: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """Errors of predicted points, |predicted / measured - 1|; None without points."""
    errors = [abs(one["predicted_s"] / one["median_s"] - 1) for one in points]
    if not errors:
        return None
    return {"points": len(errors), "mean": fmean(errors), "median": median(errors), "worst": max(errors)}
