"""The figures of one run or of several side by side; the only file that imports matplotlib.

    memory     where the KV memory is at every moment, stacked to 100 %, a panel per run
    waste      the same as one bar per run, as in Figure 2 of the PagedAttention paper
    requests   how many requests are computed and how many wait
    latency    how the latencies are distributed

Curves over time show the mean over each of some hundred equal slices of the run, so a peak shorter
than a pixel is averaged, and a long run draws as fast as a short one.
"""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, StepPatch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from reports import palette
from reports.palette import KINDS
from reports.rundir import Run
from sim.errors import KvsimError

FloatArray = npt.NDArray[np.float64]

_DPI = 150
_WIDTH_IN = 8.0  # 1,200 pixels
_SLICES = 700
_POINTS = 400  # of a distribution
_GREY = "#555555"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,
    "svg.hashsalt": "kvsim",
}
_NO_TRACES = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
"""Metadata by format, so that the same run gives the same bytes."""


def draw(runs: Sequence[Run], directory: Path, fmt: str = "png") -> list[Path]:
    """Draw the four figures of these runs into the directory; returns the files in reading order.

    Parameters
    ----------
    runs : sequence of Run
        One run, or those to compare; at least one.
    directory : Path
        An existing directory.
    fmt : str
        `png` (1,200 pixels wide), `svg` or `pdf`.
    """
    if not runs:
        raise KvsimError("runs to draw must be at least one, got 0")
    if fmt not in _NO_TRACES:
        raise KvsimError(f"figure format must be one of {', '.join(_NO_TRACES)}, got {fmt!r}")
    pictures: dict[str, Callable[[Sequence[Run]], Figure]] = {
        "memory": memory_figure,
        "waste": waste_figure,
        "requests": requests_figure,
        "latency": latency_figure,
    }
    paths = []
    for name, picture in pictures.items():
        path = directory / f"{name}.{fmt}"
        with matplotlib.rc_context(_STYLE):
            figure = picture(runs)
            if fmt == "png":
                _save_png(figure, path)
            else:
                figure.savefig(path, metadata=_NO_TRACES[fmt])
        paths.append(path)
    return paths


def draw_picture(path: Path, headline: str, height_in: float, paint: Callable[[Figure], None]) -> None:
    """Draw one picture of another module into a PNG, in the style of all the others."""
    with matplotlib.rc_context(_STYLE):
        figure = _figure(height_in, headline)
        paint(figure)
        _save_png(figure, path)


def _save_png(figure: Figure, path: Path) -> None:
    """What `figure.savefig` does, without laying the figure out a second time."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(path, metadata=_NO_TRACES["png"])


def memory_figure(runs: Sequence[Run]) -> Figure:
    """The ledger over time, one panel per run on the same axes."""
    figure = _figure(1.6 + (2.6 if len(runs) == 1 else 1.7 * len(runs)), _memory_headline(runs))
    panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    longest = max(_duration(run) for run in runs)
    for axes, run in zip(panels, runs, strict=True):
        if len(runs) > 1:
            axes.set_title(_name(run), fontweight="bold")
        _ledger_panel(axes, run)
        axes.set(xlim=(0, longest or 1), ylim=(0, 100), yticks=(0, 25, 50, 75, 100))
        axes.yaxis.set_major_formatter(_percent_of(100))
    panels[-1].set_xlabel("time (s)")
    figure.supylabel("share of the KV memory", fontsize=10)
    marks: list[Any] = [_patch(kind) for kind in KINDS if any(_occurs(run, kind) for run in runs)]
    if any((run.timeline["waiting"] > 0).any() for run in runs):
        marks.append(Line2D([], [], color="black", linewidth=2.5, label="requests wait"))
    _legend_below(figure, marks)
    return figure


def waste_figure(runs: Sequence[Run]) -> Figure:
    """One stacked bar per run: of what waits there, else of the whole run."""
    figure = _figure(1.9 + 0.55 * len(runs), _waste_headline(runs))
    axes = figure.subplots()
    names = []
    for row, run in enumerate(runs):
        percent, saturated = palette.shares(run.summary)
        names.append(_wrapped(_name(run), 22) + ("" if saturated else "\n(whole run)"))
        _bar(axes, row, percent)
    axes.set_yticks(range(len(runs)), names, color="black")
    axes.set(xlim=(0, 100), ylim=(len(runs) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(_percent_of(100))
    everywhere = all(palette.shares(run.summary)[1] for run in runs)
    axes.set_xlabel("share of the KV memory" + (", mean while requests wait" if everywhere else ", mean"))
    _legend_below(figure, [_patch(kind) for kind in KINDS])
    return figure


def requests_figure(runs: Sequence[Run]) -> Figure:
    """The requests that are computed and those that wait, over time."""
    figure = _figure(4.8, _requests_headline(runs))
    above, below = figure.subplots(2, 1, sharex=True)
    for column, axes, style in (("running", above, "-"), ("waiting", below, "--")):
        axes.set_title(f"{column} requests")
        axes.grid(axis="y")
        for index, run in enumerate(runs):
            if _duration(run):
                means, edges = _slice_means(run.timeline["time_s"], run.timeline[column])
                middle = (edges[1:] + edges[:-1]) / 2
                axes.plot(middle, means, style, color=palette.series_colour(index), linewidth=1.3)
        axes.set_xlim(0, max(_duration(run) for run in runs) or 1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        if not any(run.timeline[column].any() for run in runs):
            axes.set_yticks([0])
            _say(axes, f"no request was ever {column}")
    below.set_xlabel("time (s)")
    if len(runs) > 1:
        _legend_below(figure, [_line(index, _name(run)) for index, run in enumerate(runs)])
    return figure


def latency_figure(runs: Sequence[Run]) -> Figure:
    """The share of requests that were at least as fast, for four latencies."""
    panels = {
        "ttft_s": ("time to first token", "time"),
        "tpot_s": ("time per output token", "time per token after the first"),
        "e2e_s": ("end-to-end latency", "time"),
        "normalized_s_per_token": ("normalised latency", "end-to-end time per output token"),
    }
    figure = _figure(4.9 + 0.4 * len(runs), _latency_headline(runs))
    grid = figure.subplots(2, 2, sharey=True)
    for axes, (column, (title, what)) in zip(grid.flat, panels.items(), strict=True):
        columns = [_finite(run.requests[column]) for run in runs]
        _distribution(axes, columns, [_name(run) for run in runs], title)
        _latency_axis(axes, np.concatenate(columns), what)
    figure.supylabel("share of the finished requests", fontsize=10)
    return figure


# The parts of the figures


def _ledger_panel(axes: Axes, run: Run) -> None:
    """The stack of one run; painted from the top down so that no seams show between the layers."""
    if not _duration(run):
        _say(axes, "the run took no time: no memory to show")
        return
    time = run.timeline["time_s"]
    slices = [_slice_means(time, run.timeline[kind]) for kind in KINDS]
    edges = slices[0][1]
    tops = np.cumsum([means for means, _ in slices], axis=0)
    tops *= 100 / np.where(tops[-1] > 0, tops[-1], 1)
    for kind, top in reversed(list(zip(KINDS, tops, strict=True))):
        look = KINDS[kind]
        layer = StepPatch(
            top, edges, fill=True, facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0
        )
        axes.add_artist(layer)  # axes.stairs would also measure every vertex
        layer.set_clip_path(axes.patch)
    waits, _ = _slice_means(time, run.timeline["waiting"] > 0)
    somebody = np.where(waits >= 0.5, 101.0, np.nan)
    axes.plot((edges[1:] + edges[:-1]) / 2, somebody, color="black", linewidth=2.5, clip_on=False)


def _bar(axes: Axes, row: int, percent: dict[str, float]) -> None:
    """One bar of 100 % with its numbers; the waste in all stands at its end."""
    left = 0.0
    for kind, share in percent.items():
        look = KINDS[kind]
        axes.barh(
            row, share, 0.68, left, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.8
        )
        if share >= 4.5:
            box = {"facecolor": look.colour, "edgecolor": "none", "pad": 1.5}
            middle = left + share / 2
            axes.text(middle, row, f"{share:.1f}", color=look.ink, ha="center", va="center", bbox=box)
        left += share
    end = f"{palette.waste(percent):.1f} % waste" if left else "nothing ran"
    axes.annotate(end, (100, row), (6, 0), textcoords="offset points", va="center", fontweight="bold")


def _distribution(axes: Axes, columns: list[FloatArray], labels: list[str], title: str) -> None:
    """The distribution functions of one latency, a line per run, with the median and the 99th per cent."""
    axes.set(ylim=(0, 1.03), yticks=(0, 0.25, 0.5, 0.75, 1))
    axes.yaxis.set_major_formatter(_percent_of(1))
    axes.grid(axis="both")
    marks = []
    for index, (values, label) in enumerate(zip(columns, labels, strict=True)):
        p50, p99 = _percentiles(values)
        spread = f"p50 {palette.seconds(p50)}, p99 {palette.seconds(p99)}" if values.size else "none finished"
        marks.append(_line(index, f"{label}: {spread}"))
        if p50 is not None and p99 is not None:
            colour = palette.series_colour(index)
            part = np.linspace(0, 1, min(_POINTS, values.size + 1))
            levels = np.quantile(values, part, method="inverted_cdf")
            axes.step(levels, part, where="post", color=colour, linewidth=1.6)
            axes.plot([p50, p99], [0.5, 0.99], "o", color=colour, markersize=5, clip_on=False)
    # A legend above the panel covers nothing, and its heading is the panel's title.
    legend = axes.legend(
        handles=marks, title=title, loc="lower left", bbox_to_anchor=(-0.02, 1.0), fontsize=8.5, borderpad=0.1
    )
    legend.set_alignment("left")
    legend.get_title().set_fontweight("bold")


def _latency_axis(axes: Axes, values: FloatArray, what: str) -> None:
    """Seconds or milliseconds; logarithmic where the values span decades."""
    positive = values[values > 0]
    if not positive.size:
        axes.set_xticks([])
        axes.set_xlabel(f"{what} (s)")
        _say(axes, "all are 0" if values.size else "no request finished")
        return
    low, high = np.quantile(positive, [0.005, 1])
    factor, unit = (1e3, "ms") if high < 1 else (1.0, "s")
    if high > 20 * low:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)
        axes.xaxis.set_minor_locator(NullLocator())
        if high < 50 * low:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axes.set_xlim(0 if low < high / 3 else low - 0.1 * (high - low) - 0.01 * high, high * 1.02)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * factor:,.10g}"))
    axes.set_xlabel(f"{what} ({unit})")


# The messages


def _memory_headline(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        percent, saturated = palette.shares(runs[0].summary)
        when = " while requests wait" if saturated else ", averaged over the run"
        return f"{_name(runs[0])}: tokens fill {percent['token']:.1f} % of the KV memory{when}"
    return "Share of the KV memory that tokens fill: " + _listed(
        runs, [f"{palette.shares(run.summary)[0]['token']:.0f} %" for run in runs]
    )


def _waste_headline(runs: Sequence[Run]) -> str:
    ledgers = [(_name(run), palette.shares(run.summary)[0]) for run in runs]
    wasted = sorted((palette.waste(percent), label) for label, percent in ledgers if any(percent.values()))
    if not wasted:
        return "Nothing ran, nothing was wasted"
    (least, best), (most, worst) = wasted[0], wasted[-1]
    headline = f"{best} wastes {least:.1f} % of the KV memory"
    return headline if best == worst else f"{headline}, {worst} {most:.1f} %"


def _requests_headline(runs: Sequence[Run]) -> str:
    engines = [run.summary["engine"] for run in runs]
    means = [palette.figures(palette.number(engine.get("mean_running"))) for engine in engines]
    if len(runs) == 1:
        most = palette.count(palette.number(engines[0].get("max_running")))
        return f"{_name(runs[0])} computes {means[0]} requests at once on average, {most} at most"
    return "Requests computed at once, on average: " + _listed(runs, means)


def _latency_headline(runs: Sequence[Run]) -> str:
    waits = [_percentiles(_finite(run.requests["ttft_s"])) for run in runs]
    if all(p50 is None for p50, _ in waits):
        return "No request finished"
    if len(runs) > 1:
        return "Median time to first token: " + _listed(runs, [palette.seconds(p50) for p50, _ in waits])
    half, nearly_all = (palette.seconds(percentile) for percentile in waits[0])
    return f"{_name(runs[0])}: first token within {half} for half of the requests, {nearly_all} for 99 %"


def _listed(runs: Sequence[Run], values: Sequence[str]) -> str:
    return ", ".join(f"{_name(run)} {value}" for run, value in zip(runs, values, strict=True))


# The pieces that all figures share


def _figure(height_in: float, headline: str) -> Figure:
    figure = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
    figure.suptitle(_wrapped(headline, 84), x=0.012, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def _name(run: Run) -> str:
    """The label, cut where it would crowd out the data."""
    return run.label if len(run.label) <= 28 else run.label[:27] + "…"


def _percent_of(whole: float) -> PercentFormatter:
    return PercentFormatter(xmax=whole, decimals=0, symbol=" %")


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False)) or text


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=_GREY, fontsize=11)


def _patch(kind: str) -> Patch:
    look = KINDS[kind]
    return Patch(
        facecolor=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        linewidth=0.5,
        label=f"{kind}: {look.meaning}",
    )


def _line(index: int, label: str) -> Line2D:
    return Line2D([], [], color=palette.series_colour(index), linewidth=2.5, label=label)


def _legend_below(figure: Figure, marks: Sequence[Any]) -> None:
    figure.legend(
        handles=marks, loc="outside lower center", ncols=3, fontsize=8.5, handlelength=1.4, columnspacing=1.5
    )


def _duration(run: Run) -> float:
    """Seconds from the first to the last row of the timeline; 0 where there is no such span."""
    time = run.timeline["time_s"]
    return float(time[-1] - time[0]) if len(time) else 0.0


def _occurs(run: Run, kind: str) -> bool:
    return bool(run.timeline[kind].any())


def _slice_means(time: FloatArray, values: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """The time-weighted means of a step function over equal slices, and the edges of the slices."""
    edges = np.linspace(time[0], time[-1], _SLICES + 1)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(time) * values[:-1])])
    return np.diff(np.interp(edges, time, integral)) / np.diff(edges), edges


def _finite(values: FloatArray) -> FloatArray:
    return values[np.isfinite(values)]


def _percentiles(values: FloatArray) -> tuple[float | None, float | None]:
    """The median and the 99th per cent, None where there is no value."""
    if not values.size:
        return None, None
    p50, p99 = np.quantile(values, [0.5, 0.99])
    return float(p50), float(p99)
