"""A table that splits into several, one below the other, on a narrow terminal; no number is cut.

    wide     name  weights  layers  source          narrow   name  weights  layers
             ...                                             ...

                                                             name  source
                                                             ...

Every part repeats the first column. If a table still does not fit, names, text and headings wrap between
words; numbers stay whole.
"""

from collections.abc import Collection, Iterable, Sequence
from copy import copy

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

LEAST_WORDS, MOST_WORD = 16, 26
"""Minimum width of a column that wraps, in characters; longer words than the second may be broken."""
UNBOUNDED = 10_000
"""The console width for measuring a text."""
NAMES = 0.45
"""The first column's share of the width in a table that does not fit; a longer word may take more."""


Padding = tuple[int, int, int, int]


class FittingTable(Table):
    """One rule under the heading, nothing else; split into as many tables as the width requires.

    Add columns as to any rich table. `padding`: spaces above, right, below and left of a cell.
    """

    def __init__(self, padding: Padding = (0, 1, 0, 1)) -> None:
        super().__init__(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
        self._between = 1 + padding[1] + padding[3]

    def add_numbers(self, *names: str) -> None:
        """Add columns of numbers, which are right-aligned and never broken."""
        for name in names:
            self.add_column(name, justify="right", no_wrap=True)

    @classmethod
    def of(
        cls, columns: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str] = ()
    ) -> "FittingTable":
        """Rows of strings under column names, close together; columns in `words` wrap, left-aligned."""
        table = cls((0, 0, 0, 0))
        for place, name in enumerate(columns):
            if place == 0:
                table.add_column(name, no_wrap=True, style="bold")
            elif name in words:
                table.add_column(name, overflow="fold")
            else:
                table.add_numbers(name)
        for row in rows:
            table.add_row(*map(Text, row))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The parts, separated by blank lines; rich's own table if there is room."""
        if self.__rich_measure__(console, options.update(width=UNBOUNDED)).maximum <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        first, *others = (_least(console, options, column) for column in self.columns)
        first = min(_most(console, options, self.columns[0]), max(first, int(NAMES * options.max_width)))
        parts: list[list[int]] = []
        left = 0
        for place, least in enumerate(others, 1):
            if not parts or least + self._between > left:
                parts.append([])
                left = options.max_width - first
            parts[-1].append(place)
            left -= least + self._between
        for part in parts or [[]]:
            if part and part[0] > 1:
                yield Text("")
            yield from self._part([0, *part], [first, *others], console, options)

    def _part(
        self, places: Sequence[int], widths: Sequence[int], console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """A table of some of the columns: rich wraps text; all other columns have fixed widths."""
        part = copy(self)
        part.columns = [copy(self.columns[place]) for place in places]
        for at, column in enumerate(part.columns):
            column._index = at
            if at == 0 or column.justify == "right":
                column.no_wrap, column.overflow, column.width = False, "fold", widths[places[at]]
        return Table.__rich_console__(part, console, options)


def ruled_table(first: str, *numbers: str, padding: Padding = (0, 1, 0, 1)) -> FittingTable:
    """An empty table in the common style: a column of names, and columns of numbers."""
    table = FittingTable(padding)
    table.add_column(first, no_wrap=True)
    table.add_numbers(*numbers)
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Names and values without a heading; long values wrap."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    return table


def _least(console: Console, options: ConsoleOptions, column: Column) -> int:
    """The minimum width of a column: its widest number, or the longest word of its heading or cells."""
    header, *cells = _measured(console, options, column)
    if column.justify == "right":
        return max(header.minimum, *(each.maximum for each in cells))
    longest = max(each.minimum for each in (header, *cells))
    return max(min(longest, MOST_WORD), min(LEAST_WORDS, _most(console, options, column)))


def _most(console: Console, options: ConsoleOptions, column: Column) -> int:
    """The width of a column without wrapping."""
    return max(each.maximum for each in _measured(console, options, column))


def _measured(console: Console, options: ConsoleOptions, column: Column) -> list[Measurement]:
    """The widths of a column's heading and cells."""
    wide = options.update(width=UNBOUNDED)
    return [Measurement.get(console, wide, text) for text in (column.header, *column.cells)]
