"""utilisation: the share of memory that holds tokens. fragmentation: free memory by extent size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kvsim.reports import palette
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.over_time import (
    Curve,
    capacity,
    duration,
    longest,
    memory_panels,
    slice_means,
    slots_of,
    time_mean,
    time_words,
)
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import System, under_loads
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import interval
from kvsim.reports.seeds.words import with_spread
from kvsim.reports.slices import middles

_LARGEST = "largest_free_extent"
_FREE = ("external", "cached", "idle", "free")


def utilisation(systems: Sequence[System], choices: Choices) -> Figure:
    """The share of all slots that hold a token, a curve per system."""
    style = choices.style
    curves = [Curve.of(system, _with_tokens) for system in systems]
    looks = pieces.looks(style, systems, [curve.mean for curve in curves])
    figure = new_sheet(style, 3.7, _utilisation_headline(systems))
    axes = figure.subplots()
    axes.grid(axis="y")
    for curve, look in zip(curves, looks, strict=True):
        curve.plot(axes, style, look)
    axes.set(xlim=(0, longest(systems)), ylim=(0, 100), yticks=(0, 25, 50, 75, 100))
    axes.yaxis.set_major_formatter(pieces.percent_of(100))
    axes.set(xlabel=time_words(systems, style), ylabel="KV memory with tokens")
    if not any(len(curve.mean) for curve in curves):
        pieces.say(axes, style, "no run took any time: no memory to show")
    if len(systems) > 1 or not style.headlines:
        pieces.systems_below(figure, style, [system.name for system in systems], looks)
    return figure


def _with_tokens(run: Run) -> npt.NDArray[np.float64]:
    return 100 * run.columns.timeline["token"] / capacity(run)


def _utilisation_headline(systems: Sequence[System]) -> str:
    means = [system.number(lambda s: palette.whole_run(s)["token"]) for system in systems]
    if len(systems) == 1:
        holds = with_spread(palette.percent_text, means[0])
        return f"{systems[0].name}: {holds} of the KV memory holds tokens over the whole run"
    words = pieces.listed([system.name for system in systems], means, palette.percent_text)
    return f"KV memory that holds tokens, over the whole run{under_loads(systems)}: {words}"


def fragmentation(systems: Sequence[System], choices: Choices) -> Figure:
    """Free memory, its largest extent, and the extents too small to use; for the first seed."""
    runs = [system.first for system in systems]
    if any(_LARGEST not in run.columns.timeline for system in systems for run in system.runs):
        raise CannotDraw(f"figure fragmentation needs the column {_LARGEST} in timeline.parquet")
    style = choices.style
    figure = new_sheet(style, pieces.panels_in(style, len(runs)), _fragmentation_headline(systems))
    memory_panels(figure, style, systems, _extents)
    pieces.legend_below(figure, style, _extent_marks(style, [run.summary for run in runs]))
    return figure


def _extents(axes: Axes, style: Style, run: Run) -> None:
    axes.grid(axis="y")
    if not duration(run):
        pieces.say(axes, style, "the run took no time: no memory to show")
        return
    time, whole = run.columns.timeline["time_s"], capacity(run)
    free, edges = slice_means(time, 100 * slots_of(run, _FREE) / whole)
    external, _ = slice_means(time, 100 * run.columns.timeline["external"] / whole)
    largest, _ = slice_means(time, 100 * run.columns.timeline[_LARGEST] / whole)
    pieces.layer(axes, free, edges, facecolor=_free_colour(style), edgecolor=style.seam)
    pieces.layer(axes, external, edges, **style.filled("external"))
    middle = middles(edges)
    axes.plot(middle, free, color=style.muted, linewidth=0.5 * style.line)
    axes.plot(middle, largest, color=style.role("largest free extent").colour, linewidth=style.line)


def _extent_marks(style: Style, summaries: Sequence[palette.Summary]) -> list[Any]:
    edge = {"edgecolor": style.muted, "linewidth": 0.5 * style.line}
    largest = style.role("largest free extent").colour
    lost = f"external: {palette.meaning('external', summaries).removeprefix('free, ')}"
    return [
        Patch(facecolor=_free_colour(style), label="free in total (with cached prefixes)", **edge),
        Line2D([], [], color=largest, linewidth=1.5 * style.line, label="largest free extent"),
        Patch(label=lost, linewidth=0, **style.filled("external")),
    ]


def _free_colour(style: Style) -> str:
    """A colour that is also visible on paper."""
    return style.grid if style.grey_print else style.kinds["free"].colour


def _fragmentation_headline(systems: Sequence[System]) -> str:
    """The largest extent as a share of free memory, both averaged over the run."""
    shares = [interval([_largest_share(run) for run in system.runs]) for system in systems]
    if len(systems) == 1:
        found = with_spread(palette.percent_text, shares[0])
        return f"{systems[0].name}: the largest free extent is {found} of what is free"
    words = pieces.listed([system.name for system in systems], shares, palette.percent_text)
    return f"Largest free extent, of what is free on average{under_loads(systems)}: {words}"


def _largest_share(run: Run) -> float | None:
    free, largest = time_mean(run, slots_of(run, _FREE)), time_mean(run, run.columns.timeline[_LARGEST])
    return 100 * largest / free if free and largest is not None else None
