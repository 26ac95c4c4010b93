"""Code that figures share: headlines, legends, panels and axes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, StepPatch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
)

from kvsim.reports.arrays import Floats
from kvsim.reports.figures.sheet import wrapped
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System, short
from kvsim.reports.palette import Summary, kinds_of, meaning
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.seeds.words import Shown, with_spread
from kvsim.sim.record.slo import Limit

BAND = 1.1
"""Simulated over measured at the dotted lines beside the line of equality."""
_MOST_LISTED = 4
_MANY_PANELS = 8


def listed(names: Sequence[str], values: Sequence[Interval | None], words: Shown) -> str:
    """A value per name, with its spread over the seeds; for many names, just the minimum and maximum."""
    said = [with_spread(words, value).replace(" ", "\u00a0") for value in values]  # no break before a unit
    if len(names) <= _MOST_LISTED:
        return ", ".join(f"{each} {value}" for each, value in zip(names, said, strict=True))
    known = [(value.mean, place) for place, value in enumerate(values) if value is not None]
    if not known:
        return "none"
    (least, first), (most, last) = min(known), max(known)
    if least == most:
        return f"{said[first]} in all {len(names)}"
    return f"{said[first]} ({names[first]}) to {said[last]} ({names[last]})"


def percent_of(whole: float) -> FuncFormatter:
    """Ticks in per cent, without duplicates."""
    return FuncFormatter(lambda value, _: f"{100 * value / whole:.4g} %")


def limit_line(axes: Axes, style: Style, limit: Limit, along: str) -> None:
    """Draw an SLO limit across a panel; `along`: the latency's axis, x or y."""
    how: Any = {"color": style.ink, "linewidth": 0.8 * style.line, "linestyle": (0, (2, 1.5)), "zorder": 1.5}
    name = f"SLO {limit.name.partition(':')[2]}".strip()
    words: Any = {"color": style.muted, "fontsize": style.small_pt}
    if along == "x":
        axes.axvline(limit.limit_s, **how)
        if limit.quantile is not None:
            axes.plot([limit.limit_s], [limit.quantile], marker="+", color=style.ink, zorder=3)
        turned: Any = {"rotation": 90, "ha": "right", "va": "bottom", "transform": axes.get_xaxis_transform()}
        axes.text(limit.limit_s, 0.03, name, **words, **turned)
    else:
        axes.axhline(limit.limit_s, **how)
        level: Any = {"ha": "left", "va": "bottom", "transform": axes.get_yaxis_transform()}
        axes.text(0.01, limit.limit_s, name, **words, **level)


def say(axes: Axes, style: Style, text: str) -> None:
    """Write a text in the middle of empty axes."""
    place = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, text, color=style.muted, fontsize=1.1 * style.type_pt, **place)


def kind_patch(style: Style, kind: str, summaries: Iterable[Summary]) -> Patch:
    """The legend entry of a kind of memory in these runs."""
    label = kind if style.narrow else f"{kind}: {meaning(kind, summaries)}"
    return Patch(label=label, linewidth=0.5, **style.filled(kind))


def layer(axes: Axes, tops: Floats, edges: Floats, **how: Any) -> None:  # noqa: ANN401 - matplotlib's
    """Fill the area below a step curve; unlike axes.stairs, this does not measure every vertex."""
    patch = StepPatch(tops, edges, fill=True, linewidth=0, **how)
    axes.add_artist(patch)
    patch.set_clip_path(axes.patch)


def stacked_bar(  # noqa: PLR0917 - a bar and its look
    axes: Axes, style: Style, row: float, percent: Mapping[str, float], height: float, line: float
) -> float:
    """Draw one bar of kinds of memory, with seams of `line` points; returns where it ends."""
    left = 0.0
    for kind, share in percent.items():
        axes.barh(row, share, height, left, linewidth=line, **style.filled(kind))
        left += share
    return left


def line(style: Style, look: Look, label: str, marker: bool = False) -> Line2D:
    """The legend entry of a system."""
    mark: Any = {"marker": look.marker, "markersize": 3 * style.line} if marker else {}
    return Line2D(
        [], [], color=look.colour, linestyle=look.dash, linewidth=1.5 * style.line, label=label, **mark
    )


def looks(style: Style, systems: Sequence[System], curves: Sequence[npt.NDArray[Any]]) -> list[Look]:
    """The systems' looks; a curve that covers an earlier one is dashed, so that both are visible."""
    found = []
    own = style.looks([system.parts for system in systems])
    for place, (look, curve) in enumerate(zip(own, curves, strict=True)):
        below = sum(curve.shape == each.shape and np.allclose(curve, each) for each in curves[:place])
        gaps = replace(look, dash=(0, (4.0 / (below + 1), 4.0)))
        found.append(gaps if below and not style.grey_print and len(curve) else look)
    return found


def legend_below(figure: Figure, style: Style, marks: Sequence[Any], columns: int = 3) -> int:
    """Put a legend below all panels, in at most `columns` columns; returns its number of lines."""
    line_em = 2.6 if any(isinstance(mark, Line2D) for mark in marks) else 1.6
    widths_em = np.array([0.56 * len(mark.get_label()) + line_em + 2.3 for mark in marks])

    def width_in(columns: int) -> float:
        return sum(each.max() for each in np.array_split(widths_em, columns)) * style.small_pt / 72

    most = min(columns, len(marks))
    fitting = [many for many in range(1, most + 1) if width_in(many) < 0.95 * style.width_in]
    lines = -(-len(marks) // max(fitting, default=1))
    columns = max(1, -(-len(marks) // max(lines, 1)))
    below: Any = {"loc": "outside lower center", "columnspacing": 1.5, "handlelength": line_em}
    figure.legend(handles=marks, ncols=columns, **below)
    return lines


def legend_beside(axes: Axes, style: Style, marks: Sequence[Any]) -> None:
    """Put the legend of a stack to the right of a panel, in the order of the stack."""
    how: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False}
    axes.legend(handles=marks[::-1], fontsize=style.small_pt, **how)


def systems_below(
    figure: Figure, style: Style, names: Sequence[str], found: Sequence[Look], marker: bool = False
) -> None:
    """Put a legend of systems below all panels; the figure grows by its lines after the first."""
    if style.narrow:
        names = [short(each, 25) for each in names]  # so that two fit side by side
    marks = [line(style, look, each, marker) for each, look in zip(names, found, strict=True)]
    lines = legend_below(figure, style, marks, columns=len(marks))
    figure.set_figheight(figure.get_figheight() + (lines - 1) * 1.6 * style.small_pt / 72)


def row_name(style: Style, name: str) -> str:
    """The name of a bar, wrapped; words that are too long lose their middle."""
    if style.narrow:
        return short(name, 16)
    return wrapped(" ".join(short(word, 22) for word in name.split(" ")), 22)


def panels(figure: Figure, style: Style, count: int, below: str) -> list[Axes]:
    """Axes in per cent for `count` panels, in rows; the last of each column has the label `below`."""
    columns = panel_columns(style, count)
    grid = figure.subplots(-(-count // columns), columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    first, _, rest = below.partition(", ")
    for place in range(max(count - columns, 0), count):
        grid.flat[place].tick_params(labelbottom=True)
        if columns > 1 and (style.narrow or columns > 3):  # the second line needs space
            middle = place % columns == (columns - 1) // 2 or columns == 2
            grid.flat[place].set_xlabel(f"{first}\n{rest}" if rest and middle else first)
        else:
            grid.flat[place].set_xlabel(below)
    for axes in grid.flat[:count]:
        axes.set_ylim(0, 100)
        axes.set_yticks((0, 50, 100) if count > _MANY_PANELS else (0, 25, 50, 75, 100))
        axes.yaxis.set_major_formatter(percent_of(100))
    return list(grid.flat[:count])


def panels_in(style: Style, count: int) -> float:
    """The height of a figure with `count` panels, at a type size of 10 points."""
    rows = -(-count // panel_columns(style, count))
    return 4.2 if count == 1 else 1.6 + (1.7 if count <= _MANY_PANELS else 1.25) * rows


def panel_title(axes: Axes, style: Style, name: str, columns: int) -> None:
    """Title a panel, wrapped, if there are several panels or no headline names the system."""
    letters = int(72 * (0.7 if style.narrow else 0.8) * style.width_in / columns / (0.74 * style.type_pt))
    axes.set_title("\n".join(short(line, letters) for line in name.splitlines()), fontweight="bold")


def panel_columns(style: Style, count: int) -> int:
    """One column for few panels; more on slides, which are wide."""
    few = 3 if style.name == "dark" else 4
    return 1 if count <= few else 2 if count <= _MANY_PANELS else 3 if count <= 18 or style.narrow else 4


def finite(values: Floats) -> Floats:
    """Drop NaN and infinity."""
    return values[np.isfinite(values)]


class _Roomy(LogLocator):
    """Ticks of a logarithmic x axis, thinned where their labels would touch."""

    def __init__(self, subs: Sequence[float]) -> None:
        super().__init__(subs=subs, numticks=9)
        fewer = [(subs, 9), ((1, 3), 9), *(((1,), most) for most in (9, 4, 3))]
        self.choices = [LogLocator(subs=each, numticks=most) for each, most in fewer]

    def tick_values(self, vmin: float, vmax: float) -> Any:  # noqa: ANN401 - as Matplotlib's
        """The first set of ticks whose labels fit; a letter takes 0.6 em, a gap one."""
        room_em = 3 * self.axis.get_tick_space()  # Matplotlib assumes labels of 3 em
        for choice in self.choices:
            ticks = choice.tick_values(vmin, vmax)
            labels = [_plain(tick) for tick in ticks if vmin <= tick <= vmax]
            if sum(0.6 * len(label) + 1 for label in labels) <= room_em:
                break
        return ticks


def log_axis(axes: Axes, which: str, low: float, high: float, few: bool = False) -> None:
    """Set up a logarithmic axis with plain numbers, enough of them even over little more than a decade."""
    spans = 5 * high / low if few else high / low
    getattr(axes, f"set_{which}scale")("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    subs = (1,) if spans > 500 else (1, 3) if spans > 50 else (1, 2, 5)
    axis.set_major_locator(_Roomy(subs) if which == "x" else LogLocator(subs=subs, numticks=9))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axes, which)


def value_axis(axes: Axes, values: Sequence[float]) -> bool:
    """Set up the y axis for these values: logarithmic if they span much, which is returned; else from 0."""
    positive = [value for value in values if value > 0]
    wide = bool(positive) and max(positive) > 20 * min(positive)
    if wide:
        log_axis(axes, "y", min(positive), max(positive))
    else:
        from_0(axes, values)
    return wide


def from_0(axes: Axes, values: Sequence[float]) -> None:
    """Let the y axis begin at 0 and end above these values."""
    axes.set_ylim(0, 1.08 * max(values, default=0) or 1)


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def plain_numbers(axes: Axes, which: str, factor: float = 1.0) -> None:
    """Write 1,000 and 0.01 instead of powers of ten."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value * factor)))
    axis.set_minor_formatter(NullFormatter())


def equality(axes: Axes, style: Style, low: float, high: float) -> None:
    """Put the same logarithmic scale on both axes, with lines at equality and at `BAND` off."""
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for which in "xy":
        plain_numbers(axes, which)
    ends = np.array([low, high])
    axes.plot(ends, ends, "-", color=style.muted, lw=style.line / 2, zorder=0)
    for share in (BAND, 1 / BAND):
        axes.plot(ends, share * ends, ":", color=style.muted, lw=style.line / 2, zorder=0)


def bars_named(axes: Axes, style: Style, at: Sequence[float], names: Sequence[str], **how: Any) -> None:  # noqa: ANN401
    """Write names beside horizontal bars, without ticks or frame."""
    axes.set_yticks(at, names, color=style.ink, **how)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def memory_shares(
    axes: Axes, figure: Figure, style: Style, summaries: Sequence[Summary], saturated: bool
) -> None:
    """Set up the axis of bars that are shares of these runs' memory, and the legend of the ledger's kinds."""
    axes.xaxis.set_major_formatter(percent_of(100))
    when = "while requests wait" if saturated else "over the whole run"
    between = "\n" if style.narrow else " "
    axes.set_xlabel(f"share of the KV memory, mean{between}{when}")
    legend_below(figure, style, [kind_patch(style, kind, summaries) for kind in kinds_of(summaries)])


def ticks_at(axes: Axes, values: Sequence[float]) -> None:
    """Put the x ticks at exactly these values."""
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers(axes, "x")
