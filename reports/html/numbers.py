"""The table of numbers of a report: a row per number, a column per run, or per allocator with its seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvsim.reports.alike import one_traffic
from kvsim.reports.html.words import group_label, grouped
from kvsim.reports.palette import Summary, count, figures, number, seconds
from kvsim.reports.ranked import different_clocks, ranked
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import difference, interval
from kvsim.reports.seeds.words import with_spread
from kvsim.reports.terminal import (
    Row,
    goal_rows,
    held_back_by,
    percent_text,
    share_of,
    tokens_while_waiting,
    waste_of,
    waste_while_waiting,
)
from kvsim.reports.waiting import LIMITS

Values = list[float | None]


def numbers(runs: Sequence[Run]) -> dict[str, Any]:
    """The columns' names, and the rows: a name, a text per column, and which of them are the best.

    None is the best where the runs had different traffic or clocks, nor one that rejected what others served.
    """
    groups = grouped(runs)
    columns = [[run.summary for run in group] for group in groups]
    alike = one_traffic(runs) and not different_clocks(columns)
    fit = ranked(columns) if alike else [False] * len(columns)
    rows = []
    for row in ROWS:
        values = [[row.value(summary) for summary in summaries] for summaries in columns]
        if row.optional and not any(value for column in values for value in column):
            continue
        texts = [_text(row, column) for column in values]
        best = _best(row, values, texts, [alike] * len(columns) if row.of_all else fit)
        rows.append({"name": row.name, "texts": texts, "best": best})
    return {
        "columns": [group_label(group) for group in groups],
        "rows": rows,
        "ranked": sum(fit) > 1 or len(fit) == 1,
    }


def _text(row: Row, column: Values) -> str:
    return row.text(column[0]) if len(column) == 1 else with_spread(row.text, interval(column))


def _best(row: Row, columns: Sequence[Values], texts: Sequence[str], fit: Sequence[bool]) -> list[bool]:
    """Which of those that fit read like the best, or differ from it no more than seeds do; none if all do."""
    known = [column for column, may in zip(columns, fit, strict=True) if may and None not in column]
    means = [sum(filter(None, column)) / len(column) for column in known]
    if row.best is None or not means or sum(fit) < 2:
        return [False] * len(columns)
    top = row.best(means)
    best = known[means.index(top)]
    if len(best) == 1:
        found = [text == row.text(top) for text in texts]
    else:
        apart = [difference(column, best) for column in columns]
        found = [each is not None and each.holds(0.0) for each in apart]
    return [each and may and not all(found) for each, may in zip(found, fit, strict=True)]


def _of(*path: str) -> Callable[[Summary], float | None]:
    def read(summary: Summary) -> float | None:
        value: object = summary
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return number(value)

    return read


def _preemptions(summary: Summary) -> float:
    engine = summary["engine"]
    return sum(number(engine.get(f"preemptions_{how}")) or 0.0 for how in ("recompute", "swap"))


ROWS = (
    Row("Requests finished", _of("requests", "finished"), count, max, of_all=True),
    Row("Requests rejected", _of("requests", "rejected"), count, min, optional=True, of_all=True),
    Row("Requests per second", _of("throughput", "requests_per_s"), figures, max),
    Row("Output tokens per second", _of("throughput", "output_tokens_per_s"), figures, max),
    Row("Requests at once, mean", _of("engine", "mean_running"), figures),
    Row("Requests at once, most", _of("engine", "max_running"), count),
    Row("Time to first token, median", _of("latency", "ttft_s", "p50"), seconds, min),
    Row("Time to first token, 99th percentile", _of("latency", "ttft_s", "p99"), seconds, min),
    Row("Time per output token, median", _of("latency", "tpot_s", "p50"), seconds, min),
    Row("End to end, median", _of("latency", "e2e_s", "p50"), seconds, min),
    Row("KV memory that holds tokens", share_of("token"), percent_text, max),
    Row("Tokens while requests waited", tokens_while_waiting, percent_text, max, optional=True),
    Row("KV memory wasted", waste_of, percent_text, min),
    Row("Waste while requests waited", waste_while_waiting, percent_text, min, optional=True),
    Row("KV memory saved by sharing", _of("memory", "saved_by_sharing"), percent_text, max, optional=True),
    Row("Tokens found in the prefix cache", _of("engine", "prefix_hit_tokens"), count, max, optional=True),
    Row("Preemptions", _preemptions, count, min, optional=True),
    *(
        Row(f"Requests held back by {words}, time", held_back_by(limit), percent_text, optional=True)
        for limit, words in LIMITS.items()
    ),
    *(replace(row, name=f"{row.name[:1].upper()}{row.name[1:]}") for row in goal_rows()),
)
