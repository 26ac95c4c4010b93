"""requests: running and waiting requests over time. batched: running requests as bars."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kvsim.reports import palette
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import Choices
from kvsim.reports.figures.over_time import Curve, longest, time_mean, time_words
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.systems import System, rankable, under_loads
from kvsim.reports.palette import Summary
from kvsim.reports.quantities import MAX_RUNNING, MEAN_RUNNING
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import Interval, interval
from kvsim.reports.seeds.words import with_spread


def requests(systems: Sequence[System], choices: Choices) -> Figure:
    """Running and waiting requests over time."""
    style = choices.style
    columns = {
        column: [Curve.of(system, partial(_timeline, column)) for system in systems]
        for column in ("running", "waiting")
    }
    both = [np.concatenate([one.mean, other.mean]) for one, other in zip(*columns.values(), strict=True)]
    looks = pieces.looks(style, systems, both)
    figure = new_sheet(style, 4.8, _requests_headline(systems))
    above, below = figure.subplots(2, 1, sharex=True)
    for (column, curves), axes in zip(columns.items(), (above, below), strict=True):
        axes.set_title(f"{column} requests")
        axes.grid(axis="y")
        for curve, look in zip(curves, looks, strict=True):
            curve.plot(axes, style, look)
        axes.set_xlim(0, longest(systems))
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
        if not any(curve.most.any() for curve in curves):
            axes.set_yticks([0])
            pieces.say(axes, style, f"no request was ever {column}")
    below.set_xlabel(time_words(systems, style))
    if len(systems) > 1 or not style.headlines:
        pieces.systems_below(figure, style, [system.name for system in systems], looks)
    return figure


def _timeline(column: str, run: Run) -> npt.NDArray[Any]:
    return run.columns.timeline[column]


def _requests_headline(systems: Sequence[System]) -> str:
    means = [_at_once(system) for system in systems]
    if len(systems) == 1:
        (system,), at_once = systems, with_spread(palette.figures, means[0])
        if system.is_fleet:
            each = with_spread(palette.figures, system.number(MEAN_RUNNING.read))
            return f"{system.name} computes {at_once} requests at once on average, a replica {each}"
        most = with_spread(palette.count, system.number(MAX_RUNNING.read))
        return f"{system.name} computes {at_once} requests at once on average, {most} at most"
    words = pieces.listed([system.name for system in systems], means, palette.figures)
    return f"Requests computed at once, on average{under_loads(systems)}: {words}"


def _at_once(system: System) -> Interval | None:
    """The mean number of running requests, all replicas together."""
    if not system.is_fleet:
        return system.number(MEAN_RUNNING.read)
    return interval([time_mean(run, _timeline("running", run)) for run in system.runs])


def batched(systems: Sequence[System], choices: Choices) -> Figure:
    """Running requests: the maximum and the mean, while requests waited if all runs had such time."""
    style = choices.style
    saturated = all(system.number(_while_waiting) for system in systems)
    found = [
        (system.number(_while_waiting if saturated else MEAN_RUNNING.read), _most(system))
        for system in systems
    ]
    ends = [max(mean.high if mean else 0, most or 0) for mean, most in found]
    headline = _batched_headline(systems, [mean for mean, _ in found])
    figure = new_sheet(style, 1.9 + 0.42 * len(systems), headline)
    axes = figure.subplots()
    axes.grid(axis="x")
    edge = style.paper if not style.grey_print else style.ink
    looks = style.looks([system.parts for system in systems])
    for row, ((mean, most), look) in enumerate(zip(found, looks, strict=True)):
        how: Any = {"color": _fill(look.colour, style.grey_print), "hatch": look.hatch, "edgecolor": edge}
        axes.barh(row, mean.mean if mean else 0, 0.66, linewidth=0.53 * style.line, **how)
        if mean and not mean.fixed:
            axes.plot([max(mean.low, 0), mean.high], [row, row], color=style.ink, linewidth=style.line)
        if most is not None:
            axes.plot([most, most], [row - 0.33, row + 0.33], color=style.ink, linewidth=1.3 * style.line)
        words = "nothing ran"
        if mean and mean.mean:
            words = f"{with_spread(palette.figures, mean)}, at most {palette.count(most)}"
        axes.annotate(words, (ends[row], row), (6, 0), textcoords="offset points", va="center")
    names = [pieces.row_name(style, system.name) for system in systems]
    axes.set_yticks(range(len(systems)), names, color=style.ink)
    axes.set(xlim=(0, 1.03 * (max(ends, default=0) or 1)), ylim=(len(systems) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(4 if style.narrow else 7, integer=True, steps=[1, 2, 5, 10]))
    of = " by a replica" if any(system.is_fleet for system in systems) else ""
    mean_of = f"mean {'while requests wait' if saturated else 'of the run'}"
    axes.set_xlabel(f"requests computed at once{of},{chr(10) if style.narrow else ' '}{mean_of}")
    most_mark: Any = {"marker": "|", "markersize": 9, "markeredgewidth": 1.3 * style.line}
    marks = [Line2D([], [], color=style.ink, linestyle="", label="most at once", **most_mark)]
    if any(mean and not mean.fixed for mean, _ in found):
        label = "95 % confidence of the mean"
        marks.append(Line2D([], [], color=style.ink, linewidth=style.line, label=label))
    pieces.legend_below(figure, style, marks)
    return figure


def _while_waiting(summary: Summary) -> object:
    """The mean over the saturated part, if that was long enough."""
    return summary["engine"].get("mean_running_saturated") if palette.shares(summary)[1] else None


def _most(system: System) -> float | None:
    known = [MAX_RUNNING.read(summary) for summary in system.summaries]
    return max((most for most in known if most is not None), default=None)


def _fill(colour: str, grey_print: bool) -> str:
    """A lighter tint, so that a hatch shows on it."""
    if not grey_print:
        return colour
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.45 * (255 - part)):02X}" for part in parts)


def _batched_headline(systems: Sequence[System], means: Sequence[Interval | None]) -> str:
    known = [(mean.mean, place) for place, mean in enumerate(means) if mean and mean.mean]
    if not known:
        return "Nothing ran: no request was computed"
    (least, worst), (most, best) = min(known), max(known)
    at_once = f"{with_spread(palette.figures, means[best])} requests at once"
    computes = f"{systems[best].name} computes {at_once}"
    if len(known) == 1:
        return computes
    if least == most:
        return f"{palette.everybody([systems[place].name for _, place in known])} compute {at_once}"
    if not rankable(systems):
        names = [system.name for system in systems]
        listed = pieces.listed(names, means, palette.figures)
        return f"Requests computed at once{under_loads(systems)}: {listed}"
    return f"{computes}, {palette.figures(most / least)} times as many as {systems[worst].name}"
