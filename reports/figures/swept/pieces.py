"""What the figures of sweeps share: of many systems, which are told apart."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from kvsim.reports.figures import pieces
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import short

MOST_NAMED = 8
"""Systems that get a colour and a name; the others are grey."""


def looks(style: Style, count: int, named: Sequence[int]) -> list[Look | None]:
    """A look for each of so many systems: one of its own for those that are named; None: grey."""
    places = list(range(count)) if count <= MOST_NAMED else list(named)[:MOST_NAMED]
    return [style.look(places.index(place)) if place in places else None for place in range(count)]


def mark(style: Style, look: Look | None) -> dict[str, Any]:
    """How matplotlib draws a system."""
    if look is None:
        return {"color": style.grid, "linewidth": 0.6 * style.line, "zorder": 1}
    return {"color": look.colour, "linestyle": look.dash, "linewidth": style.line, "zorder": 3}


def legend(figure: Figure, style: Style, names: Sequence[str], found: Sequence[Look | None]) -> None:
    """The names of the systems that are told apart, and how many are not."""
    own = [(name, look) for name, look in zip(names, found, strict=True) if look is not None]
    grey = len(names) - len(own)
    if len(names) == 1:
        return
    pairs = [(short(name, 44), look) for name, look in own]
    if grey:
        pairs.append((f"{grey} others", Look(style.grid, "-", "", "")))
    pieces.systems_below(figure, style, [name for name, _ in pairs], [look for _, look in pairs], marker=True)
