"""How evenly a fleet's work is spread over its replicas, over the time in which any replica works."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.reports.palette import ALLOCATED, KINDS, count, figures, percent_text
from kvsim.reports.rundir.run import Run

Floats = npt.NDArray[np.float64]


def end_s(replicas: Sequence[Run]) -> float:
    """When the last replica is done."""
    return max(float(each.columns.timeline["time_s"][-1]) for each in replicas)


def means(run: Run, values: npt.NDArray[Any], until_s: float, slices: int) -> Floats:
    """Means of a replica's column over equal slices of the fleet's time; 0 once it is done."""
    time_s = run.columns.timeline["time_s"].astype(np.float64)
    edges = np.linspace(0, until_s or 1.0, slices + 1)
    area = np.concatenate([[0.0], np.cumsum(np.diff(time_s) * values[:-1])])
    found: Floats = np.diff(np.interp(edges, time_s, area)) / np.diff(edges)
    return found


def held(run: Run) -> Floats:
    """Per cent of the slots that are allocated, per row of the timeline."""
    timeline = run.columns.timeline
    allocated = sum(timeline[kind] for kind in ALLOCATED if kind in timeline)
    total = sum(timeline[kind] for kind in KINDS if kind in timeline)
    share: Floats = 100 * allocated / np.maximum(total, 1)
    return share


def imbalance(replicas: Sequence[Run]) -> str:
    """The requests per replica, the busiest against the mean, and how full their memories are."""
    until_s = end_s(replicas)
    served = [len(each.columns.requests["request"]) for each in replicas]
    running = _at_once(replicas)
    full = [float(means(each, held(each), until_s, 1)[0]) for each in replicas]
    handed = any(at_once and not own for at_once, own in zip(running, served, strict=True))
    each = f"{len(replicas)} replicas"  # of prefill and decode: all requests count as the decode replicas'
    said = [each if handed else f"{_range(served, count)} requests to each of {each}"]
    if any(running):
        busiest = max(range(len(running)), key=running.__getitem__)
        said.append(
            f"the busiest, replica {busiest}, runs {figures(running[busiest])} requests at once on average, "
            f"{_over_mean(running)}"
        )
    said.append(f"KV memory in use {_range(full, percent_text)}")
    return "; ".join(said)


def imbalance_in_short(replicas: Sequence[Run]) -> str:
    """`the busiest of 4 replicas runs 1.04 times the mean`."""
    running = _at_once(replicas)
    if not any(running):
        return f"nothing ran on {len(replicas)} replicas"
    return f"the busiest of {len(replicas)} replicas runs {_over_mean(running)}"


def _at_once(replicas: Sequence[Run]) -> list[float]:
    """Requests at once on average, by replica."""
    until_s = end_s(replicas)
    return [float(means(each, each.columns.timeline["running"], until_s, 1)[0]) for each in replicas]


def _over_mean(running: Sequence[float]) -> str:
    return f"{figures(max(running) * len(running) / sum(running))} times the mean"


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"
