"""The numbers that reports show of a run: the name, format and better end of each.

The terminal, notebooks, the HTML page and figures choose from these. Each is read from a summary; with
several seeds the mean is shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kvsim.reports import palette
from kvsim.reports.goals import percent
from kvsim.reports.palette import Shown, Summary, count, figures, number, percent_text, seconds
from kvsim.reports.waiting import LIMITS, SHORT_LIMITS

Read = Callable[[Summary], float | None]
Best = Callable[[list[float]], float]


@dataclass(frozen=True)
class Quantity:
    """A number of a summary.

    Attributes
    ----------
    name, full : str
        Its name in terminal rows, and its longer name on a page if that differs.
    read, text : callable
        Read it from a summary (None if absent), and format it with its unit.
    best : callable or None
        max or min; None if neither end is better.
    rare : bool
        Omitted if it is zero or missing in all runs.
    of_all : bool
        Runs that rejected requests others served may also be the best.
    """

    name: str
    read: Read
    text: Shown
    best: Best | None = None
    full: str = ""
    rare: bool = False
    of_all: bool = False

    @property
    def title(self) -> str:
        """Its name on a page."""
        name = self.full or self.name
        return f"{name[:1].upper()}{name[1:]}"


@dataclass(frozen=True)
class Latency:
    """A latency that every request has: its column, its name and abbreviation, its unit."""

    column: str
    name: str
    unit: str = "s"
    short: str = ""

    @property
    def in_full(self) -> str:
        """`TTFT, time to first token`."""
        return f"{self.short}, {self.name}" if self.short else self.name


LATENCIES = {
    "ttft": Latency("ttft_s", "time to first token", short="TTFT"),
    "tpot": Latency("tpot_s", "time per output token", short="TPOT"),
    "itl": Latency("itl_s", "time between tokens", short="ITL"),
    "e2e": Latency("e2e_s", "end-to-end latency", short="E2E"),
    "normalized": Latency("normalized_s_per_token", "normalised latency", "s/token"),
    "queueing": Latency("queueing_s", "queueing delay"),
}
"""By option name. requests.parquet has columns of the same names, except `itl_s`."""

POINTS = ("mean", "p50", "p90", "p95", "p99", "max")
"""The statistics of each latency in a summary."""


def at(*path: str) -> Read:
    """A reader of the number at this path of a summary."""

    def read(summary: Summary) -> float | None:
        value: object = summary
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return number(value)

    return read


def _preemptions(summary: Summary) -> float:
    engine = summary["engine"]
    return sum(number(engine.get(f"preemptions_{how}")) or 0.0 for how in ("recompute", "swap"))


def _waste(summary: Summary) -> float:
    return palette.waste(palette.whole_run(summary))


def _waste_while_waiting(summary: Summary) -> float | None:
    found = palette.while_waiting(summary)
    return None if found is None else palette.waste(found)


def _of_memory(kind: str) -> Read:
    return lambda summary: palette.whole_run(summary)[kind]


def percent_at(*path: str) -> Read:
    """A reader of a share at this path of a summary, in per cent."""
    share = at(*path)

    def read(summary: Summary) -> float | None:
        found = share(summary)
        return None if found is None else 100 * found

    return read


def _held_back(limit: str) -> Quantity:
    share = percent_at("load", "held_back_share", limit)
    name, full = f"blocked by {SHORT_LIMITS[limit]}", f"requests blocked by {LIMITS[limit]}, time"
    return Quantity(name, share, percent_text, full=full, rare=True)


_latency, _throughput, _engine = partial(at, "latency"), partial(at, "throughput"), partial(at, "engine")
_rare = partial(Quantity, rare=True)

FINISHED = Quantity("requests finished", at("requests", "finished"), count, max, of_all=True)
REJECTED = _rare("requests rejected", at("requests", "rejected"), count, min, of_all=True)
REQUESTS_PER_S = Quantity("requests/s", _throughput("requests_per_s"), figures, max, "requests per second")
OUTPUT_TOKENS_PER_S = Quantity(
    "output tokens/s", _throughput("output_tokens_per_s"), figures, max, "output tokens per second"
)

MEAN_RUNNING = Quantity("requests at once, mean", _engine("mean_running"), figures)
MAX_RUNNING = Quantity("requests at once, most", _engine("max_running"), count, max)
PREEMPTIONS = Quantity("preemptions", _preemptions, count, min)
PREFIX_HITS = _rare(
    "prefix hits, tokens", _engine("prefix_hit_tokens"), count, max, "tokens found in the prefix cache"
)
TIER = (
    _rare("tier hits, tokens", at("tier", "hit_tokens"), count, max, "tokens loaded from the tier below"),
    _rare(
        *("  prefill that they save", at("tier", "saved_prefill_s"), seconds, max),
        full="time of prefill that loads from the tier save",
    ),
    _rare(
        *("  from further below", at("tier", "promoted_tokens"), count),
        full="tokens promoted from tiers further below",
    ),
    *(
        _rare(
            *(f"tier's link busy, {way}", percent_at("tier", f"{way[:-1]}_busy_share"), percent_text),
            full=f"the tier's link is busy with {way}",
        )
        for way in ("loads", "stores")
    ),
    _rare(
        *("wait for a load, mean", at("tier", "mean_wait_s"), seconds),
        full="time that requests waited for a load, mean",
    ),
)
"""The tier below GPU memory, if any run has one."""
HELD_BACK = tuple(map(_held_back, LIMITS))

TTFT_P50 = Quantity("TTFT p50", _latency("ttft_s", "p50"), seconds, min, "time to first token, median")
TTFT_P99 = Quantity(
    "TTFT p99", _latency("ttft_s", "p99"), seconds, min, "time to first token, 99th percentile"
)
TPOT_P50 = Quantity("time per output token, median", _latency("tpot_s", "p50"), seconds, min)
E2E_P50 = Quantity("end-to-end latency, median", _latency("e2e_s", "p50"), seconds, min)
NORMALIZED = Quantity("normalised latency, mean", _latency("normalized_s_per_token", "mean"), seconds, min)

TOKENS = Quantity(
    "tokens in KV memory", _of_memory("token"), percent_text, max, "KV memory that holds tokens"
)
_tokens_waiting = at("memory", "saturated", "token")
TOKENS_WAITING = _rare(
    "tokens, requests waiting", _tokens_waiting, percent_text, max, "tokens while requests waited"
)
CACHED = _rare("cached prefixes", _of_memory("cached"), percent_text)
HELD = _rare("prompts held to be read", _of_memory("held"), percent_text)
IDLE = _rare("idle memory", _of_memory("idle"), percent_text)
WASTE = Quantity("total waste", _waste, percent_text, min, "KV memory wasted")
WASTE_BY_KIND = tuple(Quantity(f"  {kind}", _of_memory(kind), percent_text) for kind in palette.WASTE)
WASTE_WAITING = _rare(
    "waste, requests waiting", _waste_while_waiting, percent_text, min, "waste while requests waited"
)
_saved = at("memory", "saved_by_sharing")
SHARING = _rare("sharing saves, whole run", _saved, percent_text, max, "KV memory saved by sharing")

GOALS = (
    _rare("requests within the SLO", at("slo", "attained_share"), percent, max),
    _rare("goodput, requests/s", at("slo", "goodput_requests_per_s"), figures, max),
    _rare("goodput per GPU", at("slo", "goodput_requests_per_s_per_gpu"), figures, max),
    _rare("output tokens/s per GPU", at("per_gpu", "output_tokens_per_s"), figures, max),
    _rare("per M output tokens", at("price", "per_million_output_tokens"), figures, min),
)
"""The numbers of goals, if any run has them."""
