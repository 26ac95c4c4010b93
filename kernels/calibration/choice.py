"""Which of several forms of a part to take, where a table of ratios will stand behind it.

At the points of its grid a table mends any form. What it cannot mend are points of another kind (skewed
batches, several chunks): there the form must be right, after the ratio of the place where they lie. And the
rougher the table, the worse is what lies between its points. So a form is judged by

    mean of log(predicted / measured)^2 of the others  +  0.03 * mean of log(ratio)^2 of the grid

The rates of work that are tried are those fitted to all points, and some slower and faster ones.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import log2
from typing import Any

import numpy as np

from kvsim.kernels.calibration.form import MERGED

ROUGHNESS_COUNTS = 0.03
PACES = [2 ** (step / 8) for step in range(-6, 7)]
"""Of the rate of work, beside the fitted one: 0.6 to 1.7."""

Row = tuple[float, float, Mapping[str, float], float]
"""(bytes, work, place, measured seconds)."""


class Choice:
    """Judges forms by points that a table mends, and by others that it does not.

    Parameters
    ----------
    axes : sequence of Mapping
        Of the table, as in a profile.
    grid, others : sequence of Row
        Points of the table, and points of other kinds.
    """

    def __init__(self, axes: Sequence[Mapping[str, Any]], grid: Sequence[Row], others: Sequence[Row]) -> None:
        self._grid, self._others = _columns(grid), _columns(others)
        rows = {tuple(place[axis["name"]] for axis in axes): i for i, (_, _, place, _) in enumerate(grid)}
        self._weights = np.zeros((len(others), len(grid)))
        for row, (_, _, place, _) in zip(self._weights, others, strict=True):
            for cell, weight in _corners(axes, place):
                if cell in rows:
                    row[rows[cell]] += weight
        self._weights /= np.maximum(self._weights.sum(1, keepdims=True), 1e-9)

    def badness(self, form: Mapping[str, Any]) -> float:
        """Of a form: less is better."""
        ratio = self._grid[3] / _seconds(form, *self._grid[:3])
        mended = _seconds(form, *self._others[:3]) * (self._weights @ ratio)
        unmended = np.log(mended / self._others[3])
        return float(np.mean(unmended**2) + ROUGHNESS_COUNTS * np.mean(np.log(ratio) ** 2))


def paces(form: Mapping[str, Any], most: float | None) -> list[dict[str, Any]]:
    """The form with other rates of work, none above `most`."""
    rates = [form["work_per_s"] * pace for pace in PACES]
    return [dict(form) | {"work_per_s": rate} for rate in rates if most is None or rate <= most]


def _columns(rows: Sequence[Row]) -> list[np.ndarray]:
    """[bytes, work, merged, seconds]."""
    found = [(moved, work, place.get(MERGED, 0), seconds) for moved, work, place, seconds in rows]
    return [np.array([row[i] for row in found], dtype=float) for i in range(4)]


def _seconds(form: Mapping[str, Any], moved: np.ndarray, work: np.ndarray, merged: np.ndarray) -> np.ndarray:
    """By the form alone, as form.form_s."""
    a, b, p = moved / form["bandwidth_bytes_per_s"], work / form["work_per_s"], form["p"]
    started = form["t0_s"] + merged * form.get("merge_s", 0.0)
    return started + (np.maximum(a, b) if p == "max" else (a**p + b**p) ** (1 / p))


def _corners(
    axes: Sequence[Mapping[str, Any]], place: Mapping[str, float]
) -> list[tuple[tuple[float, ...], float]]:
    """The cells around a place, and their weights: as form.interpolate has them."""
    sides = []
    for axis in axes:
        values, offset, wanted = axis["values"], axis["offset"], place[axis["name"]]
        wanted = min(max(wanted, values[0]), values[-1])
        after = next(i for i, value in enumerate(values) if value >= wanted)
        below = values[max(after - 1, 0)]
        if values[after] == wanted:
            sides.append([(wanted, 1.0)])
            continue
        low, high = log2(below + offset), log2(values[after] + offset)
        share = (log2(wanted + offset) - low) / (high - low)
        sides.append([(below, 1 - share), (values[after], share)])
    found = []
    for corner in product(*sides):
        weight = 1.0
        for _, each in corner:
            weight *= each
        found.append((tuple(value for value, _ in corner), weight))
    return found
