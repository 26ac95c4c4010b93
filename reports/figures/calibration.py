"""calibration: a GPU's measurements and fitted forms, part by part, and the prediction errors.

part      points of the main grid as dots, with bars from the 10th to the 90th percentile of the repetitions;
          the fitted form as a line; the ratios correct the distance between line and dots
held out  predicted over measured for points left out of the fit
composed  predicted over measured for whole layers, over their time
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kvsim.reports.calibration.profile import Fit, Fitted, Timed
from kvsim.reports.calibration.words import layer, percent
from kvsim.reports.figures.scales import in_bytes, in_time, log_scale, make_room, plain
from kvsim.reports.figures.sheet import new_sheet, save
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.grouping import by_key

Line = tuple[str, Sequence[Timed]]
"""What distinguishes a line from others in its panel, and its points."""

ALONG = {
    "decode": "context_tokens",
    "latent": "context_tokens",
    "prefill": "tokens",
    "product": "tokens",
    "product_fp8": "tokens",
    "lm_head": "tokens",
    "experts": "rows",
    "experts_fp8": "rows",
}
"""The x axis of these parts; all others have bytes."""

AXES = {"context_tokens": "tokens of context", "rows": "rows per expert"}
APART = {
    "decode": "sequences x KV heads",
    "latent": "sequences x query heads",
    "prefill": "tokens before",
    "product": "weights",
    "product_fp8": "weights",
    "lm_head": "weights",
    "experts": "experts x matrix",
    "experts_fp8": "experts x matrix",
}
ACROSS = 3
MOST_LINES = 3
BAND = 0.05
"""The error that is shaded in the error panels."""

TOGETHER = ("to_host", "to_gpu", "all_reduce")
"""Parts that share a panel."""


def draw_calibration(fit: Fit, directory: Path, style: Style) -> None:
    """Draw the figure into a directory, under the profile's name."""
    save(directory, f"calibration-{fit.file.path.stem}", style.wide, partial(calibration, fit, style.wide))


def calibration(fit: Fit, style: Style) -> Figure:
    """A panel per part, one for held-out points, one for composed steps."""
    painters = _panels(fit, style)
    rows = max(-(-len(painters) // ACROSS), 1)
    above_in, below_in = 1.7 * rows, 3.2
    figure = new_sheet(style, above_in + below_in, headline(fit))
    if fit.file.rehearsal and not style.headlines:
        figure.suptitle("A rehearsal: no measurement", fontsize=style.type_pt)
    parts, errors = figure.subfigures(2, 1, height_ratios=[above_in, below_in])
    grid = parts.subplots(rows, ACROSS, squeeze=False)
    for axes, paint in zip_longest(grid.flat, painters):
        axes.set_visible(False) if paint is None else paint(axes)
    left, right = errors.subplots(1, 2)
    _held_out(left, style, fit)
    _composed(right, style, fit)
    _legend(errors, style)
    return figure


def headline(fit: Fit) -> str:
    """The device, whether it was measured, and the prediction error."""
    error, device = fit.composed_error, str(fit.file.content["device"]["name"])
    off = f"composed steps off by {percent(error.mean)}" if error else "no composed step"
    made = "a rehearsal, no measurement" if fit.file.rehearsal else f"measured {fit.file.date}"
    return f"{device}: {made}; {off}"


def _panels(fit: Fit, style: Style) -> list[Callable[[Axes], None]]:
    """The functions that draw the parts; parts that share a panel come last."""
    found = []
    for part in fit.parts:
        lines = chosen(lines_of(part)) if part.name not in TOGETHER else []
        if lines:
            along, apart = ALONG.get(part.name, "bytes"), APART.get(part.name, "")
            found.append(partial(_part, style=style, title=part.title, lines=lines, along=along, apart=apart))
    together = [
        (f"{part.title} {said}".strip(), points)
        for part in fit.parts
        if part.name in TOGETHER
        for said, points in chosen(lines_of(part), 2)
    ]
    if together:
        copies = {"title": "copies and sums", "lines": together, "along": "bytes", "apart": ""}
        found.append(partial(_part, style=style, **copies))
    return found


def lines_of(part: Fitted) -> list[Line]:
    """The points of the main table, one line for each combination of values on the axes other than x."""
    along = ALONG.get(part.name, "bytes")
    found: dict[tuple[tuple[str, float], ...], list[Timed]] = {}
    for one in part.main:
        rest = {axis: value for axis, value in one.place.items() if axis not in part.base and axis != along}
        if one.place[along] > 0:
            found.setdefault(tuple(rest.items()), []).append(one)
    ordered = sorted(found.items(), key=lambda item: [value for _, value in item[0]])
    return [(_said(dict(rest)), sorted(points, key=lambda one: one.place[along])) for rest, points in ordered]


def _said(rest: Mapping[str, float]) -> str:
    """`512`; `4,096 x 28,672` for weights; `8 x 393,216, evenly` for experts."""
    if "gpus" in rest:
        return f"of {rest['gpus']:.0f}"
    said = " x ".join(f"{value:,.0f}" for axis, value in rest.items() if axis != "skew")
    return f"{said}, evenly" if rest.get("skew") == 0 else said


def chosen(lines: Sequence[Line], most: int = MOST_LINES) -> list[Line]:
    """At most `most` of the lines, evenly spread from the first to the last."""
    if len(lines) <= most:
        return list(lines)
    places = [round(i * (len(lines) - 1) / (most - 1)) for i in range(most)]
    return [lines[place] for place in places]


def _part(  # noqa: PLR0917 - all but the first are bound
    axes: Axes, style: Style, title: str, lines: Sequence[Line], along: str, apart: str
) -> None:
    """Measured points and the form of one part."""
    for place, (_, points) in enumerate(lines):
        look, x = style.other(place), [one.place[along] for one in points]
        form = {"color": look.colour, "linestyle": look.dash, "linewidth": 0.75 * style.line}
        axes.plot(x, [one.form_s for one in points], **form)
        _dots(axes, style, look, x, points)
    axes.set_title(title, fontsize=style.type_pt)
    every = [one for _, points in lines for one in points]
    x = [one.place[along] for one in every]
    y = [value for one in every for value in (one.p10_s, one.p90_s, one.form_s)]
    words, base = (in_bytes, 2) if along == "bytes" else (plain, 10)
    log_scale(axes, "x", style, (min(x), max(x)), words, base)
    log_scale(axes, "y", style, (min(y), max(y)), in_time)
    axes.set_xlabel(AXES.get(along, along), fontsize=style.small_pt, labelpad=1)
    if len(lines) > 1:
        _names(axes, style, [said for said, _ in lines], apart)
        shown = [(one.place[along], value) for one in every for value in (one.p90_s, one.form_s)]
        make_room(axes, shown, 0.05 + 0.125 * (len(lines) + bool(apart)))


def _dots(axes: Axes, style: Style, look: Look, x: Sequence[float], points: Sequence[Timed]) -> None:
    """Medians, with bars from the 10th to the 90th percentile."""
    middle, low, high = ([getattr(one, name) for one in points] for name in ("median_s", "p10_s", "p90_s"))
    _with_bars(axes, look, (x, middle, low, high), markersize=2.1 * style.line, elinewidth=0.8 * style.line)


def _with_bars(axes: Axes, look: Look, points: Sequence[Sequence[float]], **how: float) -> None:
    """Dots at (x, y), with bars from the lower to the upper values."""
    x, middle, low, high = points
    bars = [
        [max(y - end, 0.0) for y, end in zip(middle, low, strict=True)],
        [max(end - y, 0.0) for y, end in zip(middle, high, strict=True)],
    ]
    axes.errorbar(x, middle, bars, fmt=look.marker, color=look.colour, markeredgewidth=0, **how)


def _names(axes: Axes, style: Style, names: Sequence[str], title: str) -> None:
    """Write the line names in the panel's upper left corner, clear of the curves."""
    marks = [_mark(style, style.other(place), each) for place, each in enumerate(names)]
    small = 0.78 * style.type_pt
    axes.legend(
        handles=marks, title=title or None, loc="upper left", fontsize=small, title_fontsize=small,
        handlelength=1.6, labelspacing=0.15, borderpad=0.1, borderaxespad=0.2, alignment="left",
    )  # fmt: skip


def _mark(style: Style, look: Look, label: str) -> Line2D:
    return Line2D(
        [], [], color=look.colour, linestyle=look.dash, marker=look.marker, linewidth=0.75 * style.line,
        markersize=2.1 * style.line, markeredgewidth=0, label=label,
    )  # fmt: skip


def _held_out(axes: Axes, style: Style, fit: Fit) -> None:
    """Predicted over measured for points left out of the fit, a row per part, with the mean error."""
    rows: list[tuple[str, Sequence[Timed]]] = [
        (part.title, part.held_out) for part in fit.parts if part.held_out
    ]
    axes.set_title("held out: predicted / measured", fontsize=style.type_pt)
    look = style.role("simulated")
    worst = _limit(one for _, points in rows for one in points)
    axes.axvspan(1 - BAND, 1 + BAND, color=style.grid, linewidth=0, zorder=0)
    axes.axvline(1, color=style.muted, linewidth=0.5 * style.line, zorder=1)
    for place, (_, points) in enumerate(rows):
        x = [one.predicted_s / one.median_s for one in points]
        axes.plot(
            x, [place] * len(x), look.marker, color=look.colour, alpha=0.55, markeredgewidth=0,
            markersize=2.6 * style.line,
        )  # fmt: skip
        axes.annotate(
            percent(sum(abs(each - 1) for each in x) / len(x)), (1, place),
            xycoords=("axes fraction", "data"), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=style.small_pt, color=style.muted,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [title for title, _ in rows], fontsize=style.small_pt)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(1 - worst, 1 + worst)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.tick_params(axis="x", labelsize=style.small_pt)
    axes.tick_params(axis="y", length=0)


def _composed(axes: Axes, style: Style, fit: Fit) -> None:
    """Predicted over measured for whole layers, over their time."""
    axes.set_title("composed steps: predicted / measured", fontsize=style.type_pt)
    groups = by_key(fit.composed, lambda one: "output matrix" if "rows" in one.x else layer(one.x) or "steps")
    axes.axhspan(1 - BAND, 1 + BAND, color=style.grid, linewidth=0, zorder=0)
    axes.axhline(1, color=style.muted, linewidth=0.5 * style.line, zorder=1)
    for place, points in enumerate(groups.values()):
        x = [one.median_s for one in points]
        times_s = ("median_s", "p90_s", "p10_s")
        y, low, high = ([one.predicted_s / getattr(one, name) for one in points] for name in times_s)
        size = {"markersize": 3.2 * style.line, "elinewidth": 0.7 * style.line}
        _with_bars(axes, style.other(place), (x, y, low, high), **size)
    worst = _limit(fit.composed)
    axes.set_ylim(1 - worst, 1 + worst)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.tick_params(axis="y", labelsize=style.small_pt)
    if fit.composed:
        times = [one.median_s for one in fit.composed]
        log_scale(axes, "x", style, (min(times), max(times)), in_time)
        axes.set_xlabel("measured time of a layer", fontsize=style.small_pt, labelpad=1)
    else:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "none was measured", transform=axes.transAxes, ha="center", color=style.muted)
    marks = [
        _mark(style, replace(style.other(place), dash="none"), each.removeprefix("layer "))
        for place, each in enumerate(groups)
    ]
    if marks:
        axes.legend(
            handles=marks, loc="upper left", fontsize=0.78 * style.type_pt, labelspacing=0.15,
            handletextpad=0.2, borderpad=0.1,
        )  # fmt: skip
        shown = [(one.median_s, one.predicted_s / one.p10_s) for one in fit.composed]
        make_room(axes, shown, 0.04 + 0.065 * len(marks))


def _limit(points: Iterable[Timed]) -> float:
    """How far the error axis extends on each side of 1."""
    return 1.15 * max([BAND, *(abs(one.off) for one in points)])


def _legend(figure: SubFigure, style: Style) -> None:
    """Explain dots, bars, lines and shading."""
    ink: Any = {"color": style.muted}
    size_pt, thick = 3 * style.line, 0.9 * style.line
    dot = Line2D([], [], marker="o", markersize=size_pt, linestyle="none", markeredgewidth=0, **ink)
    bar = Line2D([], [], marker="|", markersize=3 * size_pt, linestyle="none", markeredgewidth=thick, **ink)
    line = Line2D([], [], linewidth=thick, **ink)
    tint = Line2D([], [], color=style.grid, linewidth=4 * style.line)
    said = ("median of a point", "10th to 90th percentile", "fitted form", "within 5 %")
    figure.legend(
        handles=[dot, bar, line, tint], labels=said, loc="outside lower center",
        ncols=4, fontsize=style.small_pt, columnspacing=1.5, handlelength=1.8,
    )  # fmt: skip
