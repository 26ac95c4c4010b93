"""latency: the cumulative distributions of four latencies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports import palette
from kvsim.reports.arrays import Floats
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System, short, under_loads
from kvsim.reports.goals import limits_of
from kvsim.reports.quantities import LATENCIES
from kvsim.reports.seeds.intervals import Interval, interval
from kvsim.reports.seeds.words import with_spread

_POINTS = 400
_MOST_ABOVE = 6  # legend entries with numbers above each panel
_PANELS = {
    "ttft": "time",
    "tpot": "time per token after the first",
    "e2e": "time",
    "normalized": "end-to-end time per output token",
}
"""Latency -> the label of the axis."""


def latency(systems: Sequence[System], choices: Choices) -> Figure:
    """Four cumulative distributions, each with a line per run."""
    style = choices.style
    runs = [run for system in systems for run in system.runs]
    below = style.narrow or len(systems) > _MOST_ABOVE
    figure = new_sheet(style, 4.9 if below else 4.9 + 0.4 * len(systems), _headline(systems))
    grid = figure.subplots(2, 2, sharey=True)
    for axes, (name, what) in zip(grid.flat, _PANELS.items(), strict=True):
        column, title = LATENCIES[name].column, LATENCIES[name].name
        columns = [[pieces.finite(run.columns.requests[column]) for run in system.runs] for system in systems]
        looks = pieces.looks(style, systems, [each[0] for each in columns])
        _distribution(axes, style, columns, looks)
        if below:
            axes.set_title(title, fontweight="normal" if style.narrow else "bold")
        else:
            _legend_above(axes, style, title, list(zip(systems, looks, columns, strict=True)))
        _axis(axes, style, np.concatenate([values for each in columns for values in each]), what)
        low, high = axes.get_xlim()
        for limit in limits_of(runs, column):
            if limit.limit_s < 3 * high:
                axes.set_xlim(low, max(high, 1.15 * limit.limit_s))
                pieces.limit_line(axes, style, limit, along="x")
    figure.supylabel("share of the finished requests", fontsize=style.type_pt)
    if below:
        looks = style.looks([system.parts for system in systems])
        pieces.systems_below(figure, style, [system.name for system in systems], looks)
    return figure


def _distribution(
    axes: Axes, style: Style, columns: Sequence[Sequence[Floats]], looks: Sequence[Look]
) -> None:
    """Draw the distributions of one latency, with median and 99th percentile; `columns` by seed."""
    axes.set(ylim=(0, 1.03), yticks=(0, 0.25, 0.5, 0.75, 1))
    axes.yaxis.set_major_formatter(pieces.percent_of(1))
    axes.grid(axis="both")
    for seeds, look in zip(columns, looks, strict=True):
        for values in seeds:
            part = np.linspace(0, 1, min(_POINTS, values.size + 1))
            if values.size:
                levels = np.quantile(values, part, method="inverted_cdf")
                thin: Any = {"linewidth": 0.6 * style.line, "alpha": 0.7} if len(seeds) > 1 else {}
                axes.step(levels, part, where="post", color=look.colour, linestyle=look.dash, **thin)
        p50, p99 = _percentiles(seeds)
        if p50 is not None and p99 is not None:
            mark: Any = {"marker": look.marker if style.grey_print else "o", "markersize": 3.3 * style.line}
            axes.plot(
                [p50.mean, p99.mean], [0.5, 0.99], color=look.colour, linestyle="", clip_on=False, **mark
            )


def _legend_above(
    axes: Axes, style: Style, title: str, shown: Sequence[tuple[System, Look, Sequence[Floats]]]
) -> None:
    """Put the legend with the numbers above the panel, clear of the curves, with the title as its heading."""
    marks = []
    room = int(72 * 0.43 * style.width_in / (0.62 * style.small_pt)) - 1  # characters
    for system, look, seeds in shown:
        p50, p99 = (with_spread(palette.seconds, found) for found in _percentiles(seeds))
        said = f"p50 {p50}, p99 {p99}" if all(values.size for values in seeds) else "none finished"
        if len(system.name) + 2 + len(said) > room:
            said = said.partition(",")[0]
        marks.append(pieces.line(style, look, f"{short(system.name, max(room - len(said) - 2, 6))}: {said}"))
    above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderpad": 0.1, "handlelength": 1.8}
    legend = axes.legend(handles=marks, title=title, **above)
    legend.set_alignment("left")
    legend.get_title().set_fontweight("bold")


def _axis(axes: Axes, style: Style, values: Floats, what: str) -> None:
    """Label the axis in seconds or milliseconds; logarithmic if the values span decades."""
    positive = values[values > 0]
    if not positive.size:
        axes.set_xticks([])
        axes.set_xlabel(f"{'time' if style.narrow else what} (s)")
        pieces.say(axes, style, "all are 0" if values.size else "no request finished")
        return
    low, high = np.quantile(positive, [0.005, 1])
    factor, unit = (1e3, "ms") if high < 1 else (1.0, "s")
    if high > 10 * low:
        pieces.log_axis(axes, "x", low, high, few=style.narrow)
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        axes.set_xlim(0 if low < high / 3 else low - 0.1 * (high - low) - 0.01 * high, high * 1.02)
    pieces.plain_numbers(axes, "x", factor)
    axes.set_xlabel(f"{'time' if style.narrow else what} ({unit})")


def _percentiles(seeds: Sequence[Floats]) -> tuple[Interval | None, Interval | None]:
    """The median and the 99th percentile, means over the seeds; None if a seed lacks values."""
    if not all(values.size for values in seeds):
        return None, None
    p50, p99 = (interval([float(np.quantile(values, level)) for values in seeds]) for level in (0.5, 0.99))
    return p50, p99


def _headline(systems: Sequence[System]) -> str:
    ttft_s = [[pieces.finite(run.columns.requests["ttft_s"]) for run in each.runs] for each in systems]
    waits = [_percentiles(of_system) for of_system in ttft_s]
    if all(p50 is None for p50, _ in waits):
        return "No request finished"
    if len(systems) > 1:
        words = pieces.listed([each.name for each in systems], [p50 for p50, _ in waits], palette.seconds)
        return f"Median time to first token{under_loads(systems)}: {words}"
    half, nearly_all = (with_spread(palette.seconds, found) for found in waits[0])
    if half == nearly_all:
        return f"{systems[0].name}: first token within {half}"
    return f"{systems[0].name}: first token within {half} for half of the requests, {nearly_all} for 99 %"
