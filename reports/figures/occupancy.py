"""utilisation: which share of the memory holds tokens. fragmentation: what is free, in how large pieces."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, StepPatch

from reports.figures import pieces
from reports.figures.choices import CannotDraw, Choices
from reports.figures.pieces import name
from reports.figures.sheet import new_sheet
from reports.figures.style import Style
from reports.rundir import Run

_LARGEST = "largest_free_extent"
_FREE = ("external", "cached", "free")


def utilisation(runs: Sequence[Run], choices: Choices) -> Figure:
    """The share of all slots that hold a token, a curve per run."""
    style = choices.style
    shares = [100 * run.timeline["token"] / pieces.capacity(run) for run in runs]
    means = [pieces.time_mean(run, share) for run, share in zip(runs, shares, strict=True)]
    figure = new_sheet(style, 3.6 + 0.07 * len(runs), _utilisation_headline(runs, means))
    axes = figure.subplots()
    axes.grid(axis="y")
    for place, (run, share) in enumerate(zip(runs, shares, strict=True)):
        pieces.time_curve(axes, style, run, share, place)
    axes.set(xlim=(0, pieces.longest(runs)), ylim=(0, 100), yticks=(0, 25, 50, 75, 100))
    axes.yaxis.set_major_formatter(pieces.percent_of(100))
    axes.set(xlabel="time (s)", ylabel="KV memory with tokens")
    if not any(map(pieces.duration, runs)):
        pieces.say(axes, style, "no run took any time: no memory to show")
    if len(runs) > 1:
        pieces.runs_below(figure, style, [name(run) for run in runs])
    return figure


def _utilisation_headline(runs: Sequence[Run], means: Sequence[float | None]) -> str:
    if len(runs) == 1:
        return f"{name(runs[0])}: {pieces.percent(means[0])} of the KV memory holds tokens on average"
    words = pieces.listed([name(run) for run in runs], means, pieces.percent)
    return f"KV memory that holds tokens, on average: {words}"


def fragmentation(runs: Sequence[Run], choices: Choices) -> Figure:
    """All that is free, its largest piece, and what is too small to be of use; a panel per run."""
    if any(_LARGEST not in run.timeline for run in runs):
        raise CannotDraw(f"figure fragmentation needs the column {_LARGEST} in timeline.parquet")
    style = choices.style
    height = 1.6 + (2.6 if len(runs) == 1 else 1.7 * len(runs))
    figure = new_sheet(style, height, _fragmentation_headline(runs))
    panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, run in zip(panels, runs, strict=True):
        if len(runs) > 1:
            axes.set_title(name(run), fontweight="bold")
        axes.grid(axis="y")
        _extents(axes, style, run)
        axes.set_xlim(0, pieces.longest(runs))
        axes.yaxis.set_major_formatter(pieces.percent_of(100))
    panels[0].set_ylim(0, 100)
    panels[-1].set_xlabel("time (s)")
    figure.supylabel("share of the KV memory", fontsize=style.type_pt)
    pieces.legend_below(figure, _extent_marks(style))
    return figure


def _extents(axes: Axes, style: Style, run: Run) -> None:
    if not pieces.duration(run):
        pieces.say(axes, style, "the run took no time: no memory to show")
        return
    time, whole = run.timeline["time_s"], pieces.capacity(run)
    free, edges = pieces.slice_means(time, 100 * _free_slots(run) / whole)
    external, _ = pieces.slice_means(time, 100 * run.timeline["external"] / whole)
    largest, _ = pieces.slice_means(time, 100 * run.timeline[_LARGEST] / whole)
    for values, kind in ((free, "free"), (external, "external")):
        look = style.kinds[kind]
        layer = StepPatch(values, edges, fill=True, **_filled(style, look.colour, look.hatch))
        axes.add_artist(layer)
        layer.set_clip_path(axes.patch)
    middle = (edges[1:] + edges[:-1]) / 2
    axes.plot(middle, free, color=style.muted, linewidth=0.5 * style.line)
    axes.plot(middle, largest, color=style.look(0).colour, linewidth=style.line)


def _filled(style: Style, colour: str, hatch: str | None) -> dict[str, Any]:
    return {"facecolor": colour, "hatch": hatch, "edgecolor": style.seam, "linewidth": 0}


def _extent_marks(style: Style) -> list[Any]:
    free, external = style.kinds["free"], style.kinds["external"]
    edge = {"edgecolor": style.muted, "linewidth": 0.5 * style.line}
    return [
        Patch(facecolor=free.colour, hatch=free.hatch, label="free in all (with cached prefixes)", **edge),
        Line2D([], [], color=style.look(0).colour, linewidth=1.5 * style.line, label="largest free extent"),
        Patch(label="external: in pieces too small", **_filled(style, external.colour, external.hatch)),
    ]


def _free_slots(run: Run) -> npt.NDArray[np.int64]:
    total: npt.NDArray[np.int64] = np.sum([run.timeline[kind] for kind in _FREE], axis=0)
    return total


def _fragmentation_headline(runs: Sequence[Run]) -> str:
    """The largest extent as a share of what is free, both averaged over the run."""
    shares = []
    for run in runs:
        free, largest = (pieces.time_mean(run, slots) for slots in (_free_slots(run), run.timeline[_LARGEST]))
        shares.append(100 * largest / free if free and largest is not None else None)
    if len(runs) == 1:
        return f"{name(runs[0])}: the largest free extent is {pieces.percent(shares[0])} of what is free"
    words = pieces.listed([name(run) for run in runs], shares, pieces.percent)
    return f"Largest free extent, of what is free on average: {words}"
