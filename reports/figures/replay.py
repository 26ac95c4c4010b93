"""replay-requests: each request, measured and simulated; replay-time: the error over the run.

requests   TTFT, TPOT and E2E: a dot a request, with the line of equality and those of 10 % off
time       simulated over measured by the time of arrival: a dot a request, and the median of parts of the run
"""

from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kvsim.reports.figures.sheet import new_sheet, save
from kvsim.reports.figures.style import Style
from kvsim.sim.bench.measured import Floats, MeasuredRun
from kvsim.sim.bench.replay import Simulated, pairs
from kvsim.sim.errors import KvsimError

BAND = 1.1
MOST_PARTS = 20
SCALES = {"TTFT": (1.0, "s"), "TPOT": (1e3, "ms"), "E2E": (1.0, "s")}
Pair = tuple[Floats, Floats]


def draw_replay(run: MeasuredRun, found: Simulated, directory: Path, style: Style, fmt: str = "png") -> None:
    """Draw both into a directory; KvsimError for a run known by its numbers only."""
    for name in ("requests", "time"):
        save(directory / f"replay-{name}.{fmt}", style, partial(picture, run, found, name, style))


def picture(run: MeasuredRun, found: Simulated, name: str, style: Style) -> Figure:
    """One of them."""
    columns = {what: _known(pair) for what, pair in pairs(run, found).items()}
    if not columns:
        raise KvsimError(f"result {run.name} holds no requests, so there is nothing to draw")
    return _requests(run, columns, style) if name == "requests" else _time(run, found, style)


def _known(pair: Pair) -> Pair:
    there = np.isfinite(pair[0]) & np.isfinite(pair[1]) & (pair[0] > 0) & (pair[1] > 0)
    return pair[0][there], pair[1][there]


def _requests(run: MeasuredRun, columns: dict[str, Pair], style: Style) -> Figure:
    offs = [
        f"{what} {100 * (np.mean(pair[1]) / np.mean(pair[0]) - 1):+.1f} %"
        for what, pair in columns.items()
        if len(pair[0])
    ]
    figure = new_sheet(style, 3.4, f"{run.name}: mean of simulated over measured: {', '.join(offs)}")
    panels = figure.subplots(1, len(columns))
    for axes, (what, pair) in zip(panels, columns.items(), strict=True):
        scale, unit = SCALES[what]
        measured, simulated = scale * pair[0], scale * pair[1]
        look = style.look(0)
        axes.plot(measured, simulated, ".", color=look.colour, ms=4, alpha=0.7, mew=0)
        _equal(axes, style, measured, simulated)
        axes.set(title=what, xlabel=f"measured, {unit}")
    panels[0].set_ylabel("simulated")
    return figure


def _equal(axes: Axes, style: Style, measured: Floats, simulated: Floats) -> None:
    """Logarithmic axes of the same range, the line of equality, and those of 10 % off."""
    if not len(measured):
        return
    low = min(measured.min(), simulated.min()) / 1.15
    high = max(measured.max(), simulated.max()) * 1.15
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        subs = (1.0,) if high / low > 200 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", labelsize=style.small_pt)
    axes.tick_params(axis="x", which="both", rotation=45)
    ends = np.array([low, high])
    axes.plot(ends, ends, "-", color=style.muted, lw=style.line / 2, zorder=0)
    for share in (BAND, 1 / BAND):
        axes.plot(ends, share * ends, ":", color=style.muted, lw=style.line / 2, zorder=0)


def _time(run: MeasuredRun, found: Simulated, style: Style) -> Figure:
    assert run.requests is not None
    start = run.requests.start_s
    where = np.arange(len(run.requests)) if start is None else start
    when = np.asarray(where, dtype=np.float64)[found.rows]
    figure = new_sheet(style, 4.6, f"{run.name}: error over the run, of each request and of its parts")
    columns = pairs(run, found)
    panels = figure.subplots(len(columns), 1, sharex=True)
    for place, (axes, (what, pair)) in enumerate(zip(panels, columns.items(), strict=True)):
        with np.errstate(divide="ignore", invalid="ignore"):
            off = 100 * (pair[1] / pair[0] - 1)
        there = np.isfinite(off)
        look = style.look(place)
        axes.plot(when[there], off[there], ".", color=look.colour, ms=4, alpha=0.7, mew=0)
        times, medians = _medians(when[there], off[there])
        axes.plot(times, medians, "-", color=style.ink, lw=style.line)
        axes.axhline(0, color=style.muted, lw=style.line / 2, zorder=0)
        most = np.percentile(np.abs(off[there]), 98) * 1.2 if there.any() else 10
        axes.set_ylim(-most, most)
        axes.set_ylabel(f"{what}, % off")
    panels[-1].set_xlabel("request" if start is None else "sent at, s")
    return figure


def _medians(when: Floats, off: Floats) -> tuple[list[float], list[float]]:
    """The middle and the median of equally many requests each."""
    order = np.argsort(when, kind="stable")
    parts = [each for each in np.array_split(order, min(MOST_PARTS, max(len(order) // 5, 1))) if len(each)]
    return [float(when[each].mean()) for each in parts], [float(np.median(off[each])) for each in parts]
