"""throughput: a latency over the load and the served rate. block-size: the cost of larger blocks."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports import palette
from kvsim.reports.colours import parts_of
from kvsim.reports.figures import joined, pieces
from kvsim.reports.figures.choices import CannotDraw, Choices, Latency
from kvsim.reports.figures.joined import Curve
from kvsim.reports.figures.sheet import new_sheet, wrapped
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System, short
from kvsim.reports.goals import limits_of
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.sweeps.systems import LOADS
from kvsim.sim.counted import several

_AT = {
    "request_rate": "when {:g} come",
    "clients": "with {:g} clients",
    "rate_scale": "at {:g} times the speed of the trace",
}


def throughput(systems: Sequence[System], choices: Choices) -> Figure:
    """A latency over the load and over requests served per second; a curve per system."""
    runs = _all_runs(systems)
    load = next((key for key in LOADS if len(_values(runs, key)) > 1), None)
    if load is None:
        rates = ", ".join(f"{rate:g}" for rate in _values(runs, "request_rate")) or "none"
        raise CannotDraw(
            "figure throughput needs runs at two or more request rates (or numbers of clients), "
            f"got {several(len(runs), 'run')} with request rates: {rates}"
        )
    style, latency = choices.style, choices.latency or Latency()
    found = joined.curves(runs, load)

    number = partial(_latency, latency)
    figure = new_sheet(style, 4.2, _throughput_headline(found, load))
    left, right = figure.subplots(1, 2, sharey=True)
    for curve, look in zip(found, _looks(style, found), strict=True):
        points = curve.points(number)
        _plot(left, style, look, points)
        served = dict(curve.points(_served))
        _plot(right, style, look, [(served[x].mean, value) for x, value in points if x in served])
    limits = [limit for limit in limits_of(runs, latency.key) if limit.statistic == latency.statistic]
    means = [value.mean for curve in found for _, value in curve.points(number)]
    pieces.value_axis(left, [*means, *(limit.limit_s for limit in limits)])
    for axes, limit in product((left, right), limits):
        pieces.limit_line(axes, style, limit, along="y")
    words = latency.words.replace(", ", ",\n") if style.narrow else latency.words
    left.set(xlabel=LOADS[load], ylabel=words)
    right.set(xlabel="requests served per second" if not style.narrow else "served (requests/s)")
    for axes in (left, right):
        axes.grid(axis="both")
        axes.set_xlim(left=0)
    if not any(curve.points(number) for curve in found):
        left.set_xlim(0, max(_values(runs, load)))
        pieces.say(left, style, "no request finished")
    _legend(figure, style, found)
    return figure


def block_size(systems: Sequence[System], choices: Choices) -> Figure:
    """A latency, the waste and the throughput over the block size; a curve per system."""
    runs = _all_runs(systems)
    sizes = _values(runs, "block_size")
    if len(sizes) < 2:
        only = f"only {sizes[0]:g}" if sizes else "none"
        got = f"{several(len(runs), 'run')} with {only}"
        raise CannotDraw(f"figure block-size needs runs with two or more block sizes, got {got}")
    style, latency = choices.style, choices.latency or Latency()
    found = joined.curves(runs, "block_size")
    _, saturated = palette.shares_of_all([run.summary for run in runs])
    when = "while requests wait" if saturated else "over the whole run"
    panels: list[tuple[str, Callable[[Run], float | None]]] = [
        (latency.words, partial(_latency, latency)),
        (f"waste {when} (% of the KV memory)", lambda run: _wasted(run, saturated)),
        ("requests served per second", _served),
    ]
    figure = new_sheet(style, 6.6 if style.narrow else 3.6, _block_headline(found, sizes))
    rows, columns = (3, 1) if style.narrow else (1, 3)
    grid = figure.subplots(rows, columns, sharex=True)
    for axes, (title, number) in zip(grid, panels, strict=True):
        means = []
        for curve, look in zip(found, _looks(style, found), strict=True):
            points = curve.points(number)
            means += [value.mean for _, value in points]
            _plot(axes, style, look, points)
        axes.set_xscale("log", base=2)
        pieces.ticks_at(axes, sizes)
        axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
        pieces.from_0(axes, means)
        axes.set_title(title if style.narrow else wrapped(title, 28))
        axes.grid(axis="y")
        if axes is grid[-1] or not style.narrow:
            axes.set_xlabel("tokens per block")
        if not means:
            pieces.say(axes, style, "no request finished")
    _legend(figure, style, found)
    return figure


def _wasted(run: Run, saturated: bool) -> float:
    """Waste in per cent of KV memory, over the saturated part or the whole run."""
    percent = palette.while_waiting(run.summary) if saturated else palette.whole_run(run.summary)
    return palette.waste(percent or palette.whole_run(run.summary))


def _latency(latency: Latency, run: Run) -> float | None:
    return palette.number(run.summary["latency"][latency.key].get(latency.statistic))


def _served(run: Run) -> float | None:
    return palette.number(run.summary["throughput"]["requests_per_s"])


def _all_runs(systems: Sequence[System]) -> list[Run]:
    return [run for system in systems for run in system.runs]


def _plot(axes: Axes, style: Style, look: Look, points: Sequence[tuple[float, Interval]]) -> None:
    """Join means by a line, with a bar for the interval if there are several seeds."""
    if not points:
        return
    mark: Any = {"marker": look.marker, "markersize": 2.7 * style.line, "markeredgewidth": 0}
    xs, means = [x for x, _ in points], [value.mean for _, value in points]
    axes.plot(xs, means, color=look.colour, linestyle=look.dash, clip_on=False, **mark)
    for x, value in points:
        if not value.fixed:
            axes.plot([x, x], [value.low, value.high], color=look.colour, linewidth=0.67 * style.line)


def _looks(style: Style, found: Sequence[Curve]) -> list[Look]:
    return style.looks([parts_of(next(iter(curve.runs.values()))[0].config) for curve in found])


def _legend(figure: Figure, style: Style, found: Sequence[Curve]) -> None:
    names = [short(curve.name, 60) for curve in found]
    pieces.systems_below(figure, style, names, _looks(style, found), marker=True)


def _values(runs: Sequence[Run], key: str) -> list[float]:
    return sorted({x for run in runs if (x := joined.setting(run, key)) is not None})


def _throughput_headline(found: Sequence[Curve], load: str) -> str:
    """Each curve's throughput at the highest load they all have; other loads are not comparable."""
    names = [short(curve.name, 40) for curve in found]
    common = set.intersection(*(set(curve.runs) for curve in found))
    if not common:
        return f"Curves without a common load: {', '.join(names)}"
    highest = max(common)
    served = [dict(curve.points(_served)).get(highest) for curve in found]
    listed = pieces.listed(names, served, palette.figures)
    return f"Requests served per second {_AT[load].format(highest)}: {listed}"


def _block_headline(found: Sequence[Curve], sizes: Sequence[float]) -> str:
    """The block sizes at which the first curve is within 1 % of its highest throughput."""
    curve = found[0]
    served = [(x, value.mean) for x, value in curve.points(_served)]
    if not served:
        return f"Blocks of {sizes[0]:g} to {sizes[-1]:g} tokens: nothing was served"
    most = max(mean for _, mean in served)
    good = [f"{x:g}" for x, mean in served if mean >= 0.99 * most]
    if len(good) == len(served) > 1:
        alike = f"blocks of {good[0]} to {good[-1]} tokens"
        return f"{short(curve.name)} has the same throughput within 1 % with {alike}"
    sizes_words = " or ".join(filter(None, [", ".join(good[:-1]), good[-1]]))
    return f"{short(curve.name)} has its highest throughput (within 1 %) with blocks of {sizes_words} tokens"
