"""replay-requests: each request, measured and simulated; replay-time: the error over the run.

requests   TTFT, TPOT and E2E: a dot per request, with lines at equality and at 10 % off
time       simulated over measured by arrival time: a dot per request, and medians over time
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvsim.reports.figures import pieces
from kvsim.reports.figures.sheet import new_sheet, save, sign
from kvsim.reports.figures.style import Style
from kvsim.reports.replays import Floats, Replayed
from kvsim.sim.errors import KvsimError

MOST_PARTS = 20
TICKS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0, 1000.0)
"""Candidate ticks of a ratio axis, besides 1."""
SCALES = {"TTFT": (1.0, "s"), "TPOT": (1e3, "ms"), "E2E": (1.0, "s")}
_NONE = "no request was served on both sides"
Pair = tuple[Floats, Floats]


FIGURES = ("requests", "time")


def draw_replay(replayed: Replayed, directory: Path, style: Style) -> list[Path]:
    """Draw both figures into a directory; returns the files. KvsimError if the run has only totals."""
    return [
        path
        for name in FIGURES
        for path in save(directory, f"replay-{name}", style, partial(picture, replayed, name, style))
    ]


def picture(replayed: Replayed, name: str, style: Style) -> Figure:
    """Draw one of the figures."""
    if not replayed.latencies:
        raise KvsimError(f"result {replayed.name} holds no requests, so there is nothing to draw")
    figure = _requests(replayed, style) if name == "requests" else _time(replayed, style)
    sign(figure, style, "", f"clock: {replayed.clock}")
    return figure


def _known(pair: Pair) -> Pair:
    there = np.isfinite(pair[0]) & np.isfinite(pair[1]) & (pair[0] > 0) & (pair[1] > 0)
    return pair[0][there], pair[1][there]


def _requests(replayed: Replayed, style: Style) -> Figure:
    columns = {what: _known(pair) for what, pair in replayed.latencies.items()}
    figure = new_sheet(style, 3.5, _headline(replayed, columns))
    panels = figure.subplots(1, len(columns))
    for axes, (what, pair) in zip(panels, columns.items(), strict=True):
        scale, unit = SCALES[what]
        measured, simulated = scale * pair[0], scale * pair[1]
        look = style.role("requests")
        axes.set(title=what, xlabel=f"measured, {unit}")
        if not len(measured):
            axes.set(xticks=(), yticks=())
            pieces.say(axes, style, "of no\nrequest on\nboth sides")
            continue
        axes.plot(measured, simulated, ".", color=look.colour, **_dots(len(measured)))
        _equal(axes, style, measured, simulated)
    panels[0].set_ylabel("simulated")
    band = f"{100 * (pieces.BAND - 1):.0f} % off"
    pieces.legend_below(figure, style, [Line2D([], [], color=style.ink, lw=0.6, ls=":", label=band)])
    return figure


def _headline(replayed: Replayed, columns: Mapping[str, Pair]) -> str:
    offs = [
        f"{what} {_off_in_words(float(np.mean(pair[1]) / np.mean(pair[0])))}".replace(" ", "\u00a0")
        for what, pair in columns.items()
        if len(pair[0])
    ]
    if not offs:
        return f"{replayed.name}: {_NONE}"
    served, sent = len(columns["E2E"][0]), len(replayed.latencies["E2E"][0])
    of = f" ({served:,} of {sent:,} requests)" if served < sent else ""
    return f"{replayed.name}, simulated over measured{of}: {', '.join(offs)}"


def _off_in_words(ratio: float) -> str:
    """Like `_off` with one decimal; tiny errors become `+0.0 %`."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %" if 1 / 2 <= ratio <= 2 else _off(ratio)


def _dots(count: int) -> dict[str, Any]:
    """The style of `count` dots: a few stand out, many show density."""
    size, alpha = (9, 0.9) if count <= 10 else (4, 0.7) if count <= 2_000 else (2.5, 0.3)
    return {"ms": size, "alpha": alpha, "mew": 0}


def _equal(axes: Axes, style: Style, measured: Floats, simulated: Floats) -> None:
    """Give both axes the same range, the line of equality, and suitable ticks."""
    low = min(measured.min(), simulated.min()) / 1.15
    high = max(measured.max(), simulated.max()) * 1.15
    pieces.equality(axes, style, low, high)
    axes.set(aspect="equal")
    decades = np.log10(high / low)
    subs = (1.0,) if decades > 2 else (1.0, 2.0, 5.0) if decades > 0.8 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=subs) if decades > 0.5 else MaxNLocator(3))
        axis.set_minor_locator(NullLocator())
    axes.tick_params(which="both", labelsize=style.small_pt)


def _time(replayed: Replayed, style: Style) -> Figure:
    columns, start = replayed.latencies, replayed.start_s
    when = np.arange(len(columns["E2E"][0]), dtype=np.float64) if start is None else start
    anybody = any(len(_known(pair)[0]) for pair in columns.values())
    figure = new_sheet(style, 4.6, _headline_of_time(replayed, when))
    panels = figure.subplots(len(columns), 1, sharex=True)
    for axes, (what, pair) in zip(panels, columns.items(), strict=True):
        ratio, there = _ratio(pair)
        axes.set_ylabel(f"{what}, off")
        if not there.any():
            axes.set_yticks(())
            pieces.say(axes, style, "of no request on both sides")
            continue
        times, medians = _medians(when[there], ratio[there])
        most = _ratios(axes, ratio[there])
        kept = np.clip(ratio[there], 1 / most, most)
        how = {"color": style.role("requests").colour, "clip_on": False}
        axes.plot(when[there], kept, ".", **how, **_dots(len(kept)))
        axes.plot(times, medians, "-", color=style.ink, lw=style.line)
        axes.axhline(1, color=style.muted, lw=style.line / 2, zorder=0)
    figure.align_ylabels(panels)
    if not anybody:
        panels[-1].set_xticks(())
    panels[-1].set_xlabel("request" if start is None else "sent at, s")
    return figure


def _headline_of_time(replayed: Replayed, when: Floats) -> str:
    """The median error of the requests that were sent first and last: whether it grows over the run."""
    for what in ("E2E", "TTFT"):
        ratio, there = _ratio(replayed.latencies[what])
        if there.any():
            _, medians = _medians(when[there], ratio[there])
            first, last = (_off_in_words(each) for each in (medians[0], medians[-1]))
            said = f"{first} at the start, {last} at the end" if len(medians) > 1 else f"{first}, median"
            return f"{replayed.name}, simulated over measured: {what} {said}"
    return f"{replayed.name}: {_NONE}"


def _ratio(pair: Pair) -> tuple[Floats, np.ndarray]:
    """Simulated over measured, and for which requests it is known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = pair[1] / pair[0]
    return ratio, np.isfinite(ratio) & (ratio > 0)


def _ratios(axes: Axes, ratio: Floats) -> float:
    """Set up a logarithmic axis centred on 1, up to the returned ratio; at most 2 % are beyond it."""
    beyond = np.exp(np.percentile(np.abs(np.log(ratio)), 98)) if len(ratio) else 1.0
    tick = max((each for each in TICKS if each <= beyond), default=TICKS[0])
    most = float(max(beyond, tick) ** 1.2)
    axes.set(yscale="log", ylim=(1 / most, most))
    axes.yaxis.set_major_locator(FixedLocator([1 / tick, 1.0, tick]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _off(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    return most


def _off(ratio: float) -> str:
    """`+10 %`, `-9 %`; beyond a factor of two, `3 times` or `1/3`."""
    if abs(ratio - 1) < 1e-9:
        return "0"
    if 1 / 2 <= ratio <= 2:
        return f"{100 * (ratio - 1):+.0f} %"
    return f"{ratio:,.3g} times" if ratio > 1 else f"1/{1 / ratio:,.3g}"


def _medians(when: Floats, off: Floats) -> tuple[list[float], list[float]]:
    """The mean times and medians of groups with equal numbers of requests."""
    order = np.argsort(when, kind="stable")
    parts = [each for each in np.array_split(order, min(MOST_PARTS, max(len(order) // 5, 1))) if len(each)]
    return [float(when[each].mean()) for each in parts], [float(np.median(off[each])) for each in parts]
