"""The result in one sentence, for one run or for several with the same traffic.

Shares of KV memory are given for the whole run and for the time when requests waited. Comparisons use one of
the two.
"""

from collections.abc import Mapping, Sequence

from kvsim.reports import palette
from kvsim.reports.palette import Summary, count, figures, percent_text, seconds
from kvsim.reports.quantities import MEAN_RUNNING, NORMALIZED, REQUESTS_PER_S, at
from kvsim.reports.ranked import different_clocks, left_out, ranked, why_rejected
from kvsim.reports.seeds.intervals import interval
from kvsim.reports.seeds.words import share_of_time, with_spread
from kvsim.reports.shown import told
from kvsim.reports.waiting import all_at_once

ALIKE = 1.02
"""Smaller ratios are not reported."""


def headline(seeds: Sequence[Summary]) -> str:
    """One sentence with a run's numbers; with several seeds, means with their spread."""
    finished, submitted = (told(seeds, count, "requests", name) for name in ("finished", "submitted"))
    share = finished if finished == submitted else f"{finished} of {submitted}"
    served = f"{seeds[0]['label']} served {share} request{'' if submitted == '1' else 's'}"
    served += why_rejected(seeds)
    of = f" Means of {len(seeds)} seeds ± half of their 95 % confidence interval." if len(seeds) > 1 else ""
    if not any(summary["requests"]["finished"] for summary in seeds):
        return f"{served}.{of}"
    if all(map(all_at_once, seeds)) and submitted != "1":
        served += ", which all arrived at once,"
    return (
        f"{served} in {told(seeds, figures if len(seeds) > 1 else _duration, 'duration_s')} s: "
        f"{told(seeds, figures, 'throughput', 'requests_per_s')} requests/s, "
        f"{told(seeds, figures, 'throughput', 'output_tokens_per_s')} output tokens/s; {memory(seeds)}.{of}"
    )


def memory(seeds: Sequence[Summary]) -> str:
    """Shares of KV memory holding tokens and wasted, over the whole run and while requests waited."""
    of = " of each replica" if seeds[0].get("fleet") else ""
    whole = _tokens_and_waste(list(map(palette.whole_run, seeds)), " tokens,", " waste")
    said = f"KV memory{of} {whole} over the whole run"
    waiting = [percent for percent in map(palette.while_waiting, seeds) if percent is not None]
    if not waiting:
        return f"{said} (no request ever waited)"
    if len(waiting) < len(seeds):
        return said
    share = share_of_time(list(map(at("memory", "saturated_share"), seeds)))
    part = f" ({share} of the time)" if share else ""
    return f"{said}, {_tokens_and_waste(waiting, ' and', '')} while requests waited{part}"


def _tokens_and_waste(percents: Sequence[Mapping[str, float]], between: str, after: str) -> str:
    """`81.8 ± 0.2 % tokens, 1.3 ± 0.1 % waste`."""
    tokens = interval([percent["token"] for percent in percents])
    waste = interval([palette.waste(percent) for percent in percents])
    return f"{with_spread(percent_text, tokens)}{between} {with_spread(percent_text, waste)}{after}"


def _duration(value: float | None) -> str:
    return f"{value:,.1f}" if value is not None and value >= 100 else figures(value)


def verdict(summaries: Sequence[Summary]) -> str:
    """One sentence on the best run against the worst: running requests, rate or latency, waste.

    Only for runs with the same traffic: otherwise the one with more requests would win. Runs that rejected
    requests others served are not ranked; if clocks differ, none are.
    """
    systems = [[summary] for summary in summaries]
    apart = different_clocks(systems)
    if apart:
        return apart
    served = [
        summary
        for summary, may in zip(summaries, ranked(systems), strict=True)
        if may and summary["requests"]["finished"]
    ]
    rest = left_out(systems)
    if len(served) < 2:
        said = headline([served[0]]) if served else "No request finished in any run."
        return f"{said} N{rest[1:]}." if rest and served else said
    served.sort(key=_rate)
    if _rate(served[-1]) < ALIKE * _rate(served[0]):
        served.sort(key=_latency, reverse=True)
        speed = _verdict_on_latency(served[-1], served[0])
    else:
        speed = _verdict_on_rate(served[-1], served[0])
    found, waiting = palette.shares_of_all((served[-1], served[0]))
    best, worst = (f"{palette.waste(percent):.1f} %" for percent in found)
    when = "while requests waited" if waiting else "over the whole run"
    return f"{speed}; waste {best} against {worst} {when}{f'; {rest}' if rest else ''}."


def _verdict_on_rate(best: Summary, worst: Summary) -> str:
    at_once = _times(*(MEAN_RUNNING.read(summary) or 0.0 for summary in (best, worst)))
    per_second = _times(_rate(best), _rate(worst))
    return (
        f"{best['label']} holds {at_once} as many requests at once as {worst['label']} "
        f"and finishes {per_second} as many per second"
    )


def _verdict_on_latency(best: Summary, worst: Summary) -> str:
    same = f"All finish about {figures(_rate(best))} requests/s"
    fast, slow = _latency(best), _latency(worst)
    if slow < ALIKE * fast:
        return f"{same} and take about {seconds(fast)} per token"
    return f"{same}; {best['label']} takes {seconds(fast)} per token, {worst['label']} {seconds(slow)}"


def _rate(summary: Summary) -> float:
    return REQUESTS_PER_S.read(summary) or 0.0


def _latency(summary: Summary) -> float:
    return NORMALIZED.read(summary) or 0.0


def _times(above: float, below: float) -> str:
    return f"{above / below:.1f} times" if below else "infinitely"
