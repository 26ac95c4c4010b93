"""Code that figures of sweeps share: which systems get a colour of their own, and legends."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports.colours import PARTS
from kvsim.reports.figures import pieces
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import short
from kvsim.reports.sweeps.capacity_table import clock_of
from kvsim.reports.sweeps.systems import System

MOST_NAMED = 8
"""At most this many systems get a colour and a name; the others are grey."""


def looks(style: Style, systems: Sequence[System], named: Sequence[int]) -> list[Look | None]:
    """A look for each system: a distinct one for named systems; None: grey."""
    many = len(systems)
    places = list(range(many)) if many <= MOST_NAMED else list(named)[:MOST_NAMED]
    own = style.looks([parts_in(systems[place].settings) for place in places])
    return [own[places.index(place)] if place in places else None for place in range(many)]


def parts_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """The names in a row that determine a system's colour."""
    return {part: str(settings[part]) for part in PARTS if settings.get(part) is not None}


def places_by_clock(axes: Axes, style: Style, rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, Look]]:
    """The place and look of each row's bar; if clocks differ, each clock has a heading.

    Rows of one clock are adjacent: only their bars may be compared.
    """
    clocks = list(dict.fromkeys(clock_of(row) for row in rows))
    headings = len(clocks) > 1
    found, looks_of_rows = [], style.looks([parts_in(row) for row in rows])
    for at, row in enumerate(rows):
        clock = clocks.index(clock_of(row))
        found.append((at + (clock + 1) * headings, looks_of_rows[at]))
    for name in clocks if headings else ():
        first = next(at for (at, look), row in zip(found, rows, strict=True) if clock_of(row) == name)
        how: Any = {"va": "center", "style": "italic", "fontsize": style.small_pt, "color": style.ink}
        axes.text(0, first - 1, f" clock: {name}", **how)
    axes.set_ylim(found[-1][0] + 0.6 if found else 0.6, -0.6)
    return found


def lines_below(style: Style, texts: Sequence[str]) -> list[str]:
    """The lines of a caption in small letters that is as wide as the figure."""
    letters = int(style.width_in * 72 / (0.484 * style.small_pt))
    return [line for text in texts if text for line in wrap(f"{text}.", letters)]


def mark(style: Style, look: Look | None) -> dict[str, Any]:
    """Matplotlib's arguments for drawing a system."""
    if look is None:
        return {"color": style.grid, "linewidth": 0.6 * style.line, "zorder": 1}
    return {"color": look.colour, "linestyle": look.dash, "linewidth": style.line, "zorder": 3}


def legend(figure: Figure, style: Style, names: Sequence[str], found: Sequence[Look | None]) -> None:
    """The names of the coloured systems, and the number of grey ones."""
    own = [(name, look) for name, look in zip(names, found, strict=True) if look is not None]
    grey = len(names) - len(own)
    if len(names) == 1:
        return
    pairs = [(short(name, 44), look) for name, look in own]
    if grey:
        pairs.append((f"{grey} others", Look(style.grid, "-", "", "")))
    pieces.systems_below(figure, style, [name for name, _ in pairs], [look for _, look in pairs], marker=True)
