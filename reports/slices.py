"""Columns of a timeline as means over slices of time."""

import numpy as np
import numpy.typing as npt

from kvsim.reports.arrays import Floats


def step_means(time_s: Floats, values: npt.NDArray[np.generic], edges: Floats) -> Floats:
    """Means over slices of values that hold until the next row; 0 before the first row and after the last."""
    area = np.concatenate([[0.0], np.cumsum(np.diff(time_s) * values[:-1])])
    return np.diff(np.interp(edges, time_s, area)) / np.diff(edges)


def middles(edges: Floats) -> Floats:
    """The middle of each slice."""
    return (edges[1:] + edges[:-1]) / 2
