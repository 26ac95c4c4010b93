"""Figures of a sweep: `tiers` by size, `curves` over the load, the `pareto` front, a `heatmap`, `goals`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import save, sign
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.swept import curves, goals, heatmap, pareto, tiers
from kvsim.reports.sweeps.headline import (
    different_clocks,
    first_words,
    foot,
    served_alike,
    served_in_words,
)
from kvsim.reports.sweeps.systems import load_of, systems
from kvsim.sim.record.slo import Slo

FIGURES: dict[str, Callable[..., Figure | None]] = {
    "tiers": tiers.tiers,
    "curves": curves.curves,
    "pareto": pareto.pareto,
    "heatmap": heatmap.heatmap,
    "goals": goals.goals,
}
"""Name -> a function of systems, load, limits and style that returns None if the rows lack its data."""
COUNTING = ("goals",)
"""Figures that already count rejected requests, so their headlines do not."""


def draw_sweep(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], slo: Slo | None, part: Path, style: Style
) -> list[Path]:
    """Draw the figures that these rows allow into a directory; returns the files."""
    load = load_of(names)
    found = [system for system in systems(rows, names) if system.points]
    drawn: list[Path] = []
    for name, figure in FIGURES.items():
        if found and figure(found, load, slo, style) is not None:
            unserved = name != "heatmap" or not heatmap.names_unserved(found, load)
            refused = "" if name in COUNTING else first_words(found, nothing=unserved).rstrip()
            below = foot(found)
            if refused and name == "tiers" and served_alike(found):  # each curve compares equals
                refused, below = "", f"{served_in_words(found)}; {below}"
            draw = partial(figure, found, load, slo, style)
            first = different_clocks(found) or refused
            drawn += save(part, name, style, partial(_signed, draw, style, first, below))
    return drawn


def _signed(draw: Callable[[], Figure], style: Style, first: str, below: str) -> Figure:
    """A figure, with rejections or a warning about clocks in its headline, and the clock at its foot."""
    figure = draw()
    sign(figure, style, "" if figure.get_label().startswith(first) else first, below)
    return figure
