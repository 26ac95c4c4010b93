"""What several seeds say in the terminal: the tables of one run with `mean ±half` for every number.

Half is that of the 95 % confidence interval, see intervals.py. A number that is the same with every seed
stands alone; where all are, one run is shown and one line says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.reports import clocks, palette
from kvsim.reports.palette import KINDS, Summary, count, figures, number, seconds
from kvsim.reports.ranked import why_rejected
from kvsim.reports.seeds.intervals import Interval, difference, equal, interval
from kvsim.reports.seeds.words import Shown, difference_lines, half_width, with_spread
from kvsim.reports.terminal import (
    LATENCIES,
    POINTS,
    Comparison,
    LedgerBar,
    Row,
    clock_lines,
    compare_table,
    first_lines,
    goal_lines,
    marked,
    notes_of_all,
    overload_lines,
    percent_text,
    ruled_table,
    run_table,
)
from kvsim.reports.waiting import held_back, overload_of_seeds


def seeds_table(runs: Sequence[Sequence[Summary]], compared: bool) -> RenderableType:
    """The report of several seeds; `runs` by seed, then by allocator."""
    if equal(runs):
        same = f"All {len(runs)} seeds give the same numbers: nothing here is drawn at random."
        one = compare_table(runs[0]) if compared else run_table(runs[0][0])
        return Group(one, "", Text(same, style="bold"))
    allocators = list(zip(*runs, strict=True))
    return _compare_table(allocators) if compared else _run_table(allocators[0])


def _compare_table(allocators: Sequence[Sequence[Summary]]) -> RenderableType:
    """Allocators side by side, what differs beyond the spread in words, cost and notes."""
    flat = [summary for each in allocators for summary in each]
    seeds = len(allocators[0])
    lines = difference_lines(allocators)
    parts: list[RenderableType] = first_lines(allocators)
    parts += [SeedComparison([each[0] for each in allocators], allocators), ""]
    if lines:
        told = f"Of {seeds} seeds, paired, with 95 % confidence:"
        points = Table.grid(padding=(0, 1, 0, 0))
        for line in lines:
            points.add_row("-", Text(line, style="bold"))
        parts += [Text(told, style="bold"), points, ""]
    parts += clock_lines(flat)
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in notes_of_all(flat)))


@dataclass(frozen=True)
class SeedComparison(Comparison):
    """The rows of a comparison, each number with its spread; `summaries` are those of the first seed."""

    allocators: Sequence[Sequence[Summary]]

    @property
    def systems(self) -> Sequence[Sequence[Summary]]:
        """Each with all of its seeds."""
        return self.allocators

    starred: ClassVar[str] = "best of its row, or no different from it beyond the seeds' spread"

    def occurs(self, row: Row) -> bool:
        """Whether a row holds anything but zeros."""
        return any(row.value(summary) for each in self.allocators for summary in each)

    def cells(self, row: Row) -> list[Text]:
        """A row's numbers; a star where nothing better can be told from them, unless that is everywhere."""
        columns = [[row.value(summary) for summary in each] for each in self.allocators]
        found = [interval(column) for column in columns]
        may_win = self.may_win(row)
        known = [each.mean for each, may in zip(found, may_win, strict=True) if each is not None and may]
        starred = [False] * len(columns)
        if row.best and len(known) > 1:
            best = next(
                column
                for column, each, may in zip(columns, found, may_win, strict=True)
                if each is not None and may and each.mean == row.best(known)
            )
            apart = [difference(column, best) for column in columns]
            starred = [
                each is not None and may and each.holds(0.0) for each, may in zip(apart, may_win, strict=True)
            ]
        return [
            marked(with_spread(row.text, each), star and not all(starred))
            for each, star in zip(found, starred, strict=True)
        ]


def _run_table(summaries: Sequence[Summary]) -> RenderableType:
    """One allocator with every seed: overload, headline, ledger bar, latencies, memory, engine, notes."""
    named = [{**s, "label": f"seed {place + 1} of {len(summaries)}"} for place, s in enumerate(summaries)]
    parts: list[RenderableType] = overload_lines([overload_of_seeds(summaries)])
    parts += [Text(_headline(summaries), style="bold"), *goal_lines(summaries), ""]
    percent = {kind: fmean(palette.whole_run(s)[kind] for s in summaries) for kind in KINDS}
    if any(percent.values()):
        parts += [LedgerBar(percent), ""]
    if all(summary["requests"]["finished"] for summary in summaries):
        parts += [_latency_table(summaries), "", _memory_table(summaries), ""]
    parts.append(_facts(summaries))
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in notes_of_all(named)))


def _told(summaries: Sequence[Summary], text: Shown, *path: str) -> str:
    """The number at this place of the summaries, with its spread."""
    return with_spread(text, _found(summaries, *path))


def _found(summaries: Iterable[Any], *path: str) -> Interval | None:
    values = []
    for summary in summaries:
        value = summary
        for name in path:
            value = None if value is None else value.get(name)
        values.append(number(value))
    return interval(values)


def _headline(summaries: Sequence[Summary]) -> str:
    """One sentence with the numbers of a run."""
    first = summaries[0]
    served = f"{first['label']} served {_told(summaries, count, 'requests', 'finished')} requests"
    if any(s["requests"]["finished"] != s["requests"]["submitted"] for s in summaries):
        served += f" of {_told(summaries, count, 'requests', 'submitted')}{why_rejected(summaries)}"
    of = f"(mean ±95 % confidence of {len(summaries)} seeds)"
    if not any(summary["requests"]["finished"] for summary in summaries):
        return f"{served} {of}."
    return (
        f"{served} in {_told(summaries, figures, 'duration_s')} s: "
        f"{_told(summaries, figures, 'throughput', 'requests_per_s')} requests/s, "
        f"{_told(summaries, figures, 'throughput', 'output_tokens_per_s')} output tokens/s; "
        f"{memory_of_seeds(summaries)} {of}."
    )


def memory_of_seeds(summaries: Sequence[Summary]) -> str:
    """Tokens and waste in the KV memory, with their spread: of the whole run, and while requests waited."""
    said = _tokens_and_waste(list(map(palette.whole_run, summaries)), " tokens,", " waste")
    waiting = [percent for percent in map(palette.while_waiting, summaries) if percent is not None]
    said = f"KV memory {said} over the whole run"
    if len(waiting) < len(summaries):
        return said
    return f"{said}, {_tokens_and_waste(waiting, ' and', '')} while requests waited"


def _tokens_and_waste(percents: Sequence[Mapping[str, float]], between: str, after: str) -> str:
    """`81.8 ±0.2 % tokens, 1.3 ±0.1 % waste`."""
    waste = interval([palette.waste(percent) for percent in percents])
    tokens = interval([percent["token"] for percent in percents])
    return f"{with_spread(percent_text, tokens)}{between} {with_spread(percent_text, waste)}{after}"


def _latency_table(summaries: Sequence[Summary]) -> Table:
    """A row per latency, each in the unit that suits its largest number; the spread below the mean."""
    table = ruled_table("latency, mean ±95 %")
    for point in POINTS:
        table.add_column(point, justify="right", no_wrap=True)
    for name, words in LATENCIES.items():
        found = [_found(summaries, "latency", name, point) for point in POINTS]
        short = max((each.mean for each in found if each is not None), default=1.0) < 1
        factor, unit = (1e3, "ms") if short else (1.0, "s")
        cells = [Text(figures(None if each is None else each.mean * factor)) for each in found]
        for cell, each in zip(cells, found, strict=True):
            if each is not None and not each.fixed:
                cell.append(f"\n±{half_width(each.half * factor, cell.plain)}", "dim")
        table.add_row(f"{words} ({unit})", *cells)
    return table


def _memory_table(summaries: Sequence[Summary]) -> Table:
    table = ruled_table(f"KV memory, {_told(summaries, count, 'memory', 'capacity_tokens')} tokens")
    parts = {"average": "whole run"}
    if _found(summaries, "memory", "saturated", "token"):
        shares = interval([100 * (number(s["memory"].get("saturated_share")) or 0) for s in summaries])
        parts["saturated"] = f"requests waited ({with_spread(lambda v: f'{v:.0f} %', shares)})"
    for heading in parts.values():
        table.add_column(heading, justify="right")
    for kind in palette.kinds_of(summaries):
        cells = [_told(summaries, percent_text, "memory", part, kind) for part in parts]
        table.add_row(Text(f"{kind}: {KINDS[kind].meaning}"), *cells)
    return table


def _facts(summaries: Sequence[Summary]) -> Table:
    """What the engine counted, and what the runs cost: names and values without a frame."""
    engine = summaries[0]["engine"]
    told = {"steps", "mean_running", "mean_running_saturated", "max_running"}
    counted = []
    names = {"engine": engine, "memory": ("peak_used_tokens", "external_fragmentation_refusals")}
    for section, those in names.items():
        for name in those:
            found = None if name in told else _found(summaries, section, name)
            if found is not None and found.mean:
                counted.append(f"{name.replace('_', ' ')} {with_spread(count, found)}")
    saved = _found(summaries, "memory", "saved_by_sharing")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    steps, at_once, most = (
        _told(summaries, text, "engine", name)
        for text, name in ((count, "steps"), (figures, "mean_running"), (count, "max_running"))
    )
    text = f"{steps} steps, {at_once} requests at once on average, {most} at most"
    table.add_row("engine", Text(f"{engine['scheduler']} on {engine['allocator']}: {text}"))
    table.add_row("counted", Text("; ".join(counted) or "no preemption"))
    if held_back(summaries):
        table.add_row("held back", Text(f"by {held_back(summaries)}"))
    if saved is not None and saved.mean:
        table.add_row("shared", f"saves {with_spread(percent_text, saved)} of the memory on average")
    costs = [summary["cost"] for summary in summaries]
    sources = "; ".join(dict.fromkeys(str(cost["source"]) for cost in costs))
    table.add_row("clock", Text(f"{sources}\n{clocks.beside(costs)}"))
    cpu_s = sum(number(summary["simulation"]["cpu_s"]) or 0.0 for summary in summaries)
    table.add_row("simulated", f"{len(summaries)} times in {seconds(cpu_s)} of CPU")
    return table
