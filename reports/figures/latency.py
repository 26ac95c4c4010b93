"""latency: which share of the requests was at least as fast, for four latencies."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports import palette
from reports.figures import pieces
from reports.figures.choices import Choices
from reports.figures.pieces import FloatArray, name
from reports.figures.sheet import new_sheet
from reports.figures.style import Style
from reports.rundir import Run

_POINTS = 400
_PANELS = {
    "ttft_s": ("time to first token", "time"),
    "tpot_s": ("time per output token", "time per token after the first"),
    "e2e_s": ("end-to-end latency", "time"),
    "normalized_s_per_token": ("normalised latency", "end-to-end time per output token"),
}
"""Column -> title, and what the axis shows."""


def latency(runs: Sequence[Run], choices: Choices) -> Figure:
    """Four distribution functions, a line per run in each."""
    style = choices.style
    figure = new_sheet(style, 4.9 + 0.4 * len(runs), _headline(runs))
    grid = figure.subplots(2, 2, sharey=True)
    for axes, (column, (title, what)) in zip(grid.flat, _PANELS.items(), strict=True):
        columns = [pieces.finite(run.requests[column]) for run in runs]
        _distribution(axes, style, columns, [name(run) for run in runs], title)
        _axis(axes, style, np.concatenate(columns), what)
    figure.supylabel("share of the finished requests", fontsize=style.type_pt)
    return figure


def _distribution(axes: Axes, style: Style, columns: list[FloatArray], labels: list[str], title: str) -> None:
    """The distribution functions of one latency, with the median and the 99th per cent."""
    axes.set(ylim=(0, 1.03), yticks=(0, 0.25, 0.5, 0.75, 1))
    axes.yaxis.set_major_formatter(pieces.percent_of(1))
    axes.grid(axis="both")
    marks = []
    for place, (values, label) in enumerate(zip(columns, labels, strict=True)):
        p50, p99 = _percentiles(values)
        spread = f"p50 {palette.seconds(p50)}, p99 {palette.seconds(p99)}" if values.size else "none finished"
        marks.append(pieces.run_line(style, place, f"{pieces.short(label, 20)}: {spread}"))
        if p50 is not None and p99 is not None:
            look = style.look(place)
            part = np.linspace(0, 1, min(_POINTS, values.size + 1))
            levels = np.quantile(values, part, method="inverted_cdf")
            axes.step(levels, part, where="post", color=look.colour, linestyle=look.dash)
            mark = look.marker if style.grey_print else "o"
            axes.plot(
                [p50, p99], [0.5, 0.99], mark, color=look.colour, markersize=3.3 * style.line, clip_on=False
            )
    # A legend above the panel covers nothing, and its heading is the panel's title.
    above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderpad": 0.1, "handlelength": 2.2}
    legend = axes.legend(handles=marks, title=title, **above)
    legend.set_alignment("left")
    legend.get_title().set_fontweight("bold")


def _axis(axes: Axes, style: Style, values: FloatArray, what: str) -> None:
    """Seconds or milliseconds; logarithmic where the values span decades."""
    positive = values[values > 0]
    if not positive.size:
        axes.set_xticks([])
        axes.set_xlabel(f"{what} (s)")
        pieces.say(axes, style, "all are 0" if values.size else "no request finished")
        return
    low, high = np.quantile(positive, [0.005, 1])
    factor, unit = (1e3, "ms") if high < 1 else (1.0, "s")
    if high > 10 * low:
        pieces.log_axis(axes, "x", low, high)
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        axes.set_xlim(0 if low < high / 3 else low - 0.1 * (high - low) - 0.01 * high, high * 1.02)
    pieces.plain_numbers(axes, "x", factor)
    axes.set_xlabel(f"{what} ({unit})")


def _percentiles(values: FloatArray) -> tuple[float | None, float | None]:
    """The median and the 99th per cent, None where there is no value."""
    if not values.size:
        return None, None
    p50, p99 = np.quantile(values, [0.5, 0.99])
    return float(p50), float(p99)


def _headline(runs: Sequence[Run]) -> str:
    waits = [_percentiles(pieces.finite(run.requests["ttft_s"])) for run in runs]
    if all(p50 is None for p50, _ in waits):
        return "No request finished"
    if len(runs) > 1:
        words = pieces.listed([name(run) for run in runs], [p50 for p50, _ in waits], palette.seconds)
        return f"Median time to first token: {words}"
    half, nearly_all = (palette.seconds(percentile) for percentile in waits[0])
    return f"{name(runs[0])}: first token within {half} for half of the requests, {nearly_all} for 99 %"
