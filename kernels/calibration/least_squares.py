"""Least squares on log(predicted / measured) for the parameters of a form, by Levenberg-Marquardt.

The unknowns are logarithms of t0, of seconds per byte, of seconds per unit of work if there is any, and of
the merging time if pieces are merged.
"""

import numpy as np

STEPS = 60
HOPELESS = 1e8
"""Damping beyond which no step can improve the fit."""

Data = tuple[np.ndarray, ...]
"""(bytes, work, measured seconds, weights), one number per point; also `merged` if any pieces are merged."""


def residuals(p: float | str, data: Data, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted log(predicted / measured) at every point, and its derivative by each unknown."""
    moved, work, seconds, weights, *merged = data
    t0, *per = np.exp(logs)
    merging = [merged[0] * per.pop()] if merged else []
    both = a = moved * per[0]
    slopes = [a]
    if len(per) == 2:
        b = work * per[1]
        if isinstance(p, str):
            both = np.maximum(a, b)
            slopes = [np.where(a >= b, a, 0), np.where(a >= b, 0, b)]
        else:
            both = (a**p + b**p) ** (1 / p)
            slopes = [one**p * both ** (1 - p) for one in (a, b)]
    predicted = t0 + both + sum(merging)
    slope = np.column_stack([np.full_like(both, t0), *slopes, *merging]) / predicted[:, None]
    return np.log(predicted / seconds) * weights, slope * weights[:, None]


def least_squares(
    p: float | str, data: Data, start: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, float]:
    """(logarithms, sum of squares) of the best solution within the bounds from this start."""
    here = np.clip(start, *bounds)
    found, slope = residuals(p, data, here)
    squares, damping, one = float(found @ found), 1e-2, np.eye(len(here))
    for _ in range(STEPS):
        step = np.linalg.solve(slope.T @ slope + damping * one, -slope.T @ found)
        there = np.clip(here + np.clip(step, -2, 2), *bounds)
        tried, tried_slope = residuals(p, data, there)
        if (new := float(tried @ tried)) < squares:
            done = squares - new <= 1e-12 * squares
            here, found, slope, squares = there, tried, tried_slope, new
            damping = max(damping / 5, 1e-12)
        else:
            damping *= 5
            done = damping > HOPELESS
        if done:
            break
    return here, squares
