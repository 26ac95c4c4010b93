"""The table of capacities: a row per system, units in the column names, grouped by clock.

    found (capacity.py), the request    --> what each carries, at what price
                                        --> the fleet for a rate, the cheapest first; the value of more memory

Systems on different clocks are not comparable, so each is compared only with those on its own clock.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from kvsim.reports.clocks import clock_name, cost_in
from kvsim.reports.grouping import by_key
from kvsim.reports.seeds.intervals import ratio
from kvsim.reports.sweeps.capacity import Capacity, bound_by, limited_by
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.sweeps import Sought

UNITS = {"rate": "requests_per_s", "clients": "clients", "rate-scale": "rate_scale"}
"""The quantity sought -> its column."""
ROUNDED = 1e-9
"""Relative tolerance: rounding of a load must not add a server to a fleet."""

Columns = dict[str, Any]


def table_rows(found: Sequence[Capacity], goals: Goals, asked: Sought) -> list[Columns]:
    """A row per system; for fleets that serve a given rate, the cheapest of each clock first."""
    best, pools = like_the_best(found), any(system.has_pools for system in found)
    scales = any(system.gpus_of_all for system in found)
    rows = []
    for system in found:
        per_hour = _per_hour(system, goals, 1)
        rows.append(
            {
                **system.settings,
                **_carried(system, goals, asked, best=system in best),
                **({"gpus_of_all": system.gpus_of_all or system.gpus or None} if scales else {}),
                **system.beside,
                **_price(system, per_hour),
                **(_of_pools(system, per_hour, UNITS[asked.find]) if pools else {}),
                **_more_memory(system, asked.more_kv),
                **_fleet(system, goals, asked),
            }
        )
    return rows if asked.for_rate is None else _by_cost(rows, UNITS[asked.find])


def clock_of(row: Mapping[str, Any]) -> str:
    """The name of a row's clock."""
    return clock_name(cost_in(row))


def _carried(system: Capacity, goals: Goals, asked: Sought, *, best: bool) -> Columns:
    """The load that one server carries, and why not more."""
    unit, load = UNITS[asked.find], system.load
    output = system.at_load("output_tokens_per_s")
    tpot_s = system.at_load("tpot_p50_s")
    return {
        "status": system.status,
        "reason": system.reason,
        "rough": any(each.get("rough", False) for each in system.rows),
        "at_least": any(each.get("at_least", False) for each in system.rows),
        "gpus": system.gpus or None,
        unit: None if load is None else load.mean,
        f"{unit}_low": None if load is None else load.low,
        f"{unit}_high": None if load is None else load.high,
        f"{unit}_per_gpu": system.per_gpu,
        "best_per_gpu": best,
        "seeds": len(system.rows),
        "tolerance": asked.tolerance,
        "output_tokens_per_s_per_gpu": None if output is None else output / system.gpus,
        "speed_of_trace": system.speed,
        "tokens_per_s_per_user": 1 / tpot_s if tpot_s else None,
        "attained_share": system.at_load("attained_share"),
        "requests_per_run": system.at_load("requests"),
        "requests_from": system.requests_from,
        "limited_by": limited_by(system, goals.limits, asked.find),
    }


def _per_hour(system: Capacity, goals: Goals, servers: int) -> float | None:
    """The price of `servers` servers per hour; None if not all of its GPUs have one."""
    found = 0.0
    for kind, gpus in system.gpus_by_kind.items():
        price = goals.price_of(kind)
        if price is None:
            return None
        found += price * (gpus * servers)
    return goals.with_host(found, system.host_gib * servers) if system.rows else None


def _price(system: Capacity, per_hour: float | None) -> Columns:
    """The price of tokens at `per_hour`, if the GPUs have prices."""
    if per_hour is None:
        return {}
    output = system.at_load("output_tokens_per_s")
    price = per_hour / 3600 / output * 1e6 if output else None
    return {"price_per_million_output_tokens": price}


def _of_pools(system: Capacity, per_hour: float | None, unit: str) -> Columns:
    """For heterogeneous fleets: the side that limits them, and the price of a thousand requests."""
    found: Columns = {"bound_by": bound_by(system)}
    if per_hour is not None and unit == UNITS["rate"]:
        load = None if system.load is None else system.load.mean
        found["price_per_thousand_requests"] = per_hour / 3600 / load * 1000 if load else None
    return found


def _more_memory(system: Capacity, gib: float | None) -> Columns:
    """The gain from more KV memory in per cent, if requested."""
    if gib is None:
        return {}
    value, name = system.more_kv(), "more_kv_gain_percent"
    ends = {"": "mean", "_low": "low", "_high": "high"}
    gains = {
        f"{name}{end}": None if value is None else 100 * (getattr(value, which) - 1)
        for end, which in ends.items()
    }
    return {"more_kv_gib_per_gpu": gib, **gains}


def _fleet(system: Capacity, goals: Goals, asked: Sought) -> Columns:
    """The servers needed for a rate, and their price, if requested."""
    rate = asked.rate_to_carry
    if rate is None:
        return {}
    servers = None if system.load is None else ceil(rate / system.load.mean - ROUNDED)
    gpus = None if servers is None else servers * system.gpus
    row = {"margin_percent": 100 * asked.margin_share, "fleet_servers": servers, "fleet_gpus": gpus}
    if _per_hour(system, goals, 1) is not None:
        row["fleet_price_per_hour"] = None if servers is None else _per_hour(system, goals, servers)
    return row


def _by_cost(rows: Sequence[Columns], unit: str) -> list[Columns]:
    """Rows on measured clocks first; per clock, the cheapest first."""
    cost = "fleet_price_per_hour" if any("fleet_price_per_hour" in row for row in rows) else "fleet_gpus"

    def place(row: Columns) -> tuple[Any, ...]:
        clock = (row.get("cost.profile") is None, clock_of(row))
        return (row.get(cost) is None, *clock, row.get(cost) or 0.0, -(row[f"{unit}_per_gpu"] or 0.0))

    return sorted(rows, key=place)


def like_the_best(found: Sequence[Capacity]) -> list[Capacity]:
    """Systems whose capacity per GPU is the highest on their clock, or within seed noise of it."""
    known = [system for system in found if system.per_gpu is not None]
    by_clock = by_key(known, lambda system: clock_of(system.beside))
    return [each for systems in by_clock.values() for each in _alike(systems)]


def _alike(systems: Sequence[Capacity]) -> list[Capacity]:
    best = max(systems, key=lambda system: system.per_gpu or 0.0)

    def alike(system: Capacity) -> bool:
        if system is best or len(system.rows) != len(best.rows):
            return system is best
        if len(system.rows) < 2:
            return system.per_gpu == best.per_gpu
        each = [[row["load"] / row["gpus"] for row in one.rows] for one in (system, best)]
        apart = ratio(*each)
        return apart is not None and apart.holds(1.0)

    return [system for system in systems if alike(system)]
