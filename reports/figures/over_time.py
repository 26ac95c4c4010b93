"""Timeline columns as curves: means over equal time slices, and over a system's seeds.

A curve has a few hundred slices, so peaks shorter than a pixel are averaged out and long runs draw fast.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports.arrays import Floats
from kvsim.reports.figures import pieces
from kvsim.reports.figures.pieces import panel_columns
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System, which_seed
from kvsim.reports.palette import KINDS
from kvsim.reports.rundir.run import Run
from kvsim.reports.slices import middles, step_means

_SLICES = 700


def ends(axes: Axes, style: Style, end_s: float, longest_s: float, panels: int) -> None:
    """Label the end of a run if the axis extends far enough; `panels`: the number of panels."""
    words = f"ended after {end_s:,.0f} s"
    room_pt = 60 * style.width_in / panel_columns(style, panels) * (1 - end_s / longest_s)
    if end_s and room_pt > 0.55 * style.small_pt * len(words) + 12:
        how: Any = {"va": "center", "color": style.muted, "fontsize": style.small_pt}
        axes.annotate(words, (end_s, 62), (6, 0), textcoords="offset points", **how)


def memory_panels(
    figure: Figure, style: Style, systems: Sequence[System], draw: Callable[[Axes, Style, Run], None]
) -> None:
    """A panel per system (its first seed), on the same axes: shares of the memory over time."""
    whole = max(duration(system.first) for system in systems) or 1.0
    panels = pieces.panels(figure, style, len(systems), f"time (s){which_seed(systems)}")
    for axes, system in zip(panels, systems, strict=True):
        if len(systems) > 1 or not style.headlines:
            pieces.panel_title(axes, style, system.full_name, pieces.panel_columns(style, len(systems)))
        draw(axes, style, system.first)
        ends(axes, style, duration(system.first), whole, len(panels))
        axes.set_xlim(0, whole)
    figure.supylabel("share of the KV memory", fontsize=style.type_pt)


def duration(run: Run) -> float:
    """Seconds from the first to the last row of the timeline; 0 with fewer than two rows."""
    time = run.columns.timeline["time_s"]
    return float(time[-1] - time[0]) if len(time) else 0.0


def longest(systems: Sequence[System]) -> float:
    """The end of a common time axis."""
    return max(duration(run) for system in systems for run in system.runs) or 1.0


def capacity(run: Run) -> npt.NDArray[np.int64]:
    """Total slots in each row of the timeline; 1 if there are none."""
    return np.maximum(slots_of(run, KINDS), 1)


def slots_of(run: Run, kinds: Iterable[str]) -> npt.NDArray[np.int64]:
    """Slots of these kinds together in each row of the timeline."""
    timeline = run.columns.timeline
    return np.sum([timeline[kind] for kind in kinds if kind in timeline], axis=0)


def slice_means(time: Floats, values: npt.NDArray[Any], end: float | None = None) -> tuple[Floats, Floats]:
    """The time-weighted means of a step function over equal slices, and the edges of the slices.

    If `end` is after the last row, values are 0 from the last row on.
    """
    edges = np.linspace(time[0], time[-1] if end is None else max(end, time[-1]), _SLICES + 1)
    return step_means(time, values, edges), edges


@dataclass(frozen=True)
class Curve:
    """A timeline column of a system: its mean over the seeds at each time, and their range."""

    middle: Floats
    mean: Floats
    least: Floats
    most: Floats

    @classmethod
    def of(cls, system: System, column: Callable[[Run], npt.NDArray[Any]]) -> Self:
        """Compute the curve of a column; empty if no run took any time."""
        runs = [run for run in system.runs if duration(run)]
        if not runs:
            return cls(*(np.zeros(0) for _ in range(4)))
        end = max(float(run.columns.timeline["time_s"][-1]) for run in runs)
        sliced = [slice_means(run.columns.timeline["time_s"], column(run), end) for run in runs]
        edges, means = sliced[0][1], np.array([means for means, _ in sliced])
        return cls(middles(edges), means.mean(axis=0), means.min(axis=0), means.max(axis=0))

    def plot(self, axes: Axes, style: Style, look: Look) -> None:
        """Draw a line, inside a band if there are several seeds."""
        if (self.most > self.least).any():
            axes.fill_between(self.middle, self.least, self.most, color=look.colour, alpha=0.22, linewidth=0)
        axes.plot(self.middle, self.mean, color=look.colour, linestyle=look.dash, linewidth=0.87 * style.line)


def time_mean(run: Run, values: npt.NDArray[Any]) -> float | None:
    """The mean of a column of the timeline over the run."""
    span = duration(run)
    return float((np.diff(run.columns.timeline["time_s"]) * values[:-1]).sum() / span) if span else None


def time_words(systems: Sequence[System], style: Style) -> str:
    """The label of the time axis."""
    if all(len(system.runs) == 1 for system in systems):
        return "time (s)"
    return f"time (s); {'mean and range' if style.narrow else 'lines: means, bands: ranges'} of the seeds"
