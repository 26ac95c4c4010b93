"""What came out, in a sentence: of one run, and of several under the same traffic.

Shares of the KV memory are said of the whole run, and beside it of the time in which requests waited. Where
runs are compared, it is the same part for all of them.
"""

from collections.abc import Sequence

from kvsim.reports import palette
from kvsim.reports.palette import Summary, count, figures, number, seconds
from kvsim.reports.ranked import different_clocks, left_out, ranked, why_rejected
from kvsim.reports.waiting import all_at_once, rounded_share

ALIKE = 1.02
"""Ratios below this are no difference worth a word."""


def headline(summary: Summary) -> str:
    """One sentence with the numbers of a run."""
    requests, rate = summary["requests"], summary["throughput"]
    finished, submitted = requests["finished"], requests["submitted"]
    share = count(finished) if finished == submitted else f"{count(finished)} of {count(submitted)}"
    served = f"{summary['label']} served {share} request{'' if submitted == 1 else 's'}"
    served += why_rejected([summary])
    if not finished:
        return f"{served}."
    if all_at_once(summary) and submitted > 1:
        served += ", which came all at once,"
    duration_s = summary["duration_s"]
    return (
        f"{served} in {f'{duration_s:,.1f}' if duration_s >= 100 else figures(duration_s)} s: "
        f"{figures(number(rate['requests_per_s']))} requests/s, "
        f"{figures(number(rate['output_tokens_per_s']))} output tokens/s; {memory(summary)}."
    )


def memory(summary: Summary) -> str:
    """Tokens and waste in the KV memory: over the whole run, and while requests waited."""
    whole, waiting = palette.whole_run(summary), palette.while_waiting(summary)
    of = " of each replica" if summary.get("fleet") else ""
    said = (
        f"KV memory{of} {whole['token']:.1f} % tokens, {palette.waste(whole):.1f} % waste over the whole run"
    )
    if waiting is None:
        return f"{said} (no request ever waited)"
    share = number(summary["memory"].get("saturated_share"))
    part = "" if share is None else f" ({rounded_share(share)} of the time)"
    return f"{said}, {waiting['token']:.1f} % and {palette.waste(waiting):.1f} % while requests waited{part}"


def verdict(summaries: Sequence[Summary]) -> str:
    """One sentence on the best run against the worst: requests at once, rate or latency, waste.

    For runs that had the same traffic: of others the one with more requests would win. Those that rejected
    what others served are not ranked, nor is any where clocks differ.
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
        said = headline(served[0]) if served else "No request finished in any run."
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
    at_once = _times(best["engine"]["mean_running"], worst["engine"]["mean_running"])
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
    return number(summary["throughput"]["requests_per_s"]) or 0.0


def _latency(summary: Summary) -> float:
    return number(summary["latency"]["normalized_s_per_token"]["mean"]) or 0.0


def _times(above: float, below: float) -> str:
    return f"{above / below:.1f} times" if below else "infinitely"
