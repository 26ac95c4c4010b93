"""seeds.png: the main numbers of each allocator, a dot per seed, a bar for the mean and its interval."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reports import palette
from reports.figures.sheet import draw_picture
from reports.palette import number
from reports.seeds import alike, interval

Summary = Mapping[str, Any]
_PANELS: tuple[tuple[str, Callable[[Summary], float | None]], ...] = (
    ("requests per second", lambda s: number(s["throughput"]["requests_per_s"])),
    ("seconds per token, end to end", lambda s: number(s["latency"]["normalized_s_per_token"]["mean"])),
    ("seconds to first token, p99", lambda s: number(s["latency"]["ttft_s"]["p99"])),
    ("waste, % of the KV memory", lambda s: palette.waste(palette.shares(s)[0])),
)


def draw_seeds(runs: Sequence[Sequence[Summary]], path: Path) -> None:
    """Draw the picture of several seeds; `runs` by seed, then by allocator."""
    allocators = [alike(each) for each in zip(*runs, strict=True)]
    headline = f"{len(runs)} seeds: each a dot; means with 95 % confidence"

    def paint(figure: Figure) -> None:
        panels = figure.subplots(2, 2, sharey=True).flat
        for axes, (title, value) in zip(panels, _PANELS, strict=True):
            _panel(axes, title, [[value(summary) for summary in each] for each in allocators])
            axes.set_yticks(range(len(allocators)), [str(each[0]["label"]) for each in allocators])
        axes.set_ylim(len(allocators) - 0.5, -0.5)

    draw_picture(path, headline, 2.2 + 0.7 * len(allocators), paint)


def _panel(axes: Axes, title: str, columns: Sequence[Sequence[float | None]]) -> None:
    """A row per allocator: its seeds, and the interval of their mean."""
    axes.set_title(title)
    for row, column in enumerate(columns):
        known = [value for value in column if value is not None]
        colour = palette.series_colour(row)
        axes.plot(known, [row + 0.2] * len(known), "o", color=colour, alpha=0.5, markersize=4)
        found = interval(column)
        if found is not None:
            axes.plot([found.low, found.high], [row - 0.1] * 2, color=colour, linewidth=3)
            axes.plot([found.mean], [row - 0.1], "|", color=colour, markersize=13, markeredgewidth=2)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]) if any(map(any, columns)) else 0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
