"""Whether a server kept up, and what held requests back, in words: the `load` section of a summary.

    overload([summary])      "overloaded: 3.01 requests/s arrive, 2.02 are served; blocked by KV memory ..."
    held_back([summary])     "KV memory 97 % of the time, seats (max_num_seqs) 2 %"

Runs of older versions without this section get no text.
"""

from collections.abc import Sequence
from statistics import fmean

from kvsim.reports.palette import Summary, every, figures, number

LIMITS = {
    "kv_memory": "KV memory",
    "max_num_seqs": "seats (max_num_seqs)",
    "max_num_batched_tokens": "token budget (max_num_batched_tokens)",
    "batch": "a batch or copy under way",
}
"""Limit as named in the summary -> in words."""

SHORT_LIMITS = {
    "kv_memory": "KV memory",
    "max_num_seqs": "seats",
    "max_num_batched_tokens": "token budget",
    "batch": "batch or copy under way",
}
"""Limit -> in words for table rows."""

LEAST_SHARE = 0.005
"""Limits that held requests back for a smaller share of the time do not cause overload."""

LATENCIES_GROW = (
    "The queue kept growing while requests arrived, so latencies reflect the length of "
    "the run, not the speed of the server."
)


def is_overloaded(summary: Summary) -> bool:
    """Whether a run's queue grew for as long as requests arrived."""
    return summary.get("load", {}).get("overloaded") is True


def all_at_once(summary: Summary) -> bool:
    """Whether all requests arrived at one instant."""
    return bool(summary.get("load", {}).get("arrivals") == "all at once")


def overload(seeds: Sequence[Summary]) -> str:
    """A run's overload with its numbers and limits, means over several seeds; or ""."""
    many = sum(map(is_overloaded, seeds))
    if not many:
        return ""
    which = every(many, "seed") if many == len(seeds) else f"{many} of {len(seeds)} seeds"
    with_seeds = f" with {which}" if len(seeds) > 1 else ""
    return f"overloaded{with_seeds}: {_rates(seeds)}; blocked by {_held_back(seeds, LEAST_SHARE)}"


def overloads(runs: Sequence[Sequence[Summary]]) -> list[str]:
    """A line for each overloaded run of a comparison, with its name; `runs`: each with all its seeds."""
    return [f"{seeds[0]['label']} is {words}" for seeds in runs if (words := overload(seeds))]


def held_back(summaries: Sequence[Summary]) -> str:
    """Each limit that held requests back, longest first, with its mean share of the time; or ""."""
    return _held_back(summaries, least=0.0)


def share(summary: Summary, limit: str) -> float | None:
    """The share of a run's time during which a limit held requests back."""
    return number(summary.get("load", {}).get("held_back_share", {}).get(limit))


def rounded_share(share: float) -> str:
    """Whole per cent, but never 0 % for more than none nor 100 % for less than all."""
    if 0 < share < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def _rates(summaries: Sequence[Summary]) -> str:
    """`3.01 requests/s arrive, 2.02 are served`; means over several seeds."""
    rates = ("arriving_requests_per_s", "leaving_requests_per_s")
    come, leave = (figures(fmean(number(s["load"][rate]) or 0.0 for s in summaries)) for rate in rates)
    return f"{come} requests/s arrive, {leave} are served"


def _held_back(summaries: Sequence[Summary], least: float) -> str:
    """The limits that held requests back for more than the least share of the time."""
    found = [(fmean(share(s, limit) or 0.0 for s in summaries), words) for limit, words in LIMITS.items()]
    longest_first = sorted((each for each in found if each[0] > least), key=lambda each: -each[0])
    said = [f"{words} {rounded_share(part)}" for part, words in longest_first]
    return ", ".join([f"{said[0]} of the time", *said[1:]]) if said else ""
