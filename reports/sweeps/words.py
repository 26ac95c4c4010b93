"""A sweep in the terminal: the number of runs, and one line per system; at most 80 columns.

For a system with several loads the table shows the results at the largest load at which every seed meets the
SLO, or else at the load of highest throughput, as means over the seeds. `>= 16`: even the highest load tried
meets it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.reports.clocks import clock_name
from kvsim.reports.fitting import ruled_table
from kvsim.reports.palette import figures, seconds
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.seeds.words import with_spread
from kvsim.reports.sweeps.headline import (
    SPEED,
    at_the_edge,
    costs_of,
    different_clocks,
    foot,
    headline,
    largest_within,
    rank,
    ranked,
    served_share,
)
from kvsim.reports.sweeps.journal import Journal
from kvsim.reports.sweeps.systems import System, load_of, systems, tokens_per_gpu
from kvsim.reports.sweeps.table import FAILED, IMPOSSIBLE, Row
from kvsim.reports.sweeps.tier_gain import curves, gains
from kvsim.sim.counted import several
from kvsim.sim.record.slo import Slo

MOST_LINES = 60


def _gains(found: Sequence[System]) -> list[RenderableType]:
    """The gain from a tier below the memory, if sizes are compared: a line per system."""
    told = gains(curves(found))
    return [*(Text(f"{each}.") for each in told[:MOST_LINES]), ""] if told else []


def plan_words(
    runs: Sequence[Any], keys: Mapping[str, Any], journal: Journal | None, left_s: float, jobs: int
) -> str:
    """The output of a dry run: the number of runs, how many are left, and the estimated time."""
    done = sum(key in journal.done for key in keys) if journal is not None else 0
    impossible = sum(bool(run.reason) for run in runs)
    said = [several(len(runs), "run")]
    if impossible:
        said.append(f"{impossible:,} impossible")
    twice = len(runs) - impossible - len(keys)
    if twice:
        said.append(f"{twice:,} equal to others")
    if done:
        said.append(f"{done:,} done already")
    todo, with_jobs = several(len(keys) - done, "run"), several(jobs, "process")
    return f"{', '.join(said)}: {todo} to do, about {duration(left_s)} with {with_jobs}"


def duration(left_s: float) -> str:
    """`8 s`, `3 min`, `2.5 h`."""
    if left_s < 90:
        return f"{max(left_s, 1):.0f} s"
    return f"{left_s / 60:.0f} min" if left_s < 5400 else f"{left_s / 3600:.1f} h"


def sweep_words(rows: Sequence[Row], names: Sequence[str], slo: Slo | None) -> RenderableType:
    """The outcome: a line per system, the best first if there is an SLO; failures below."""
    load = load_of(names)
    found = [system for system in systems(rows, names) if system.points]
    parts: list[RenderableType] = [Text(headline(found, load, slo), style="bold"), ""] if found else []
    if found:
        parts += [_table(found, load, slo), "", *_gains(found), Text(foot(found), style="dim")]
    for status, words in ((IMPOSSIBLE, "impossible"), (FAILED, "failed")):
        reasons = [str(row["reason"]) for row in rows if row["status"] == status]
        for reason in dict.fromkeys(reasons):
            many = reasons.count(reason)
            parts.append(Text(f"{several(many, 'run')} {words}: {reason}", style="yellow"))
    return Group(*parts)


def _table(found: Sequence[System], load: str | None, slo: Slo | None) -> Table:
    headings = ["tokens/s/GPU", "TTFT p99", "TPOT p99"]
    headings = ["requests/s", *headings] if slo is None else [*headings, "attained"]
    if load is not None:
        headings.insert(0, "most in SLO" if slo else load.replace("_", " "))
    rejecting = any(served_share(system) < 1 for system in found)
    table = ruled_table("", *headings, *(["served"] * rejecting))
    ordered, apart = list(found), different_clocks(found)
    if slo is not None and load is not None and not apart:
        fit = {id(system) for system in ranked(found)}
        ordered.sort(key=lambda system: (id(system) in fit, *rank(system)), reverse=True)
    for system in ordered[:MOST_LINES]:
        clock = f" ({', '.join(dict.fromkeys(map(clock_name, costs_of(system))))})" if apart else ""
        served = [f"{100 * served_share(system):.4g} %"] * rejecting
        table.add_row(Text(f"{system.name}{clock}", overflow="fold"), *_cells(system, load, slo), *served)
    if len(ordered) > MOST_LINES:
        table.add_row(f"... and {len(ordered) - MOST_LINES} more, see table.csv")
    table.columns[0].no_wrap = False
    return table


def _cells(system: System, load: str | None, slo: Slo | None) -> list[str]:
    within = largest_within(system) if slo is not None else None
    served = dict(system.numbers(SPEED))
    at = within if within is not None else max(served, key=lambda each: served[each].mean, default=0.0)
    cells = []
    if load is not None:
        edge = ">= " if within is not None and at_the_edge(system) else ""
        cells.append("none" if slo is not None and within is None else f"{edge}{at:g}")
    tokens = dict(system.values(tokens_per_gpu))
    latencies = [dict(system.numbers(f"latency.{name}.p99")) for name in ("ttft_s", "tpot_s")]
    cells += [] if slo is not None else [with_spread(figures, served.get(at))]
    cells.append(with_spread(figures, tokens.get(at)))
    cells += [_said(seconds, each.get(at)) for each in latencies]
    if slo is not None:
        attained = dict(system.numbers("slo.attained_share")).get(at)
        cells.append("-" if attained is None else f"{100 * attained.mean:.1f} %")
    return cells


def _said(words: Callable[[float | None], str], found: Interval | None) -> str:
    return words(None if found is None else found.mean)
