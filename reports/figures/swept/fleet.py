"""fleet: the hourly cost of serving a load, a bar per system, cheapest first per clock."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from kvsim.reports.figures import pieces
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.swept.pieces import lines_below, places_by_clock
from kvsim.reports.figures.systems import short
from kvsim.reports.grouping import by_key
from kvsim.reports.palette import figures
from kvsim.reports.sweeps.capacity_table import clock_of
from kvsim.reports.sweeps.capacity_words import count_of, trust_of
from kvsim.reports.sweeps.table import Row

MOST_BARS = 20


def fleet(
    rows: Sequence[Row], labels: Sequence[str], headline: str, beside: Sequence[str], style: Style
) -> Figure:
    """Draw the systems that can serve the load; hollow if only short runs were made."""
    shown = _cheapest(rows, labels)
    clocks = len({clock_of(row) for row, _ in shown})
    below = lines_below(style, beside)
    figure = new_sheet(style, 1.7 + 0.17 * len(below) + 0.3 * (len(shown) + clocks), headline)
    axes = figure.subplots()
    most = max((row["fleet_price_per_hour"] for row, _ in shown), default=1.0) or 1.0
    places = places_by_clock(axes, style, [row for row, _ in shown])
    for (row, _), (at, look) in zip(shown, places, strict=True):
        price = row["fleet_price_per_hour"]
        inside = "none" if row["rough"] else look.colour
        axes.barh(at, price, height=0.62, facecolor=inside, edgecolor=look.colour, linewidth=0.7 * style.line)
        said = f"{figures(price)}   {count_of(row)}{'' if style.narrow else f'; {trust_of(row)}'}"
        how: Any = {"va": "center", "fontsize": 0.9 * style.small_pt, "color": style.muted}
        axes.text(price + 0.01 * most, at, said, **how)
    pieces.bars_named(axes, style, [at for at, _ in places], [short(label, 34) for _, label in shown])
    axes.set_xlim(0, 1.6 * most)
    rough = "; hollow: by short runs alone" if any(row["rough"] for row, _ in shown) else ""
    axes.set_xlabel(f"price per hour of the fleet{rough}")
    figure.supxlabel("\n".join(below), x=0.01, ha="left", color=style.muted, fontsize=0.9 * style.small_pt)
    return figure


def _cheapest(rows: Sequence[Row], labels: Sequence[str]) -> list[tuple[Row, str]]:
    """The cheapest systems that serve the load, the same maximum number for each clock."""
    able = [each for each in zip(rows, labels, strict=True) if each[0]["fleet_price_per_hour"] is not None]
    by_clock = by_key(able, lambda each: clock_of(each[0]))
    most = MOST_BARS // max(len(by_clock), 1)
    return [each for members in by_clock.values() for each in members[:most]]
