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

from kvsim.reports.clocks import Cost, clock_name, cost_in, differ, told
from kvsim.reports.comparison import ruled_table
from kvsim.reports.palette import everybody, figures, number, seconds
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.sweeps.journal import Journal
from kvsim.reports.sweeps.systems import System, load_of, systems, tokens_per_gpu
from kvsim.reports.sweeps.table import FAILED, IMPOSSIBLE
from kvsim.reports.sweeps.tier_gain import curves, gains
from kvsim.sim.record.slo import Slo

Row = Mapping[str, Any]
MOST_LINES = 60
MOST_NAMED = 3
"""A headline names at most this many systems for their rejections."""
_LOAD_UNITS = {"request_rate": "requests/s", "clients": "clients", "rate_scale": "x the trace's speed"}


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
    said = [f"{_runs(len(runs))}"]
    if impossible:
        said.append(f"{impossible:,} impossible")
    twice = len(runs) - impossible - len(keys)
    if twice:
        said.append(f"{twice:,} equal to others")
    if done:
        said.append(f"{done:,} done already")
    return f"{', '.join(said)}: {_runs(len(keys) - done)} to do, about {duration(left_s)} with {_jobs(jobs)}"


def _runs(many: int) -> str:
    return f"{many:,} run{'s' * (many != 1)}"


def _jobs(many: int) -> str:
    return f"{many:,} process{'es' * (many != 1)}"


def duration(left_s: float) -> str:
    """`8 s`, `3 min`, `2.5 h`."""
    if left_s < 90:
        return f"{max(left_s, 1):.0f} s"
    return f"{left_s / 60:.0f} min" if left_s < 5400 else f"{left_s / 3600:.1f} h"


def sweep_words(rows: Sequence[Row], names: Sequence[str], slo: Slo | None) -> RenderableType:
    """The outcome: a line per system, the best first if there is an SLO; failures below."""
    varying = [name for name in names if name != "seed"]
    load = load_of(varying)
    found = [system for system in systems(rows, varying) if system.points]
    parts: list[RenderableType] = [Text(headline(found, load, slo), style="bold"), ""] if found else []
    if found:
        parts += [_table(found, load, slo), "", *_gains(found), Text(foot(found), style="dim")]
    for status, words in ((IMPOSSIBLE, "impossible"), (FAILED, "failed")):
        reasons = [str(row["reason"]) for row in rows if row["status"] == status]
        for reason in dict.fromkeys(reasons):
            many = reasons.count(reason)
            parts.append(Text(f"{_runs(many)} {words}: {reason}", style="yellow"))
    return Group(*parts, "")


def headline(found: Sequence[System], load: str | None, slo: Slo | None) -> str:
    """The system with the highest load within the SLO, or the highest throughput; empty if clocks differ."""
    return different_clocks(found) or f"{first_words(found)}{_best(ranked(found), found, load, slo)}"


def different_clocks(found: Sequence[System]) -> str:
    """A warning that clocks differ, and how to fix it; "" if systems share one."""
    return differ((system.name, cost) for system in found for cost in _costs(system))


def ranked(found: Sequence[System]) -> list[System]:
    """The systems that rejected the smallest share of their requests."""
    most = max(map(_served_share, found), default=1.0)
    return [system for system in found if _served_share(system) == most]


def first_words(found: Sequence[System]) -> str:
    """The beginning of a headline: rejected requests; usually ""."""
    fewer = [system for system in found if _served_share(system) < 1]
    if not fewer:
        return ""
    if len(found) > 1 and len({_counts(system) for system in found}) == 1:
        return f"Requests served: {_served_words(found[0])} each. "
    apart = "" if len(ranked(found)) == len(found) else "; not ranked with the others"
    if by_case := _served_by_case(found):
        return f"Requests served: {', '.join(by_case)}{apart}. "
    named = [f"{_called(system, found)}{_served_words(system)}" for system in fewer[:MOST_NAMED]]
    more = [f"{len(fewer) - MOST_NAMED:,} more systems not all"] if len(fewer) > MOST_NAMED else []
    return f"Requests served: {', '.join([*named, *more])}{apart}. "


def _served_by_case(found: Sequence[System]) -> list[str]:
    """What each case served, if not everything; empty unless all systems of a case serve as many."""
    cases: dict[str, list[System]] = {}
    for system in found:
        cases.setdefault(str(system.settings.get("case")), []).append(system)
    if len(cases) < 2 or any(len({_counts(system) for system in own}) > 1 for own in cases.values()):
        return []
    return [f"{name} {_served_words(own[0])}" for name, own in cases.items() if _served_share(own[0]) < 1]


def foot(found: Sequence[System]) -> str:
    """The clocks of all rows, the extrapolated share of their time, and their errors."""
    return f"clock: {told([cost for system in found for cost in _costs(system)])}"


def _costs(system: System) -> list[Cost]:
    return [cost_in(row) for rows in system.points.values() for row in rows]


def _counts(system: System) -> tuple[float, float]:
    rows = [row for rows in system.points.values() for row in rows]
    finished, submitted = (
        sum(number(row.get(f"requests.{name}")) or 0.0 for row in rows) for name in ("finished", "submitted")
    )
    return finished, submitted


def _served_share(system: System) -> float:
    finished, submitted = _counts(system)
    return finished / submitted if submitted else 1.0


def _served_words(system: System) -> str:
    finished, submitted = _counts(system)
    return f"{finished:,.0f} of {submitted:,.0f}"


def _best(fit: Sequence[System], found: Sequence[System], load: str | None, slo: Slo | None) -> str:
    if slo is None or load is None:
        return _fastest(fit, found)
    within = [system for system in fit if largest_within(system) is not None]
    if not within:
        return f"No system meets {slo} at any load of the sweep"
    best = max(within, key=rank)
    at = largest_within(best)
    most = f"{at:g} {_LOAD_UNITS[load]}"
    met = f"; {len(within)} of {len(found)} systems meet it" if len(found) > 1 else ""
    most = f"at least {most}, the highest load tried" if at_the_edge(best) else most
    alike = [each for each in within if largest_within(each) == at and each is not best]
    if not alike:
        return f"{_highest(best, found, 'sustains', 'load')} within {slo}: {most}{met}"
    who = f"{best.name} and {_others(len(alike))} sustain the highest load"
    return f"{who} within {slo}: {most}; {_tie(best, alike, at)}{met}"


def _fastest(fit: Sequence[System], found: Sequence[System]) -> str:
    """The highest throughput of the ranked systems, and which have it."""
    speeds = {each.name: _most(each, "throughput.requests_per_s") or 0.0 for each in fit}
    best = max(fit, key=lambda system: speeds[system.name])
    if not speeds[best.name]:
        return "No request was served"
    most = figures(speeds[best.name])
    others = [each for each in speeds if figures(speeds[each]) == most and each != best.name]
    if len(others) + 1 == len(found) > 1:
        return f"{everybody([*speeds])} have the same throughput: {most} requests/s"
    if others:
        named = others[0] if len(others) == 1 else _others(len(others))
        return f"{best.name} and {named} have the highest throughput: {most} requests/s"
    return f"{_highest(best, found, 'has', 'throughput')}: {most} requests/s"


def _tie(best: System, alike: Sequence[System], at: float | None) -> str:
    """The systems with the highest throughput among those with the same answer, as displayed."""
    made = figures(_made(best, at))
    level = sum(figures(_made(each, at)) == made for each in alike)
    if level == len(alike):
        return f"each with {made} tokens/s/GPU"
    who = f"{best.name} and {_others(level)} have" if level else f"{best.name} has"
    return f"{who} the highest throughput of these, {made} tokens/s/GPU"


def _highest(best: System, found: Sequence[System], verb: str, what: str) -> str:
    """`paged has the highest throughput`; for a single system `Highest throughput`."""
    return f"{best.name} {verb} the highest {what}" if len(found) > 1 else f"Highest {what}"


def _others(many: int) -> str:
    return f"{many:,} other{'s' * (many != 1)}"


def _called(system: System, found: Sequence[System]) -> str:
    return f"{system.name} " if len(found) > 1 else ""


def rank(system: System) -> tuple[float, float]:
    """Sort key: load within the SLO, then output tokens per second per GPU there."""
    at = largest_within(system)
    return at or 0.0, _made(system, at) or 0.0


def _made(system: System, at: float | None) -> float | None:
    """Output tokens per second per GPU at a load; the maximum if none is given."""
    made = {load: value.mean for load, value in system.values(tokens_per_gpu)}
    return max(made.values(), default=None) if at is None else made.get(at)


def at_the_edge(system: System) -> bool:
    """Whether the SLO is met at the highest load tried, so that the answer may be higher."""
    return largest_within(system) == max(system.points, default=None)


def largest_within(system: System) -> float | None:
    """The largest load up to which every seed meets the SLO; None if there is none."""
    largest = None
    for load, met in system.met().items():
        if not met:
            break
        largest = load
    return largest


def _most(system: System, column: str) -> float | None:
    return max((each.mean for _, each in system.numbers(column)), default=None)


def _table(found: Sequence[System], load: str | None, slo: Slo | None) -> Table:
    table = ruled_table("")
    headings = ["tokens/s/GPU", "TTFT p99", "TPOT p99"]
    headings = ["requests/s", *headings] if slo is None else [*headings, "attained"]
    if load is not None:
        headings.insert(0, "most in SLO" if slo else load.replace("_", " "))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    ordered, apart = list(found), different_clocks(found)
    if slo is not None and load is not None and not apart:
        fit = {id(system) for system in ranked(found)}
        ordered.sort(key=lambda system: (id(system) in fit, *rank(system)), reverse=True)
    rejecting = any(_served_share(system) < 1 for system in found)
    if rejecting:
        table.add_column("served", justify="right", no_wrap=True)
    for system in ordered[:MOST_LINES]:
        clock = f" ({', '.join(dict.fromkeys(map(clock_name, _costs(system))))})" if apart else ""
        served = [f"{100 * _served_share(system):.4g} %"] * rejecting
        table.add_row(Text(f"{system.name}{clock}", overflow="fold"), *_cells(system, load, slo), *served)
    if len(ordered) > MOST_LINES:
        table.add_row(f"... and {len(ordered) - MOST_LINES} more, see table.csv")
    table.columns[0].no_wrap = False
    return table


def _cells(system: System, load: str | None, slo: Slo | None) -> list[str]:
    within = largest_within(system) if slo is not None else None
    served = dict(system.numbers("throughput.requests_per_s"))
    at = within if within is not None else max(served, key=lambda each: served[each].mean, default=0.0)
    cells = []
    if load is not None:
        edge = ">= " if within is not None and at_the_edge(system) else ""
        cells.append("none" if slo is not None and within is None else f"{edge}{at:g}")
    tokens = dict(system.values(tokens_per_gpu))
    latencies = [dict(system.numbers(f"latency.{name}.p99")) for name in ("ttft_s", "tpot_s")]
    cells += [] if slo is not None else [_said(figures, served.get(at))]
    cells.append(_said(figures, tokens.get(at)))
    cells += [_said(seconds, each.get(at)) for each in latencies]
    if slo is not None:
        attained = dict(system.numbers("slo.attained_share")).get(at)
        cells.append("-" if attained is None else f"{100 * attained.mean:.1f} %")
    return cells


def _said(words: Callable[[float | None], str], found: Interval | None) -> str:
    return words(None if found is None else found.mean)
