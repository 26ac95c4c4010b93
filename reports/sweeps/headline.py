"""The headline of a sweep: the highest load within the SLO, or the highest throughput, and who has it.

Systems that rejected more requests than others are not ranked with them, nor are any on different clocks.
With several seeds, systems whose ratio may be 1 are said to be not distinguishable.
"""

from collections.abc import Sequence

from kvsim.reports.clocks import Cost, cost_in, differ, told
from kvsim.reports.grouping import by_key
from kvsim.reports.palette import everybody, figures, number, together
from kvsim.reports.seeds.intervals import Interval, ratio
from kvsim.reports.seeds.words import NO_DIFFERENCE, with_spread
from kvsim.reports.sweeps.systems import System, tokens_per_gpu
from kvsim.sim.record.slo import Slo

MOST_NAMED = 3
"""Most systems that a headline names for their rejections."""
_LOAD_UNITS = {"request_rate": "requests/s", "clients": "clients", "rate_scale": "x the trace's speed"}
SPEED = "throughput.requests_per_s"


def headline(found: Sequence[System], load: str | None, slo: Slo | None) -> str:
    """The system with the highest load within the SLO, or throughput; none if clocks differ."""
    said = different_clocks(found) or none_served(found)
    return said or f"{first_words(found)}{_best(ranked(found), found, load, slo)}"


def none_served(found: Sequence[System]) -> str:
    """`None of 48 requests was served`; "" if one was, or none was sent."""
    finished, submitted = map(sum, zip(*map(_counts, found), strict=True))
    return f"None of {submitted:,.0f} requests was served" if submitted and not finished else ""


def different_clocks(found: Sequence[System]) -> str:
    """A warning that clocks differ, and the remedy; "" if systems share one."""
    return differ((system.name, cost) for system in found for cost in costs_of(system))


def ranked(found: Sequence[System]) -> list[System]:
    """The systems that rejected the smallest share of their requests."""
    most = max(map(served_share, found), default=1.0)
    return [system for system in found if served_share(system) == most]


def first_words(found: Sequence[System], *, nothing: bool = True) -> str:
    """The beginning of a headline: the rejections of systems; usually "".

    Without `nothing`, systems that served no request are left out: the headline names them.
    """
    if none_served(found):  # the headline says it
        return ""
    told = served_in_words([system for system in found if nothing or served_share(system)])
    apart = "" if len(ranked(found)) == len(found) else "; not ranked with the others"
    return f"{told}{apart}. " if told else ""


def served_in_words(found: Sequence[System]) -> str:
    """`Requests served: slab 14 of 200`, of the systems that rejected some; "" if none did."""
    fewer = [system for system in found if served_share(system) < 1]
    if not fewer:
        return ""
    if len(found) > 1 and len({_counts(system) for system in found}) == 1:
        return f"Requests served: {_served_words(found[0])} each"
    if by_case := _served_by_case(found):
        return f"Requests served: {', '.join(by_case)}"
    named = [
        f"{f'{system.name} ' if len(found) > 1 else ''}{_served_words(system)}"
        for system in fewer[:MOST_NAMED]
    ]
    more = [f"{len(fewer) - MOST_NAMED:,} more systems not all"] if len(fewer) > MOST_NAMED else []
    return f"Requests served: {', '.join([*named, *more])}"


def served_alike(found: Sequence[System]) -> bool:
    """Whether all systems of a case serve as many of its requests."""
    cases = {system.settings.get("case") for system in found}
    return len(cases) == len({(system.settings.get("case"), _counts(system)) for system in found})


def _served_by_case(found: Sequence[System]) -> list[str]:
    """What each case served, if not everything; empty unless all systems of a case serve as many."""
    cases = by_key(found, lambda system: str(system.settings.get("case")))
    if len(cases) < 2 or any(len({_counts(system) for system in own}) > 1 for own in cases.values()):
        return []
    return [f"{name} {_served_words(own[0])}" for name, own in cases.items() if served_share(own[0]) < 1]


def foot(found: Sequence[System]) -> str:
    """The clocks of all rows, the extrapolated share of their time, and their trust."""
    return f"clock: {told([cost for system in found for cost in costs_of(system)])}"


def costs_of(system: System) -> list[Cost]:
    """The clocks of its rows."""
    return [cost_in(row) for rows in system.points.values() for row in rows]


def _counts(system: System) -> tuple[float, float]:
    """Requests finished and submitted, in all rows."""
    rows = [row for rows in system.points.values() for row in rows]
    finished, submitted = (
        sum(number(row.get(f"requests.{name}")) or 0.0 for row in rows) for name in ("finished", "submitted")
    )
    return finished, submitted


def served_share(system: System) -> float:
    """The share of its requests that finished, over all rows; 1 if none was submitted."""
    finished, submitted = _counts(system)
    return finished / submitted if submitted else 1.0


def _served_words(system: System) -> str:
    finished, submitted = _counts(system)
    return f"{finished:,.0f} of {submitted:,.0f}"


def _best(fit: Sequence[System], found: Sequence[System], load: str | None, slo: Slo | None) -> str:
    """The best of the ranked systems, among all that were found."""
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
    names = [best.name, *(each.name for each in alike)]
    if len(names) == len(found):
        amount, edge, tried = most.partition(", ")
        return f"{_both(names)} sustain {amount} within {slo}{edge}{tried}; {_tie(best, alike, at)}"
    return f"{together(names)} sustain the highest load within {slo}: {most}; {_tie(best, alike, at)}{met}"


def _fastest(fit: Sequence[System], found: Sequence[System]) -> str:
    """The highest throughput of the ranked systems, and who has it; with seeds, whom noise may hide."""
    speeds = {each.name: _most(each, SPEED) for each in fit}
    best = max(fit, key=lambda system: _mean(speeds[system.name]))
    if not _mean(speeds[best.name]):
        return "No request was served"
    most = f"{with_spread(figures, speeds[best.name])} requests/s"
    same = figures(_mean(speeds[best.name]))
    level = [each for each in fit if figures(_mean(speeds[each.name])) == same and each is not best]
    if len(level) + 1 == len(found) > 1:
        return f"{everybody([*speeds])} have the same throughput: {most}"
    others = [each for each in fit if each is not best and each not in level]
    unsure = [each for each in others if in_noise(_by_seed(best), _by_seed(each))]
    if len(level) + len(unsure) + 1 == len(found) > 1:
        who = together([each.name for each in fit])
        return f"Throughputs of {who} are {NO_DIFFERENCE}; {best.name} has the highest mean, {most}"
    noise = f"; {NO_DIFFERENCE}: {together([each.name for each in unsure])}" if unsure else ""
    if level:
        names = [best.name, *(each.name for each in level)]
        return f"{together(names)} have the highest throughput: {most}{noise}"
    return f"{_highest(best, found, 'has', 'throughput')}: {most}{noise}"


def in_noise(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    """Whether the ratio of numbers by seed may be 1; never with a single seed, or with unlike seeds."""
    if len(one) < 2 or len(one) != len(other):
        return False
    apart = ratio(one, other)
    return apart is not None and apart.holds(1.0)


def _by_seed(system: System) -> list[float | None]:
    """The throughput of each seed at the load where its mean is highest."""
    means = {load: value.mean for load, value in system.numbers(SPEED)}
    rows = system.points[max(means, key=lambda load: means[load])] if means else ()
    return [number(row.get(SPEED)) for row in rows]


def _mean(found: Interval | None) -> float:
    return found.mean if found else 0.0


def _both(names: Sequence[str]) -> str:
    """`paged and buddy both`, `paged, buddy and slab all`, `All 12 systems`."""
    if len(names) > 3:
        return f"All {len(names):,} systems"
    return f"{together(names)} {'both' if len(names) == 2 else 'all'}"


def _tie(best: System, alike: Sequence[System], at: float | None) -> str:
    """The systems with the highest throughput among those with the same answer, as displayed."""
    made = figures(_made(best, at))
    level = [each.name for each in alike if figures(_made(each, at)) == made]
    tokens = {each.name: [tokens_per_gpu(row) for row in each.points.get(at or 0.0, ())] for each in alike}
    own = [tokens_per_gpu(row) for row in best.points.get(at or 0.0, ())]
    unsure = [name for name, each in tokens.items() if name not in level and in_noise(own, each)]
    if len(level) == len(alike):
        return f"each produces {made} tokens/s per GPU"
    if len(level) + len(unsure) == len(alike):
        return f"their tokens/s per GPU are {NO_DIFFERENCE}"
    who = f"{together([best.name, *level])} {'have' if level else 'has'}"
    noise = f"; {NO_DIFFERENCE}: {together(unsure)}" if unsure else ""
    return f"{who} the highest throughput of these, {made} tokens/s per GPU{noise}"


def _highest(best: System, found: Sequence[System], verb: str, what: str) -> str:
    """`paged has the highest throughput`; for a single system `Highest throughput`."""
    return f"{best.name} {verb} the highest {what}" if len(found) > 1 else f"Highest {what}"


def at_load(load: str, value: float) -> str:
    """`at 8 requests/s`, `with 32 clients`, `at 2 times the trace's speed`."""
    if load == "clients":
        return f"with {value:g} client{'s' * (value != 1)}"
    return f"at {value:g} requests/s" if load == "request_rate" else f"at {value:g} times the trace's speed"


def rank(system: System) -> tuple[float, float]:
    """Sort key: load within the SLO, then output tokens per second and GPU there."""
    at = largest_within(system)
    return at or 0.0, _made(system, at) or 0.0


def _made(system: System, at: float | None) -> float | None:
    """Output tokens per second and GPU at a load; the maximum if none is given."""
    made = {load: value.mean for load, value in system.values(tokens_per_gpu)}
    return max(made.values(), default=None) if at is None else made.get(at)


def at_the_edge(system: System) -> bool:
    """Whether the SLO is met at the highest load tried, so that the answer may be higher."""
    return largest_within(system) == max(system.points, default=None)


def largest_within(system: System) -> float | None:
    """The largest load up to which every seed meets the SLO; None: not even at the least."""
    largest = None
    for load, met in system.met().items():
        if not met:
            break
        largest = load
    return largest


def _most(system: System, column: str) -> Interval | None:
    """The largest mean of a column over the loads, with its interval over the seeds."""
    return max((each for _, each in system.numbers(column)), key=lambda each: each.mean, default=None)
