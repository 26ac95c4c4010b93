"""How evenly a fleet's work is spread over its replicas, while any replica is working.

While a replica is dead or off, its means are NaN and it is left out of comparisons.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.reports.arrays import Floats
from kvsim.reports.away import Away, away
from kvsim.reports.palette import ALLOCATED, KINDS, count, figures, percent_text
from kvsim.reports.rundir.run import Run
from kvsim.reports.slices import step_means


@dataclass(frozen=True)
class Fleet:
    """The replicas of a run, and when each was dead or off; means exclude those times."""

    replicas: list[Run]
    away: list[list[Away]]

    @classmethod
    def of(cls, run: Run) -> "Fleet":
        """The fleet of a run."""
        return cls(run.replicas, away(run.summary))

    @property
    def end_s(self) -> float:
        """When the last replica is done."""
        return max(float(each.columns.timeline["time_s"][-1]) for each in self.replicas)

    @property
    def changes(self) -> bool:
        """Whether any replica was absent at some time."""
        return any(self.away)

    def held(self, slices: int) -> Floats:
        """Per cent of the slots that are allocated, by replica and time slice."""
        return self._means([held(each) for each in self.replicas], slices)

    def column(self, name: str, slices: int) -> Floats:
        """The mean of a timeline column, by replica and time slice."""
        return self._means([each.columns.timeline[name] for each in self.replicas], slices)

    def _means(self, values: Sequence[npt.NDArray[Any]], slices: int) -> Floats:
        until_s, there = self.end_s or 1.0, self.there(slices)
        found = np.array([
            means(each, its, until_s, slices) for each, its in zip(self.replicas, values, strict=True)
        ])  # fmt: skip
        if not self.changes:
            return found
        return np.divide(found, there, out=np.full(found.shape, np.nan), where=there > _HARDLY)

    def there(self, slices: int) -> Floats:
        """The share of each time slice during which each replica was present."""
        edges = np.linspace(0, self.end_s or 1.0, slices + 1)
        share = np.ones((len(self.replicas), slices))
        for place, its in enumerate(self.away):
            for from_s, to_s, _ in its:
                gone_s = np.minimum(edges[1:], to_s) - np.maximum(edges[:-1], from_s)
                share[place] -= np.clip(gone_s, 0, None) / np.diff(edges)
        return share


_HARDLY = 1e-6
"""Smaller shares of a slice are rounding errors."""


def means(run: Run, values: npt.NDArray[Any], until_s: float, slices: int) -> Floats:
    """Means of a replica's column over equal slices of the fleet's time; 0 after the replica is done."""
    time_s = run.columns.timeline["time_s"].astype(np.float64)
    return step_means(time_s, values, np.linspace(0, until_s or 1.0, slices + 1))


def held(run: Run) -> Floats:
    """Per cent of the slots that are allocated, per row of the timeline."""
    timeline = run.columns.timeline
    allocated = sum(timeline[kind] for kind in ALLOCATED if kind in timeline)
    total = sum(timeline[kind] for kind in KINDS if kind in timeline)
    return 100 * allocated / np.maximum(total, 1)


def imbalance(fleet: Fleet) -> str:
    """The requests per replica, busiest against mean, and how full their memories are."""
    served = [len(each.columns.requests["request"]) for each in fleet.replicas]
    running, full = fleet.column("running", 1)[:, 0], fleet.held(1)[:, 0]
    handed = any(at_once > 0 and not own for at_once, own in zip(running, served, strict=True))
    each = f"{len(served)} replicas"  # disaggregated: all requests count for the decode replicas
    said = [each if handed else f"{_range(served, count)} requests to each of {each}"]
    if (running > 0).any():
        busiest = int(np.nanargmax(running))
        said.append(
            f"the busiest, replica {busiest}, runs {figures(float(running[busiest]))} requests at once on "
            f"average{' while it is there' if fleet.changes else ''}, {_over_mean(fleet)}"
        )
    said.append(f"KV memory in use {_range(full[~np.isnan(full)].tolist(), percent_text)}")
    return "; ".join(said)


def imbalance_in_short(fleet: Fleet) -> str:
    """`the busiest of 4 replicas runs 1.04 times the mean`."""
    if not (fleet.column("running", 1) > 0).any():
        return f"nothing ran on {len(fleet.replicas)} replicas"
    return f"the busiest of {len(fleet.replicas)} replicas runs {_over_mean(fleet)}"


def _over_mean(fleet: Fleet) -> str:
    """The busiest replica against the mean replica, each while it was present."""
    running, there = fleet.column("running", 1)[:, 0], fleet.there(1)[:, 0]
    known = ~np.isnan(running)
    total = sum((running[known] * there[known]).tolist())
    return f"{figures(float(running[known].max()) * float(there.sum()) / total)} times the mean"


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"
