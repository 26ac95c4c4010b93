"""The capacity of systems, combined from searches with several seeds. The table is in capacity_table.py.

rows of searches (kvsim/commands) --> Capacity of each system: mean, interval, limit, per GPU
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, mean
from typing import Any

from kvsim.reports.palette import figures, number, seconds
from kvsim.reports.seeds.intervals import Interval, interval, ratio
from kvsim.reports.sweeps.systems import name_of
from kvsim.reports.sweeps.table import FINISHED, Row
from kvsim.reports.waiting import SHORT_LIMITS, rounded_share
from kvsim.sim.record.slo import Slo

LEAST_HELD = 0.005
STEPS = "the time of steps, "
MET, UNMET = "met", "unmet"
"""The status of a system whose searches finished: a load is within the SLO, or none is."""


@dataclass(frozen=True)
class Capacity:
    """The capacity of one system.

    Attributes
    ----------
    load : Interval or None
        The largest load within the SLO over the seeds; None if a seed has none.
    rows : sequence
        The rows of the finished searches, one per seed.
    reason : str
        Why there is no answer, or "".
    status : str
        MET, UNMET, FAILED or IMPOSSIBLE.
    """

    settings: Mapping[str, Any]
    load: Interval | None
    rows: Sequence[Row]
    reason: str
    gpu: str
    status: str

    @property
    def name(self) -> str:
        """The name in tables and figures."""
        return name_of(self.settings)

    @property
    def gpus(self) -> float:
        """GPUs of one server, or of the described fleet; with autoscaling, the billed mean."""
        return mean(row["gpus"] for row in self.rows) if self.rows else 0

    @property
    def gpus_of_all(self) -> int | None:
        """GPUs of all replicas, if the fleet is autoscaled."""
        return self.rows[0].get("gpus_of_all") if self.rows else None

    @property
    def host_gib(self) -> float:
        """Host memory of these GPUs together."""
        return fmean(row.get("host_gib", 0.0) for row in self.rows) if self.rows else 0.0

    @property
    def gpus_by_kind(self) -> dict[str, float]:
        """The number of GPUs by name."""
        each = [row.get("gpus_by_kind", {self.gpu: row["gpus"]}) for row in self.rows]
        return {kind: fmean(one[kind] for one in each) for kind in each[0]} if each else {}

    @property
    def has_pools(self) -> bool:
        """Whether its servers differ."""
        return any("gpus_by_kind" in row for row in self.rows)

    @property
    def sides(self) -> dict[str, float]:
        """Where requests that miss the binding limit were, at the lowest load that misses the SLO.

        Empty unless prefill is disaggregated (sim/record/stages.py).
        """
        name = next(iter(self.missed), "")
        each = [row["above"]["sides"].get(name) for row in self.rows if "sides" in (row.get("above") or {})]
        known = [sides for sides in each if sides]
        return {side: fmean(sides[side] for sides in known) for side in known[0]} if known else {}

    @property
    def missed(self) -> list[str]:
        """The limits missed at the lowest load that misses the SLO, sorted by number of seeds."""
        above = [row["above"] for row in self.rows if row.get("above")]
        return [name for name, _ in Counter(name for each in above for name in each["missed"]).most_common()]

    @property
    def per_gpu(self) -> float | None:
        """The load per GPU."""
        return None if self.load is None else self.load.mean / self.gpus

    def at_load(self, name: str) -> float | None:
        """A number at the largest load within the SLO, the mean over the seeds."""
        values = [number((row.get("at_load") or {}).get(name)) for row in self.rows]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    @property
    def told(self) -> list[Row]:
        """Per seed, the facts on the largest load within the SLO, or on the load that came closest."""
        return [row.get("at_load") or row["closest"] for row in self.rows]

    @property
    def requests_from(self) -> str:
        """Which requests of the trace a run uses, if it needs more than the trace has, or fewer."""
        return max((str(each.get("requests_from", "")) for each in self.told), key=len, default="")

    @property
    def beside(self) -> dict[str, Any]:
        """The assumptions of the answer, and its clock; empty if no search finished."""
        if not self.told:
            return {}
        first = self.told[0]
        cost = {f"cost.{name}": value for name, value in first.get("cost", {}).items() if name != "validated"}
        found = first.get("cost", {}).get("validated") or {}
        cost["cost.tpot_error_percent"] = 100 * found["tpot_error"] if found else None
        return {**{n: v for n, v in first.get("assumed", {}).items() if n not in self.settings}, **cost}

    @property
    def speed(self) -> float | None:
        """How many times faster a trace may be replayed; None for synthetic requests."""
        speeds = [row.get("speed") for row in self.rows]
        return fmean(speeds) if speeds and all(speeds) else None

    def more_kv(self) -> Interval | None:
        """The factor on the load from more KV memory, paired by seed."""
        pairs = [(number(row.get("more_kv_load")), number(row.get("load"))) for row in self.rows]
        if not pairs or any(more is None or load is None for more, load in pairs):
            return None
        if len(pairs) == 1:
            return interval([(pairs[0][0] or 0.0) / (pairs[0][1] or 1.0)])
        return ratio([more for more, _ in pairs], [load for _, load in pairs])


def capacities(rows: Sequence[Row], names: Sequence[str], gpus: Sequence[str]) -> list[Capacity]:
    """The capacity of each system; `names`: the varied settings, `gpus`: the GPU name of each row."""
    groups: dict[str, tuple[dict[str, Any], str, list[Row]]] = {}
    for row, gpu in zip(rows, gpus, strict=True):
        own = {name: row.get(name) for name in names if name != "seed"}
        groups.setdefault(repr(own), (own, gpu, []))[2].append(row)
    found = []
    for own, gpu, members in groups.values():
        ended = [row for row in members if row["status"] == FINISHED]
        broken = [(str(row["reason"]), str(row["status"])) for row in members if row["status"] != FINISHED]
        load = None if broken else _spread(ended)
        reason, status = broken[0] if broken else ("", UNMET if load is None else MET)
        found.append(Capacity(own, load, ended, reason, gpu, status))
    return found


def _spread(rows: Sequence[Row]) -> Interval | None:
    """The mean of the seeds' largest loads within the SLO, and the interval of the loads that just meet it.

    A largest load is up to the tolerance below that edge, so the answer lies low in its interval.
    """
    load, edge = (interval([number(row.get(name)) for row in rows]) for name in ("load", "edge"))
    if load is None or edge is None:
        return load
    return Interval(load.mean, min(edge.low, load.mean), max(edge.high, load.mean), load.fixed and edge.fixed)


LOAD_WORDS = {"rate": "requests/s", "clients": "clients", "rate-scale": "times the trace's speed"}
"""What is sought -> its unit."""


def load_words(load: float, find: str) -> str:
    """`0.00205 requests/s`, `1 client`, `2 times the trace's speed`."""
    words = LOAD_WORDS[find]
    return f"{figures(load)} {words.removesuffix('s') if load == 1 and find == 'clients' else words}"


def limited_by(system: Capacity, slo: Slo, find: str = "rate") -> str:
    """Why not more, at the least load that misses: the latency over its limit, what held requests back."""
    if system.reason:
        return system.reason
    if system.load is None:
        return _never(system, slo, find)
    above = [row["above"] for row in system.rows if row.get("above")]
    if not above:
        return f"nothing up to {figures(system.load.mean)}, the highest load tried"
    parts = []
    for name in system.missed[:1]:
        measured = [number(each["measured_s"].get(name)) for each in above if name in each["missed"]]
        known = [value for value in measured if value is not None]
        parts.append(f"{_latency(slo, name)} {seconds(fmean(known)) if known else 'unknown'}")
    overloaded = sum(each["overloaded"] for each in above)
    if 2 * overloaded >= len(above) or not parts:
        parts.append("requests arrive faster than they leave" if overloaded else "latencies keep growing")
    bound, held = _bound(system), _held(above)
    return f"{', '.join(parts)}: {bound}{held.removeprefix(STEPS) if bound else held}"


def _latency(slo: Slo, name: str) -> str:
    """The latency of a limit and its statistic: `TTFT p99`."""
    limit = next(limit for limit in slo.limits if limit.name == name)
    return f"{limit.latency.upper()} {limit.statistic}"


def bound_by(system: Capacity) -> str | None:
    """The side that limits a fleet with disaggregated prefill, or None."""
    sides = system.sides
    return max(sides, key=lambda side: sides[side]) if sides else None


def _bound(system: Capacity) -> str:
    """`prefill-bound (97 %), ` for disaggregated prefill; `decode-bound, ` if it is all on that side."""
    side = bound_by(system)
    if side is None:
        return ""
    share = "" if system.sides[side] == 1 else f" ({rounded_share(system.sides[side])})"
    return f"{side}-bound{share}, "


def _held(above: Sequence[Any]) -> str:
    """`KV memory full 71 % of the time, 12 % recomputed`, or the number of running requests."""
    shares = {
        name: fmean(each["held_back_share"].get(name) or 0.0 for each in above) for name in SHORT_LIMITS
    }
    words = {**SHORT_LIMITS, "kv_memory": "KV memory full"}
    longest = sorted(((share, name) for name, share in shares.items() if share >= LEAST_HELD), reverse=True)
    said = [f"{words[name]} {rounded_share(share)}" for share, name in longest[:2]]
    said = [f"{said[0]} of the time", *said[1:]] if said else []
    recomputed = fmean(each["recomputed_share"] for each in above)
    if recomputed >= LEAST_HELD:
        said.append(f"{rounded_share(recomputed)} recomputed")
    running = fmean(each["mean_running"] or 0.0 for each in above)
    return ", ".join(said) or f"{STEPS}{figures(running)} requests at once"


def _never(system: Capacity, slo: Slo, find: str) -> str:
    """The load at which a system that never meets the SLO came closest."""
    if not system.rows:
        return "no answer"
    closest = min((row["closest"] for row in system.rows), key=lambda each: each["excess"])
    over = [
        f"{_latency(slo, name)} is {seconds(number(closest['measured_s'].get(name)))}"
        for name in closest["missed"]
    ]
    words = ", ".join(over) or "latencies keep growing"
    some, at = sum(row["load"] is not None for row in system.rows), load_words(closest["load"], find)
    if some:
        return f"met with {some} of {len(system.rows)} seeds; closest at {at}: {words}"
    return f"no load meets it; even at {at} {words}"
