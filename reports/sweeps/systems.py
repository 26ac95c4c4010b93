"""The rows of a sweep grouped into systems: rows that differ only in the load and the seed.

    gpu h100, request_rate 1, seed 0
    gpu h100, request_rate 1, seed 1      ->  system "h100": load 1 has two rows, load 2 one
    gpu h100, request_rate 2, seed 0

Settings that only say how much of a trace is used may vary along with the load.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.reports.palette import number
from kvsim.reports.seeds.intervals import Interval, interval
from kvsim.reports.sweeps.table import FINISHED, Row

LOADS = {
    "request_rate": "request rate (requests/s)",
    "clients": "clients",
    "rate_scale": "speed of the trace",
}
"""Settings that define a load -> words for an axis; the first that varies is the load."""

_ALONG = ("num_prompts", "duration", "start")
_BY_VALUE = ("case", "model", "gpu", "allocator", "scheduler", "trace", "router", "policy", "pool")
TIER = "kv_offloading_size"
_SHORT = {
    TIER: "tier",
    "tensor_parallel_size": "TP",
    "max_num_seqs": "seats",
    "max_num_batched_tokens": "budget",
    "kv_cache_dtype": "KV",
    "replicas": "replicas",
    "enable_prefix_caching": "prefix cache",
    "gpu_memory_utilization": "use",
    "request_rate": "rate",
}


@dataclass(frozen=True)
class System:
    """Rows of one system; `points` by load, ascending. Without a load there is one point, 0."""

    name: str
    settings: Mapping[str, Any]
    points: Mapping[float, Sequence[Row]]

    def numbers(self, column: str) -> list[tuple[float, Interval]]:
        """(load, mean with its interval over the seeds) for loads at which all seeds have the number."""
        return self.values(lambda row: number(row.get(column)))

    def values(self, value: Callable[[Row], float | None]) -> list[tuple[float, Interval]]:
        """Like `numbers`, for a value computed from a row."""
        found = [(load, interval([value(row) for row in rows])) for load, rows in self.points.items()]
        return [(load, each) for load, each in found if each is not None]

    def met(self) -> dict[float, bool | None]:
        """Load -> whether every seed meets the SLO; None: only some do. Empty without an SLO."""
        shares = {
            load: sum(bool(row["slo.met"]) for row in rows) / len(rows)
            for load, rows in self.points.items()
            if all(row.get("slo.met") is not None for row in rows)
        }
        return {load: share == 1 if share in (0, 1) else None for load, share in shares.items()}

    def knee(self) -> float | None:
        """The load at which throughput / latency is largest: Kleinrock's knee (1979); None at an end.

        The latency is the mean E2E. A maximum at the first or last load says nothing about the knee.
        """
        power = self.values(_power)
        if len(power) < 3:
            return None
        best = max(range(len(power)), key=lambda place: power[place][1].mean)
        return power[best][0] if 0 < best < len(power) - 1 else None


def load_of(names: Sequence[str]) -> str | None:
    """The varied setting that is the load; None if none is."""
    return next((name for name in LOADS if name in names), None)


def systems(rows: Sequence[Row], names: Sequence[str]) -> list[System]:
    """The systems of these rows, in order; `names` are the varied settings, including `case`."""
    load = load_of(names)
    apart = [name for name in names if name not in (load, "seed", *_ALONG) and not _told(name, names, rows)]
    apart = apart or [name for name in names if name in _ALONG and load is None]
    groups: dict[str, tuple[dict[str, Any], dict[float, list[Row]]]] = {}
    for row in rows:
        own = {name: row.get(name) for name in apart}
        _, points = groups.setdefault(repr(own), (own, {}))
        at = number(row.get(load)) if load else 0.0
        if at is not None and row.get("status", FINISHED) == FINISHED:
            points.setdefault(at, []).append(row)
    return [System(name_of(own), own, dict(sorted(points.items()))) for own, points in groups.values()]


def _told(name: str, names: Sequence[str], rows: Sequence[Row]) -> bool:
    """Whether the case determines a setting: it has one value per case."""
    if name == "case" or "case" not in names:
        return False
    return len({(row["case"], repr(row.get(name))) for row in rows}) == len({row["case"] for row in rows})


def name_of(settings: Mapping[str, Any]) -> str:
    """`h100, TP 2, KV fp8`; `all` if there is only one system."""
    return ", ".join(_said(name, value) for name, value in settings.items()) or "all"


def _said(name: str, value: object) -> str:
    if name in _BY_VALUE and value is not None:
        return str(value)
    if name in (TIER, "tier") and value in (None, "0", "none"):
        return "no tier"
    words = _SHORT.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return f"{words} {'on' if value else 'off'}"
    if value is None:
        return f"{words} default"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


def setting_words(name: str) -> str:
    """A setting as a heading or a label of an axis: `seats`, `request rate (requests/s)`."""
    return LOADS.get(name, _SHORT.get(name, name.replace("_", " ")))


def _power(row: Row) -> float | None:
    served, e2e_s = number(row.get("throughput.requests_per_s")), number(row.get("latency.e2e_s.mean"))
    return served / e2e_s if served and e2e_s else None


def interactivity(row: Row) -> float | None:
    """Output tokens per second per user: 1 / the median time per output token."""
    tpot_s = number(row.get("latency.tpot_s.p50"))
    return 1 / tpot_s if tpot_s else None


def tokens_per_gpu(row: Row) -> float | None:
    """Output tokens per second per GPU; with autoscaling, per billed GPU."""
    tokens, gpus = number(row.get("throughput.output_tokens_per_s")), number(row.get("gpus"))
    hours, hours_of_all = number(row.get("scaling.gpu_hours")), number(row.get("scaling.gpu_hours_of_all"))
    if gpus and hours and hours_of_all:
        gpus *= hours / hours_of_all
    return tokens / gpus if tokens is not None and gpus else None
