"""Goals in reports: the `slo`, `per_gpu` and `price` sections of summaries.

    SLO missed: E2E 39.0 s (over 30.0 s). Goodput 1.97 requests/s, 99.9 % of all. ...

With several seeds a number is their mean, and the SLO is met if every seed meets it.
"""

from collections.abc import Sequence
from statistics import fmean

from kvsim.reports.palette import Summary, figures, number, seconds
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import interval
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.slo import Limit, Slo

_ABBREVIATED = {each: each.upper() for each in ("ttft", "tpot", "e2e")}
"""Latency of a limit -> its name in a sentence; others are words."""


def goal(summary: Summary, section: str, name: str) -> float | None:
    """A number of a section; None if the run had no such goal."""
    return number((summary.get(section) or {}).get(name))


def in_words(summaries: Sequence[Summary]) -> str:
    """A sentence or two on the goals of one run, over all its seeds; "" if it had none."""
    if not any(summary.get("slo") or summary.get("price") for summary in summaries):
        return ""
    said = []
    if all(summary.get("slo") for summary in summaries):
        share = percent(_mean(summaries, "slo", "attained_share"))
        rate = _mean(summaries, "slo", "goodput_requests_per_s")
        per_gpu = _per_gpu(summaries, rate, "goodput_requests_per_s_per_gpu")
        said.append(f"{_verdict(summaries)}. Goodput {figures(rate)} requests/s{per_gpu}, {share} of all")
    if all(summary.get("price") for summary in summaries):
        tokens, output = (
            figures(_mean(summaries, "price", f"per_million_{which}"))
            for which in ("tokens", "output_tokens")
        )
        said.append(f"A million tokens costs {tokens}, a million output tokens {output}")
    return ". ".join(said) + "."


def _verdict(summaries: Sequence[Summary]) -> str:
    """Whether the SLO was met, with the measured value of each missed limit."""
    met = [bool(summary["slo"]["met"]) for summary in summaries]
    if all(met):
        return f"SLO met: {_measured(summaries, summaries[0]['slo']['by_limit'])}"
    missed = [
        name
        for name in summaries[0]["slo"]["by_limit"]
        if not all(summary["slo"]["by_limit"][name]["met"] for summary in summaries)
    ]
    with_seeds = f" with {met.count(False)} of {len(met)} seeds" if len(met) > 1 else ""
    return f"SLO missed{with_seeds}: {_measured(summaries, missed)}"


def _measured(summaries: Sequence[Summary], names: Sequence[str]) -> str:
    """`TTFT p99 365 ms (within 500 ms)` for each limit of these names."""
    said = []
    for name in names:
        each = [summary["slo"]["by_limit"][name] for summary in summaries]
        values = [number(one["measured_s"]) for one in each]
        known = [value for value in values if value is not None]
        found = seconds(fmean(known)) if known else "none finished"
        limit = seconds(number(each[0]["limit_s"]))
        words = "over" if known and fmean(known) > each[0]["limit_s"] else "within"
        latency, _, statistic = name.partition(":")
        title = " ".join(filter(None, (_ABBREVIATED.get(latency, latency), statistic)))
        said.append(f"{title} {found} ({words} {limit})")
    return ", ".join(said)


def _per_gpu(summaries: Sequence[Summary], rate: float | None, name: str) -> str:
    each = _mean(summaries, "slo", name)
    return "" if each == rate else f" ({figures(each)} per GPU)"


def _mean(summaries: Sequence[Summary], section: str, name: str) -> float | None:
    found = interval([goal(summary, section, name) for summary in summaries])
    return None if found is None else found.mean


def percent(share: float | None) -> str:
    """`99.9 %`; never 100 % for less than all."""
    if share is None:
        return "-"
    return "> 99.9 %" if 0.9995 <= share < 1 else f"{100 * share:.1f} %"


def limits_of(runs: Sequence[Run], latency: str) -> list[Limit]:
    """The limits on a latency, if all runs have the same; else none."""
    said = {str((run.config.get("goals") or {}).get("slo")) for run in runs}
    if len(said) != 1 or said == {"None"}:
        return []
    try:
        slo = Slo.parse(said.pop())
    except KvsimError:  # an edited config must not make its run unreadable
        return []
    return [limit for limit in slo.limits if limit.column == latency]
