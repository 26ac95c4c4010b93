"""The pieces that figures share: names, headlines, legends, axes and means over slices of time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from reports.figures.style import Style
from reports.palette import KINDS
from reports.rundir import Run

FloatArray = npt.NDArray[np.float64]

_SLICES = 700
_MOST_LISTED = 4


def name(run: Run) -> str:
    """The label, cut where it would crowd out the data."""
    return short(run.label)


def short(text: str, most: int = 28) -> str:
    """The text, cut to so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def listed(names: Sequence[str], values: Sequence[float | None], words: Callable[[float | None], str]) -> str:
    """A value per name; of many the least and the most."""
    if len(names) <= _MOST_LISTED:
        said = [words(value).replace(" ", "\u00a0") for value in values]  # no line breaks before a unit
        return ", ".join(f"{each} {value}" for each, value in zip(names, said, strict=True))
    known = [(value, place) for place, value in enumerate(values) if value is not None]
    if not known:
        return "none"
    (least, first), (most, last) = min(known), max(known)
    if least == most:
        return f"{words(least)} in all {len(names)} runs"
    return f"{words(least)} ({names[first]}) to {words(most)} ({names[last]})"


def percent_of(whole: float) -> PercentFormatter:
    """Ticks in per cent."""
    return PercentFormatter(xmax=whole, decimals=0, symbol=" %")


def percent(value: float | None) -> str:
    """For a headline."""
    return "-" if value is None else f"{value:.1f} %"


def say(axes: Axes, style: Style, text: str) -> None:
    """Write into the middle of axes that have nothing to show."""
    place = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, text, color=style.muted, fontsize=1.1 * style.type_pt, **place)


def kind_patch(style: Style, kind: str) -> Patch:
    """The entry of a kind of memory in a legend."""
    look = style.kinds[kind]
    how: Any = {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": style.seam, "linewidth": 0.5}
    return Patch(label=f"{kind}: {KINDS[kind].meaning}", **how)


def run_line(style: Style, place: int, label: str, marker: bool = False) -> Line2D:
    """The entry of a run in a legend."""
    look = style.look(place)
    mark: Any = {"marker": look.marker, "markersize": 3 * style.line} if marker else {}
    return Line2D(
        [], [], color=look.colour, linestyle=look.dash, linewidth=1.5 * style.line, label=label, **mark
    )


def legend_below(figure: Figure, marks: Sequence[Any], columns: int = 3) -> None:
    """A legend under all panels, which covers no data."""
    wide = {"handlelength": 2.6 if any(isinstance(mark, Line2D) for mark in marks) else 1.6}
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, columnspacing=1.5, **wide)


def runs_below(figure: Figure, style: Style, names: Sequence[str], marker: bool = False) -> None:
    """A legend of runs under all panels, in as many columns as fit."""
    marks = [run_line(style, place, each, marker) for place, each in enumerate(names)]
    entry_pt = (0.6 * max(map(len, names), default=1) + 5.5) * style.small_pt
    columns = max(1, int(72 * style.width_in / entry_pt))
    lines = -(-len(names) // columns)
    legend_below(figure, marks, columns=-(-len(names) // max(lines, 1)))


def duration(run: Run) -> float:
    """Seconds from the first to the last row of the timeline; 0 where there is no such span."""
    time = run.timeline["time_s"]
    return float(time[-1] - time[0]) if len(time) else 0.0


def longest(runs: Sequence[Run]) -> float:
    """The end of a time axis for all of them."""
    return max(duration(run) for run in runs) or 1.0


def capacity(run: Run) -> npt.NDArray[np.int64]:
    """All slots of each row of the timeline; 1 where there are none."""
    total: npt.NDArray[np.int64] = np.sum([run.timeline[kind] for kind in KINDS], axis=0)
    return np.maximum(total, 1)


def slice_means(time: FloatArray, values: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """The time-weighted means of a step function over equal slices, and the edges of the slices."""
    edges = np.linspace(time[0], time[-1], _SLICES + 1)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(time) * values[:-1])])
    return np.diff(np.interp(edges, time, integral)) / np.diff(edges), edges


def time_curve(axes: Axes, style: Style, run: Run, values: npt.NDArray[Any], place: int) -> None:
    """A column of the timeline as a line; nothing where the run took no time."""
    if duration(run):
        means, edges = slice_means(run.timeline["time_s"], values)
        look = style.look(place)
        middle = (edges[1:] + edges[:-1]) / 2
        axes.plot(middle, means, color=look.colour, linestyle=look.dash, linewidth=0.87 * style.line)


def time_mean(run: Run, values: npt.NDArray[Any]) -> float | None:
    """The mean of a column of the timeline over the run."""
    span = duration(run)
    return float((np.diff(run.timeline["time_s"]) * values[:-1]).sum() / span) if span else None


def finite(values: FloatArray) -> FloatArray:
    """Those that are numbers."""
    return values[np.isfinite(values)]


def log_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """A logarithmic axis with plain numbers, enough of them also where it spans little more than a decade."""
    getattr(axes, f"set_{which}scale")("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    subs = (1,) if high > 50 * low else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=subs, numticks=9))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axes, which)


def plain_numbers(axes: Axes, which: str, factor: float = 1.0) -> None:
    """1,000 and 0.01 instead of powers of ten."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * factor:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def ticks_at(axes: Axes, values: Sequence[float]) -> None:
    """Ticks of the x axis at the values themselves, no others."""
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers(axes, "x")
