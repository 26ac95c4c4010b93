"""A reproduction in the terminal, in 80 columns: a table per figure, its checks, all verdicts."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.reports import palette
from kvsim.reports.fitting import ruled_table
from kvsim.reports.papers.checks import AGREES, Judged, Row

SWEEPS = ("sweep", "swap")
"""Readings at each value of a setting: a column for each."""
MANY = 3
"""A system with this many numbers in a panel has its own heading."""


def figure_tables(results: Sequence[Judged]) -> RenderableType:
    """Every figure: its numbers, published beside simulated, and its checks."""
    parts: list[RenderableType] = []
    for judged in results:
        figure = judged.figure
        parts += [
            Text(f"Figure {figure.number}: {figure.title}", style="bold"),
            Text(figure.settings["unit"]),
            _sweep(judged) if figure.reads in SWEEPS else _numbers(judged),
            _checks(judged),
            *(Text(f"{who}: {n:,} requests rejected", style="yellow") for who, n in judged.rejected.items()),
            "",
        ]
    return Group(*parts, _verdicts(results))


def less(results: Sequence[Judged]) -> str:
    """What a quick run omits."""
    left = []
    for judged in results:
        there = {row.panel for row in judged.rows}
        if missing := [panel for panel in judged.figure.panels if panel not in there]:
            left.append(f"Figure {judged.figure.number} without {', '.join(missing)}")
    return "; ".join(["shorter or fewer runs, no open choices", *left])


def _numbers(judged: Judged) -> Table:
    ranges = any(row.low is not None for row in judged.rows)
    heads = ("published", "simulated", "off", *(["range"] if ranges else []), "")
    table = ruled_table("", *heads, padding=(0, 1, 0, 0))
    for heading, rows in _groups(judged):
        if heading:
            table.add_row(Text(heading, style="bold"))
        for label, row in rows:
            far = "" if row.percent is None else f"{row.percent:+.1f} %"
            cells = [palette.figures(row.published), palette.figures(row.simulated), far]
            table.add_row(label, *cells, *([_range(row)] if ranges else []), _word(row.verdict))
    return table


def _groups(judged: Judged) -> Iterator[tuple[str, list[tuple[str, Row]]]]:
    """The rows with their labels under headings: panels, or systems if each has many numbers."""
    several = len(judged.figure.panels) > 1
    for panel, found in groupby(judged.rows, key=lambda row: row.panel):
        by_system = {who: list(rows) for who, rows in groupby(found, key=lambda row: row.system)}
        if max(map(len, by_system.values())) >= MANY:
            for who, rows in by_system.items():
                yield f"{panel}, {who}" if several else who, [(row.name, row) for row in rows]
            continue
        labelled = [
            (row.name if place else who, row)
            for who, rows in by_system.items()
            for place, row in enumerate(rows)
        ]
        yield panel if several else "", labelled


def _sweep(judged: Judged) -> Group:
    """A column for each value of the setting; the range over the open choices in two lines."""
    values = [str(value) for value in judged.figure.settings["values"]]
    values = [value for value in values if any(row.value == value for row in judged.rows)]

    def lines(rows: Sequence[tuple[str, Sequence[str]]], style: str = "") -> Table:
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False, style=style)
        table.add_column(width=len("block size"), no_wrap=True)
        for _ in values:
            table.add_column(width=6, justify="right", no_wrap=True)
        for name, cells in rows:
            table.add_row(name, *cells)
        return table

    parts: list[RenderableType] = ["", lines([("block size", values)], "bold")]
    alone = len(judged.figure.panels) == 1
    for (panel, system), rows in groupby(judged.rows, key=lambda row: (row.panel, row.system)):
        here = {row.value: row for row in rows}
        numbers = {
            "published": [here[value].published for value in values],
            "simulated": [here[value].simulated for value in values],
            "range from": [here[value].low for value in values],
            "to": [here[value].high for value in values],
        }
        known = {name: found for name, found in numbers.items() if any(x is not None for x in found)}
        parts += [
            Text(system if alone else f"{panel}, {system}", style="bold"),
            lines([(name, [palette.figures(x) for x in found]) for name, found in known.items()]),
        ]
    return Group(*parts, "")


def _checks(judged: Judged) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in judged.checks:
        note = "" if check.decides else " (decides nothing)"
        table.add_row(_word(check.verdict), f"{check.what}: {check.detail}{note}")
    return table


def _verdicts(results: Sequence[Judged]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right")
    for judged in results:
        number = Text(f"Figure {judged.figure.number}", style="bold")
        table.add_row(number, judged.figure.title, _word(judged.verdict))
    return table


def _range(row: Row) -> str:
    if row.low is None:
        return ""
    return f"{palette.figures(row.low)}-{palette.figures(row.high)}"


def _word(verdict: str) -> Text:
    return Text(verdict, style="" if verdict in (AGREES, "") else "bold red")
