"""Systems side by side in the terminal: a row per number, or a row per system if there are many.

A system is a list of summaries, one per seed. A star marks the best system and all that print the same number
or differ from it by no more than seed noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from kvsim.reports import quantities as q
from kvsim.reports.fitting import ruled_table
from kvsim.reports.links import links_by_kind
from kvsim.reports.quantities import Quantity
from kvsim.reports.ranked import System, different_clocks, ranked, schedulers
from kvsim.reports.seeds.intervals import interval
from kvsim.reports.shown import occurs, shown, stars

SECTIONS: tuple[tuple[Quantity, ...], ...] = (
    (q.FINISHED, q.REQUESTS_PER_S, q.OUTPUT_TOKENS_PER_S, q.MEAN_RUNNING, q.MAX_RUNNING),
    (q.TOKENS, q.TOKENS_WAITING, q.HELD, q.CACHED, q.IDLE, q.WASTE, *q.WASTE_BY_KIND, q.WASTE_WAITING),
    (q.TTFT_P50, q.TTFT_P99, q.NORMALIZED, q.PREEMPTIONS, *q.HELD_BACK, q.SHARING, q.PREFIX_HITS),
    q.TIER,
    q.GOALS,
)
"""The rows of a comparison."""

COLUMNS: dict[str, Quantity] = {
    "req/s": q.REQUESTS_PER_S,
    "at once": q.MEAN_RUNNING,
    "tokens": q.TOKENS,
    "waste": q.WASTE,
    "TTFT p50": q.TTFT_P50,
    "preempted": q.PREEMPTIONS,
}
"""The columns of a ranking."""


@dataclass(frozen=True)
class Comparison:
    """Rows of numbers, a column per system, split into as many tables as the width requires."""

    systems: Sequence[System]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The tables; a star marks the best of all systems, not just of one table."""
        sections = [
            [(row, self.cells(row)) for row in section if occurs(row, self.systems)]
            for section in (*SECTIONS, links_by_kind(self.systems))
        ]
        names = schedulers(self.systems)
        for chosen in self._side_by_side([row for section in sections for row in section], options.max_width):
            table = ruled_table("")
            for seeds in self.systems[chosen]:
                table.add_column(Text(_label(seeds)), justify="right", overflow="fold")
            if names:
                table.add_row("scheduler", *(marked(name, best=False) for name in names[chosen]))
            for place, section in enumerate(filter(None, sections)):
                if place:
                    table.add_section()
                for row, cells in section:
                    table.add_row(row.name, *cells[chosen])
            if chosen.start:
                yield Text("")
            yield table
        several = any(len(seeds) > 1 for seeds in self.systems)
        beyond = ", or not distinguishable from it given seed noise" if several else ""
        yield Text(f"* best of its row{beyond}; memory: means of the whole run", style="dim")

    def cells(self, row: Quantity) -> list[Text]:
        """A row's numbers. Only ranked systems can be best; for finished requests, all on one clock can."""
        alike = [not different_clocks(self.systems)] * len(self.systems)
        starred = stars(row, self.systems, alike if row.of_all else ranked(self.systems))
        return [marked(shown(row, seeds), star) for seeds, star in zip(self.systems, starred, strict=True)]

    def _side_by_side(self, rows: Sequence[tuple[Quantity, Sequence[Text]]], width: int) -> Iterator[slice]:
        """Split the systems into tables: as many as fit the width, at least one."""
        between = 3  # spaces between columns
        names = max(len(row.name) for row, _ in rows)
        start, used = 0, names
        for index, seeds in enumerate(self.systems):
            wide = between + max(len(_label(seeds)), *(len(cells[index]) for _, cells in rows))
            if used + wide > width and index > start:
                yield slice(start, index)
                start, used = index, names
            used += wide
        yield slice(start, len(self.systems))


@dataclass(frozen=True)
class Ranking:
    """Many systems, a row each, sorted by requests finished per second."""

    systems: Sequence[System]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One table of numbers; a star marks the best of each column."""
        rates = [interval([q.REQUESTS_PER_S.read(summary) for summary in seeds]) for seeds in self.systems]
        speeds = [0.0 if rate is None else rate.mean for rate in rates]
        fit = ranked(self.systems)
        places = sorted(range(len(fit)), key=lambda place: (not fit[place], -speeds[place]))
        ordered = [self.systems[place] for place in places]
        table, cells = ruled_table("", *COLUMNS), Comparison(ordered).cells
        by_column = [cells(column) for column in COLUMNS.values()]
        for place, seeds in enumerate(ordered):
            table.add_row(Text(_label(seeds)), *(column[place] for column in by_column))
        yield table
        yield Text("* best of its column; memory: means of the whole run", style="dim")


def marked(text: str, best: bool) -> Text:
    """A cell of a comparison, with a star if it is the best."""
    return Text(f"{text} *", style="bold green") if best else Text(f"{text}  ")


def _label(seeds: System) -> str:
    return str(seeds[0]["label"])
