"""The data of the charts as short lists of numbers: a point for each of a few hundred time slices.

Each point is the mean over its slice, so shorter peaks are averaged out and long runs draw fast.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.reports import palette
from kvsim.reports.arrays import Floats
from kvsim.reports.quantities import LATENCIES
from kvsim.reports.rundir.run import Run
from kvsim.reports.rundir.stack import HELD, held_by
from kvsim.reports.slices import step_means
from kvsim.sim.models.catalog import GIB

SLICES = 300
RATE_SLICES = 60
_BINS = 60
_POINTS = 240


def chart_data(runs: Sequence[Run], groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """All charts: a list per run, in order; for waste, one per group of runs that differ only in the seed."""
    kinds = palette.kinds_of(run.summary for run in runs)
    return {
        "overTime": [_over_time(run, kinds) for run in runs],
        "waste": _waste(groups),
        "latency": {
            each.column: _latency(runs, each.column) | {"words": each.name}
            for each in LATENCIES.values()
            if each is not LATENCIES["itl"]  # not a column of requests
        },
    }


def end_s(run: Run) -> float:
    """The end of the run: its last timeline row, arrival or answer."""
    duration_s = palette.number(run.summary.get("duration_s")) or 0.0
    last = [duration_s, *run.columns.timeline["time_s"][-1:].tolist()]
    for name in ("arrival_s", "finish_s"):
        times = run.columns.requests.get(name, np.zeros(0))
        last += times[np.isfinite(times)].max(initial=0.0, keepdims=True).tolist()
    return float(max(last))


def _over_time(run: Run, kinds: Sequence[str]) -> dict[str, Any]:
    end = end_s(run)
    time = run.columns.timeline["time_s"].astype(np.float64)
    if not len(time) or end <= 0:
        return {"end": end, "step": 0, "kinds": {kind: [] for kind in kinds}}
    edges = np.linspace(0, end, SLICES + 1)
    timeline = run.columns.timeline
    slots = {kind: timeline.get(kind, np.zeros_like(timeline["free"])) for kind in kinds}
    held = {kind: _means(time, column, edges) for kind, column in slots.items()}
    there = np.maximum(np.sum(list(held.values()), axis=0), 1)  # slots of replicas that are not absent
    finish = run.columns.requests.get("finish_s", np.zeros(0))
    answers = np.histogram(finish[np.isfinite(finish)], edges[:: SLICES // RATE_SLICES])[0]
    found = {
        "end": end,
        "step": end / SLICES,
        "kinds": {kind: _rounded(100 * means / there) for kind, means in held.items()},
        "running": _rounded(_means(time, run.columns.timeline["running"], edges)),
        "waiting": _rounded(_means(time, run.columns.timeline["waiting"], edges)),
        "throughput": _rounded(answers / (end / RATE_SLICES)),
    }
    if "preemptions" in run.columns.timeline:
        row = np.searchsorted(time, edges[1:], side="right") - 1
        found["preemptions"] = run.columns.timeline["preemptions"][np.maximum(row, 0)].tolist()
    if HELD in timeline:
        found["tiers"] = {
            name: _rounded(_means(time, timeline[column], edges) / GIB)
            for name, column in held_by(timeline).items()
        }
        for way in ("loaded", "stored"):
            so_far = np.interp(edges, time, timeline[f"tier_{way}_bytes"])
            found[f"tier{way.title()}"] = _rounded(np.diff(so_far) / (end / SLICES) / 1e9)
    return found


def _means(time: Floats, values: npt.NDArray[Any], edges: Floats) -> Floats:
    """Means over each slice of a step function; 0 before its first value."""
    return step_means(np.append(time, max(edges[-1], time[-1])), np.append(values, 0), edges)


def _waste(groups: Sequence[Sequence[Run]]) -> list[dict[str, Any]]:
    """Means over the seeds, over the same part of all runs: while requests waited, or the whole run."""
    kinds = palette.kinds_of(run.summary for group in groups for run in group)
    shares, saturated = palette.shares_by_system([[run.summary for run in group] for group in groups])
    means = [{kind: round(fmean(each[kind] for each in seeds), 3) for kind in kinds} for seeds in shares]
    return [{"percent": percent, "saturated": saturated} for percent in means]


def _latency(runs: Sequence[Run], name: str) -> dict[str, Any]:
    """The distribution of a latency: per cent per bin, with the same logarithmic bins for all runs."""
    columns = [run.columns.requests[name][np.isfinite(run.columns.requests[name])] for run in runs]
    positive = np.concatenate([column[column > 0] for column in columns]) if columns else np.zeros(0)
    if not len(positive):
        return {"edges": [], "shares": [[] for _ in runs], "quantiles": [_quantiles(c) for c in columns]}
    low, high = np.log10(positive.min()), np.log10(positive.max())
    if high - low < 0.2:
        low, high = low - 0.1, high + 0.1
    edges = np.logspace(low, high, _BINS + 1)
    shares = []
    for column in columns:
        inside = np.clip(column, edges[0], edges[-1])  # rounding errors, and zeros
        shares.append(_rounded(100 * np.histogram(inside, edges)[0] / max(1, len(column))))
    return {"edges": _rounded(edges), "shares": shares, "quantiles": [_quantiles(c) for c in columns]}


def _quantiles(column: Floats) -> list[float]:
    """The points of the cumulative distribution to draw, evenly spaced in the share of requests."""
    levels = np.linspace(0, 1, _POINTS + 1)
    return _rounded(np.quantile(column, levels, method="inverted_cdf")) if len(column) else []


def _rounded(values: Floats) -> list[float]:
    """Five significant digits."""
    return [float(f"{value:.5g}") for value in values.tolist()]
