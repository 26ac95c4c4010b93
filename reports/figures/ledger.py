"""memory: the ledger at every moment, stacked to 100 %. waste: the same as one bar per run.

Curves over time show the mean over each of some hundred equal slices of the run, so a peak shorter than a
pixel is averaged, and a long run draws as fast as a short one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch

from reports import palette
from reports.figures import pieces
from reports.figures.choices import Choices
from reports.figures.pieces import name
from reports.figures.sheet import new_sheet, wrapped
from reports.figures.style import Style
from reports.palette import KINDS
from reports.rundir import Run


def memory(runs: Sequence[Run], choices: Choices) -> Figure:
    """The ledger over time, one panel per run on the same axes."""
    style = choices.style
    height = 1.6 + (2.6 if len(runs) == 1 else 1.7 * len(runs))
    figure = new_sheet(style, height, _memory_headline(runs))
    panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, run in zip(panels, runs, strict=True):
        if len(runs) > 1:
            axes.set_title(name(run), fontweight="bold")
        _stack(axes, style, run)
        axes.set(xlim=(0, pieces.longest(runs)), ylim=(0, 100), yticks=(0, 25, 50, 75, 100))
        axes.yaxis.set_major_formatter(pieces.percent_of(100))
    panels[-1].set_xlabel("time (s)")
    figure.supylabel("share of the KV memory", fontsize=style.type_pt)
    there = [kind for kind in KINDS if any(run.timeline[kind].any() for run in runs)]
    marks: list[Any] = [pieces.kind_patch(style, kind) for kind in there]
    if any((run.timeline["waiting"] > 0).any() for run in runs):
        marks.append(Line2D([], [], color=style.ink, linewidth=1.7 * style.line, label="requests wait"))
    pieces.legend_below(figure, marks)
    return figure


def _stack(axes: Axes, style: Style, run: Run) -> None:
    """The stack of one run; painted from the top down so that no seams show between the layers."""
    if not pieces.duration(run):
        pieces.say(axes, style, "the run took no time: no memory to show")
        return
    time = run.timeline["time_s"]
    slices = [pieces.slice_means(time, run.timeline[kind]) for kind in KINDS]
    edges = slices[0][1]
    tops = np.cumsum([means for means, _ in slices], axis=0)
    tops *= 100 / np.where(tops[-1] > 0, tops[-1], 1)
    for kind, top in reversed(list(zip(KINDS, tops, strict=True))):
        look = style.kinds[kind]
        how: Any = {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": style.seam, "linewidth": 0}
        layer = StepPatch(top, edges, fill=True, **how)
        axes.add_artist(layer)  # axes.stairs would also measure every vertex
        layer.set_clip_path(axes.patch)
    waits, _ = pieces.slice_means(time, run.timeline["waiting"] > 0)
    somebody = np.where(waits >= 0.5, 101.0, np.nan)
    middle = (edges[1:] + edges[:-1]) / 2
    axes.plot(middle, somebody, color=style.ink, linewidth=1.7 * style.line, clip_on=False)


def _memory_headline(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        share, saturated = palette.shares(runs[0].summary)
        when = " while requests wait" if saturated else ", averaged over the run"
        return f"{name(runs[0])}: tokens fill {share['token']:.1f} % of the KV memory{when}"
    filled = [palette.shares(run.summary)[0]["token"] for run in runs]
    words = pieces.listed([name(run) for run in runs], filled, lambda value: f"{value:.0f} %")
    return f"Share of the KV memory that tokens fill: {words}"


def waste(runs: Sequence[Run], choices: Choices) -> Figure:
    """One stacked bar per run: of what waits there, else of the whole run."""
    style = choices.style
    figure = new_sheet(style, 1.9 + 0.55 * len(runs), _waste_headline(runs))
    axes = figure.subplots()
    names = []
    for row, run in enumerate(runs):
        share, saturated = palette.shares(run.summary)
        names.append(wrapped(name(run), 22) + ("" if saturated else "\n(whole run)"))
        _bar(axes, style, row, share)
    axes.set_yticks(range(len(runs)), names, color=style.ink)
    axes.set(xlim=(0, 100), ylim=(len(runs) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(pieces.percent_of(100))
    everywhere = all(palette.shares(run.summary)[1] for run in runs)
    axes.set_xlabel("share of the KV memory" + (", mean while requests wait" if everywhere else ", mean"))
    pieces.legend_below(figure, [pieces.kind_patch(style, kind) for kind in KINDS])
    return figure


def _bar(axes: Axes, style: Style, row: int, percent: dict[str, float]) -> None:
    """One bar of 100 % with its numbers; the waste in all stands at its end."""
    left = 0.0
    for kind, share in percent.items():
        look = style.kinds[kind]
        how: Any = {"color": look.colour, "hatch": look.hatch, "edgecolor": style.seam}
        axes.barh(row, share, 0.68, left, linewidth=0.53 * style.line, **how)
        if share >= 4.5:
            box = {"facecolor": look.colour, "edgecolor": "none", "pad": 1.5}
            middle = left + share / 2
            axes.text(middle, row, f"{share:.1f}", color=look.ink, ha="center", va="center", bbox=box)
        left += share
    end = f"{palette.waste(percent):.1f} % waste" if left else "nothing ran"
    axes.annotate(end, (100, row), (6, 0), textcoords="offset points", va="center", fontweight="bold")


def _waste_headline(runs: Sequence[Run]) -> str:
    ledgers = [(name(run), palette.shares(run.summary)[0]) for run in runs]
    wasted = sorted((palette.waste(percent), label) for label, percent in ledgers if any(percent.values()))
    if not wasted:
        return "Nothing ran, nothing was wasted"
    (least, best), (most, worst) = wasted[0], wasted[-1]
    headline = f"{best} wastes {least:.1f} % of the KV memory"
    return headline if best == worst else f"{headline}, {worst} {most:.1f} %"
