"""capacity: the largest load within the SLO per GPU, a bar per system with its interval and its limit."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from kvsim.reports.figures import pieces
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.swept.pieces import lines_below, places_by_clock
from kvsim.reports.figures.systems import short
from kvsim.reports.palette import figures
from kvsim.reports.sweeps.capacity_table import clock_of
from kvsim.reports.sweeps.table import Row

Axis = tuple[str, str]
"""The column to draw, and its name in words."""


def capacity(  # noqa: PLR0917 - the parts of a picture
    rows: Sequence[Row], labels: Sequence[str], axis: Axis, headline: str, beside: Sequence[str], style: Style
) -> Figure:
    """Draw bars, largest first per clock, with their limits and, for several seeds, their intervals."""
    unit, words = axis
    below = lines_below(style, beside)
    clocks = list(dict.fromkeys(map(clock_of, rows)))
    order = sorted(
        range(len(rows)),
        key=lambda place: (clocks.index(clock_of(rows[place])), -(rows[place][f"{unit}_per_gpu"] or 0.0)),
    )
    crowded = len(rows) > 12
    alone = crowded or style.narrow  # the number, without what limits it
    tall = len(rows) + (len(clocks) if len(clocks) > 1 else 0)
    figure = new_sheet(style, 1.6 + 0.17 * len(below) + (0.22 if crowded else 0.5) * tall, headline)
    axes = figure.subplots()
    places = places_by_clock(axes, style, [rows[place] for place in order])
    most = max(_interval(row, unit)[1] for row in rows) or 1.0
    for place, (at, look) in zip(order, places, strict=True):
        row = rows[place]
        value = row[f"{unit}_per_gpu"]
        if value is not None:
            axes.barh(at, value, height=0.62, color=look.colour, alpha=0.85)
        low, high = _interval(row, unit)
        if low < high:
            axes.plot([low, high], [at, at], color=style.ink, linewidth=style.line)
        said = f"{'>= ' * row['at_least']}{figures(value)}" if value is not None else "none"
        why = said if alone else f"{said}   {short(str(row['limited_by']), 72)}"
        how: Any = {"va": "center", "fontsize": 0.9 * style.small_pt, "color": style.muted}
        axes.text(high + 0.01 * most, at, why, **how)
    names = [short(labels[place], 34) for place in order]
    size = style.small_pt if crowded else None
    pieces.bars_named(axes, style, [at for at, _ in places], names, fontsize=size)
    axes.set_xlim(0, most * (1.15 if alone else 2.25))
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.1 * most])
    axes.set_xlabel(f"{words} per GPU")
    figure.supxlabel("\n".join(below), x=0.01, ha="left", color=style.muted, fontsize=0.9 * style.small_pt)
    return figure


def _interval(row: Row, unit: str) -> tuple[float, float]:
    """The ends of a system's interval per GPU; both are its value with one seed, 0 without a value."""
    value = row[f"{unit}_per_gpu"] or 0.0
    if not value or row["seeds"] == 1:
        return value, value
    low, high = (max(row[f"{unit}_{end}"] or 0.0, 0.0) / (row["gpus"] or 1) for end in ("low", "high"))
    return low, max(high, value)
