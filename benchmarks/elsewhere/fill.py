"""Fill cells that no row covers with the mean of their neighbours, so that gaps are bridged smoothly."""

from collections.abc import Mapping, Sequence

import numpy as np

ROUNDS = 200


def relaxed(missing: Sequence[tuple], known: Mapping[tuple, float], axes: Sequence[Mapping]) -> dict:
    """Missing cells as the mean of their direct neighbours in log space, with the known ones fixed.

    Starts from the nearest known value along each axis, so a few rounds suffice.
    """
    if not missing:
        return {}
    places = [{value: i for i, value in enumerate(axis["values"])} for axis in axes]

    def at(cell: tuple) -> tuple[int, ...]:
        return tuple(place[value] for place, value in zip(places, cell, strict=True))

    logs = np.full([len(axis["values"]) for axis in axes], np.nan)
    for cell, ratio in known.items():
        logs[at(cell)] = np.log(ratio)
    fixed = ~np.isnan(logs)
    while np.isnan(logs).any():
        logs = np.where(np.isnan(logs), _mean_of_neighbours(logs), logs)
    held = logs.copy()
    for _ in range(ROUNDS):
        logs = np.where(fixed, held, _mean_of_neighbours(logs))
    return {cell: float(np.exp(logs[at(cell)])) for cell in missing}


def _mean_of_neighbours(logs: np.ndarray) -> np.ndarray:
    """Mean of each cell's known neighbours; NaN if none is known."""
    total, count = np.zeros_like(logs), np.zeros_like(logs)
    for axis in range(logs.ndim):
        for step in (1, -1):
            moved = np.roll(logs, step, axis)
            edge = [slice(None)] * logs.ndim
            edge[axis] = slice(0, 1) if step == 1 else slice(-1, None)
            moved[tuple(edge)] = np.nan
            known = ~np.isnan(moved)
            total[known] += moved[known]
            count += known
    return np.divide(total, count, out=np.full_like(logs, np.nan), where=count > 0)
