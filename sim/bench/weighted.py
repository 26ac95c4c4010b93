"""Distributions as GuideLLM reports them: values with weights, and rates and counts over time.

    values    one each, or weighted by tokens
    rate      per event, its weight over the time from halfway to the previous one to halfway to the next,
              weighted by that time
    count     how many are in flight, weighted by how long

A quantile is the first value at which the weights reach the share: always a value that occurred.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.sim.bench.measured import Floats

SHARES = {
    "p001": 0.001,
    "p01": 0.01,
    "p05": 0.05,
    "p10": 0.10,
    "p25": 0.25,
    "p50": 0.50,
    "p75": 0.75,
    "p90": 0.90,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
}
TOGETHER_S = 1e-4
"""Events closer than this count as one."""


def weighted(values: Floats, weights: Floats | None = None, count: int | None = None) -> dict[str, Any]:
    """The statistics of a distribution; zeros if it is empty.

    Parameters
    ----------
    count : int or None
        Number of items, if different from the sum of the weights.
    """
    if not len(values):
        zeros = dict.fromkeys(("mean", "median", "mode", "variance", "std_dev", "min", "max"), 0.0)
        return {**zeros, "count": 0, "total_sum": 0.0, "percentiles": dict.fromkeys(SHARES, 0.0), "pdf": None}
    weights = np.ones(len(values)) if weights is None else weights
    distinct, place = np.unique(values, return_inverse=True)
    share = np.bincount(place, weights)
    share = share / share.sum()
    reached = np.cumsum(share)

    def quantile(at: float) -> float:
        return float(distinct[min(int(np.searchsorted(reached, at)), len(distinct) - 1)])

    mean = float((distinct * share).sum())
    variance = float(((distinct - mean) ** 2 * share).sum())
    many = round(float(weights.sum())) if count is None else count
    return {
        "mean": mean,
        "median": quantile(0.5),
        "mode": float(distinct[int(np.argmax(share))]),
        "variance": variance,
        "std_dev": variance**0.5,
        "min": float(distinct[0]),
        "max": float(distinct[-1]),
        "count": many,
        "total_sum": mean * many,
        "percentiles": {name: quantile(at) for name, at in SHARES.items()},
        "pdf": None,
    }


def rates(times_s: Floats, amounts: Floats, start_s: float, end_s: float) -> dict[str, Any]:
    """The amount per second between two instants, distributed over the time between them."""
    order = np.argsort(times_s, kind="stable")
    times = np.concatenate([[start_s], times_s[order], [end_s]])
    amounts = np.concatenate([[0.0], amounts[order], [0.0]])
    times, amounts = _together(times, amounts)
    if len(times) < 2:
        return weighted(np.zeros(0))
    between = (times[1:] + times[:-1]) / 2
    lengths = np.diff(np.concatenate([times[:1], between, times[-1:]]))
    return weighted(amounts / lengths, lengths, round(float(amounts.sum())))


def under_way(starts_s: Floats, ends_s: Floats, start_s: float, end_s: float) -> dict[str, Any]:
    """The number in flight between two instants, distributed over the time between them."""
    times = np.concatenate([starts_s, ends_s, [start_s, end_s]])
    change = np.concatenate([np.ones(len(starts_s)), -np.ones(len(ends_s)), [0.0, 0.0]])
    order = np.argsort(times, kind="stable")
    times, counts = times[order], np.cumsum(change[order])
    lengths = np.diff(times)
    there = lengths > 0
    return weighted(counts[:-1][there], lengths[there], len(starts_s))


def _together(times: Floats, amounts: Floats) -> tuple[Floats, Floats]:
    """Merge events that are close to each other, at the time of the first one."""
    kept_times: list[float] = [float(times[0])]
    kept: list[float] = [float(amounts[0])]
    for time, amount in zip(times[1:].tolist(), amounts[1:].tolist(), strict=True):
        if time - kept_times[-1] < TOGETHER_S:
            kept[-1] += amount
        else:
            kept_times.append(time)
            kept.append(amount)
    return np.array(kept_times), np.array(kept)


def by_status(successful: dict[str, Any]) -> dict[str, Any]:
    """The statistics of the answered requests as those of all: nothing was left unfinished."""
    nothing: Sequence[str] = ("errored", "incomplete")
    return {
        "successful": successful,
        **{status: weighted(np.zeros(0)) for status in nothing},
        "total": successful,
    }
