"""The clock of the step times in words, and a warning if answers have different clocks.

    told(costs)     `measured elsewhere (h100-vllm of 2026-11-21); 3.1 % of the time extrapolated; ...`
    differ(named)   `Not comparable: their clocks differ ...`, or nothing

A cost is the `cost` section of a summary, see sim/cost/clock.py; older versions wrote fewer fields.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kvsim.reports.palette import number
from kvsim.sim.cost.clock import NOT_VALIDATED

Cost = Mapping[str, Any]
REMEDY = "--cost roofline puts them all on one clock"
_MOST = 3
"""Most clocks or error statements listed in one line."""


def clock_name(cost: Cost) -> str:
    """The clock's name; runs whose clocks have the same name are comparable."""
    return str(cost.get("clock") or str(cost.get("source", "")).partition(":")[0].partition(",")[0])


def told(costs: Sequence[Cost]) -> str:
    """The clocks of some answers, the extrapolated share of their time, and their errors."""
    return f"{_listed(dict.fromkeys(map(_clock, costs)), 'clocks')}; {beside(costs)}"


def beside(costs: Sequence[Cost]) -> str:
    """Like `told`, without the clocks' names."""
    trusts = dict.fromkeys(str(cost.get("trust") or NOT_VALIDATED) for cost in costs)
    return "; ".join(filter(None, [extrapolated(costs), _listed(trusts, "different errors, see each")]))


def extrapolated(costs: Sequence[Cost]) -> str:
    """`1.2 to 3.1 % of the time extrapolated`; empty if nothing was measured."""
    shares = [100 * (number(cost.get("extrapolated_share")) or 0.0) for cost in costs if _measured(cost)]
    if not shares:
        return ""
    least, most = min(shares), max(shares)
    if not most:
        return "nothing extrapolated"
    said = f"{least:.1f} %" if f"{least:.1f}" == f"{most:.1f}" else f"{least:.1f} to {most:.1f} %"
    return f"{said} of the time extrapolated"


def differ(named: Iterable[tuple[str, Cost]]) -> str:
    """A warning that systems have different clocks, and how to fix it; empty if they share one."""
    clocks: dict[str, dict[str, None]] = {}
    for name, cost in named:
        clocks.setdefault(clock_name(cost), {})[name] = None
    if len(clocks) < 2:
        return ""
    whose = "; ".join(f"{clock}: {_listed(names, 'systems')}" for clock, names in clocks.items())
    return f"Not comparable: their clocks differ ({whose}): {REMEDY}."


def cost_in(row: Mapping[str, Any]) -> Cost:
    """Rebuild the `cost` section from a flattened summary, a row of a sweep's table."""
    return {name.removeprefix("cost."): value for name, value in row.items() if name.startswith("cost.")}


def _measured(cost: Cost) -> bool:
    return cost.get("profile") is not None or bool(number(cost.get("extrapolated_share")))


def _clock(cost: Cost) -> str:
    """`measured elsewhere (h100-vllm of 2026-11-21)`."""
    of = f" ({cost['profile']} of {cost['date']})" if cost.get("profile") else ""
    return f"{clock_name(cost)}{of}"


def _listed(words: Collection[str], what: str) -> str:
    """All of them, or just their number if there are many."""
    return ", ".join(words) if len(words) <= _MOST else f"{len(words)} {what}"
