"""seeds: each system's main numbers: a dot per seed, a bar for the mean and its interval."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kvsim.reports.colours import summary_parts
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet, save
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System
from kvsim.reports.palette import Summary
from kvsim.reports.quantities import NORMALIZED, REQUESTS_PER_S, TTFT_P99, WASTE
from kvsim.reports.seeds.intervals import alike, interval

Named = Mapping[str, Sequence[Summary]]
"""The summaries of each system by seed."""

_PANELS = {
    "requests served per second": REQUESTS_PER_S,
    "normalised latency, mean (s/token)": NORMALIZED,
    "time to first token, p99 (s)": TTFT_P99,
    "waste over the whole run (%)": WASTE,
}


def seeds(systems: Sequence[System], choices: Choices) -> Figure:
    """The figure for all systems, at least one of them with several seeds."""
    if all(len(system.runs) < 2 for system in systems):
        many = f"{len(systems)} run{'s' if len(systems) > 1 else ''}"
        raise CannotDraw(f"figure seeds needs runs with two or more seeds, got {many} with one seed each")
    return _figure({system.name: system.summaries for system in systems}, choices.style)


def draw_seeds(runs: Sequence[Sequence[Summary]], directory: Path, style: Style) -> None:
    """Draw the figure of several seeds; `runs` by seed, then by allocator."""
    found = {str(each[0]["label"]): alike(each) for each in zip(*runs, strict=True)}
    save(directory, "seeds", style, partial(_figure, found, style))


def _figure(found: Named, style: Style) -> Figure:
    most = max(map(len, found.values()))
    headline = f"{most} seeds, one dot each; means with 95 % confidence"
    columns = 1 if style.narrow else 2
    height = 2.4 + 1.2 * len(found) if style.narrow else 2.2 + (0.7 if len(found) < 7 else 0.5) * len(found)
    figure = new_sheet(style, height, headline)
    looks = style.looks([summary_parts(each[0]) for each in found.values()])
    grid = figure.subplots(4 // columns, columns, sharey=True, squeeze=False)
    for axes, (title, quantity) in zip(grid.flat, _PANELS.items(), strict=True):
        columns_of = [[quantity.read(summary) for summary in each] for each in found.values()]
        axes.set_title(title)
        _panel(axes, style, looks, columns_of)
    names = [pieces.row_name(style, name) for name in found]
    for axes in grid[:, 0]:
        axes.set_yticks(range(len(found)), names, color=style.ink)
    grid.flat[0].set_ylim(len(found) - 0.5, -0.5)
    return figure


def _panel(
    axes: Axes, style: Style, looks: Sequence[Look], columns: Sequence[Sequence[float | None]]
) -> None:
    """A row per system: its seeds, and the interval of their mean."""
    furthest = 0.0
    for row, column in enumerate(columns):
        known = [value for value in column if value is not None]
        look = looks[row]
        dots: Any = {"markersize": 2.7 * style.line, "alpha": 0.55, "markeredgewidth": 0}
        marker = look.marker if style.grey_print else "o"
        axes.plot(known, [row + 0.2] * len(known), marker, color=look.colour, **dots)
        furthest = max([furthest, *known])
        found = interval(column) if len(column) > 1 else None
        if found is not None:
            axes.plot([found.low, found.high], [row - 0.1] * 2, color=look.colour, linewidth=2 * style.line)
            mean: Any = {"markersize": 8.7 * style.line, "markeredgewidth": 1.3 * style.line}
            axes.plot([found.mean], [row - 0.1], "|", color=look.colour, **mean)
            furthest = max(furthest, min(found.high, 1.6 * furthest))
    axes.set_xlim(0, 1.05 * furthest or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if not furthest:
        axes.set_xticks([0])
        if all(value is None for column in columns for value in column):
            pieces.say(axes, style, "no request finished")
