"""The ledger over simulated time in a terminal: a stacked chart with a resolution of an eighth of a line."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from kvsim.reports.palette import KINDS
from kvsim.sim.record.instants import TIMELINE_COLUMNS

WIDEST = 120  # columns
LEVELS = " ▁▂▃▄▅▆▇█"
_COLUMN = {name: place for place, name in enumerate(TIMELINE_COLUMNS)}


@dataclass(frozen=True)
class Chart:
    """The ledger over the simulated time so far, stacked, in eighths of a line; the empty part is free.

    A character can show two kinds only: the lowest one there, and one of the rest.
    """

    rows: Sequence[tuple[int, ...]]
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As wide as the console, up to WIDEST; without colour, a glyph per kind."""
        width = min(options.max_width, WIDEST)
        coloured = console.color_system is not None and not console.no_color
        capacity = sum(self.rows[-1][_COLUMN[kind]] for kind in KINDS) or 1
        columns = [
            [self.height * upto / capacity for upto in accumulate(slots)]
            for slots in zip(*slice_means(self.rows, width, _SHOWN), strict=True)
        ]
        for bottom in range(self.height - 1, -1, -1):
            cells = [_cell(edges, bottom, coloured) for edges in columns]
            for (mark, style), alike in groupby(cells):
                yield Segment(mark * len(list(alike)), style)
            yield Segment.line()


_SHOWN = tuple(kind for kind in KINDS if kind != "free")


def _cell(edges: Sequence[float], bottom: int, coloured: bool) -> tuple[str, Style | None]:
    """The character of a column for the line above `bottom`; kinds end at the edges, from below."""
    place = bisect_right(edges, bottom)
    if place == len(edges):
        return " ", None
    lower = _SHOWN[place]
    level = round(8 * min(edges[place] - bottom, 1.0))
    if not coloured:
        return (KINDS[lower].glyph if level >= 4 else " "), None
    above = bisect_right(edges, (edges[place] + bottom + 1) / 2)
    upper = _SHOWN[above] if above < len(edges) else None
    return LEVELS[level], _style(lower, upper if level < 8 else None)


@cache
def _style(ink: str, back: str | None) -> Style:
    return Style(color=KINDS[ink].colour, bgcolor=KINDS[back].colour if back else None)


def slice_means(rows: Sequence[tuple[int, ...]], number: int, names: Sequence[str]) -> list[list[float]]:
    """Timeline columns, each as means over `number` equal slices of the time so far.

    A slice averages the rows that begin in it; if none do, it repeats the previous row.
    """
    if not rows or number < 1:
        return [[] for _ in names]
    end, times = rows[-1][0], [row[0] for row in rows]
    found: list[list[float]] = [[] for _ in names]
    start = 0
    for place in range(number):
        stop = bisect_right(times, end * (place + 1) // number)
        some = rows[start:stop] or rows[start - 1 : start]
        for column, name in zip(found, names, strict=True):
            at = _COLUMN[name]
            column.append(sum([row[at] for row in some]) / len(some))
        start = stop
    return found
