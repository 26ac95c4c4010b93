"""What a reproduction says in the terminal: a table per figure, then all verdicts."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports import palette
from reports.papers.checks import AGREES, Judged, Row


def figure_tables(results: Sequence[Judged]) -> RenderableType:
    """Every figure: its numbers, published beside simulated, and its checks."""
    parts: list[RenderableType] = []
    for judged in results:
        figure = judged.figure
        parts += [
            Text(f"Figure {figure.number}: {figure.title} ({figure.settings['unit']})", style="bold"),
            _numbers(judged),
            _checks(judged),
            *(Text(f"{who}: {n:,} requests rejected", style="yellow") for who, n in judged.rejected.items()),
            "",
        ]
    agreeing = [judged.figure.number for judged in results if judged.verdict == AGREES]
    missing = [judged.figure.number for judged in results if judged.verdict != AGREES]
    told = [
        f"{word}: {', '.join(numbers)}"
        for word, numbers in (("agree", agreeing), ("miss", missing))
        if numbers
    ]
    return Group(*parts, Text(f"Figures that {'; that '.join(told)}", style="bold"))


def _numbers(judged: Judged) -> Table:
    ranges = any(row.low is not None for row in judged.rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("published", "simulated", "off", *(["range"] if ranges else []), "band", ""):
        table.add_column(name, justify="right", no_wrap=True)
    panel = None
    for row in judged.rows:
        if row.panel != panel and len(judged.figure.panels) > 1:
            table.add_row(Text(row.panel, style="bold"))
        panel = row.panel
        far = "" if row.percent is None else f"{row.percent:+.1f} %"
        cells = [palette.figures(row.published), palette.figures(row.simulated), far]
        if ranges:
            cells.append(_range(row))
        table.add_row(f"{row.system}, {row.name}", *cells, row.band, _word(row.verdict))
    return table


def _checks(judged: Judged) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in judged.checks:
        note = "" if check.decides else " (decides nothing)"
        table.add_row(_word(check.verdict), f"{check.what}: {check.detail}{note}")
    return table


def _range(row: Row) -> str:
    if row.low is None:
        return ""
    return f"{palette.figures(row.low)}-{palette.figures(row.high)}"


def _word(verdict: str) -> Text:
    return Text(verdict, style="" if verdict == AGREES else "bold red")
