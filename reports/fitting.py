"""A list of things as a table, and as several where the terminal is too narrow for one.

    wide     name  weights  layers  source          narrow   name  weights  layers
             ...                                             ...

                                                             name  source
                                                             ...

The first column stays whole and begins every part; a column of words wraps, and no number or name is ever
cut, as long as the terminal has room for one column beside the first.
"""

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

LEAST_WORDS, MOST_WORD = 16, 26
"""Characters in a line of a column that wraps, at least; a longer word than the second may be folded."""


class FittingTable:
    """Rows of texts under names, in as many tables as the width needs.

    Parameters
    ----------
    columns : sequence of str
    rows : iterable of sequences of str, one text per column
    words : collection of str
        Columns that wrap and stand to the left; the others stay whole, all but the first to the right.
    """

    def __init__(
        self, columns: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str] = ()
    ) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(row) for row in rows]
        self.words = frozenset(words)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._parts(options.max_width):
            if part[0] > 1:
                yield Text("")
            yield self._table([0, *part])

    def _parts(self, width: int) -> list[list[int]]:
        """The columns of each table, without the first."""
        least = [self._least(column) for column in range(len(self.columns))]
        parts: list[list[int]] = []
        left = 0
        for column in range(1, len(self.columns)):
            if not parts or least[column] + 1 > left:
                parts.append([])
                left = width - least[0]
            parts[-1].append(column)
            left -= least[column] + 1
        return parts or [[]]

    def _least(self, column: int) -> int:
        """How wide a column must be: its widest text, or its longest word where it wraps."""
        texts = [self.columns[column], *(row[column] for row in self.rows)]
        if self.columns[column] not in self.words:
            return max(map(len, texts))
        longest = max((len(word) for text in texts for word in text.split()), default=0)
        return max(min(longest, MOST_WORD), min(LEAST_WORDS, max(map(len, texts))))

    def _table(self, columns: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
        for column in columns:
            name = self.columns[column]
            if column == 0:
                table.add_column(name, no_wrap=True, style="bold")
            elif name in self.words:
                table.add_column(name, overflow="fold")
            else:
                table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(row[column]) for column in columns))
        return table
