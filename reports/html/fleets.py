"""The replicas of each fleet for the page: means over time slices, and their balance in words."""

from collections.abc import Sequence
from math import isnan
from typing import Any

from kvsim.reports import balance, palette
from kvsim.reports.rundir.run import Run
from kvsim.reports.scaled import scaled_words

SLICES = 150


def fleets(runs: Sequence[Run]) -> list[dict[str, Any] | None]:
    """The replicas of each run, None for a single server: per replica and measure, a list over time."""
    return [_fleet(run) if run.replicas else None for run in runs]


def _fleet(run: Run) -> dict[str, Any]:
    fleet = balance.Fleet.of(run)
    shown = {
        "KV memory in use": {"unit": " %", "most": 100, "rows": _rounded(fleet.held(SLICES))},
        "requests at once": _counted(fleet, "running"),
        "requests waiting": _counted(fleet, "waiting"),
    }
    hits = [palette.number(each.summary["engine"].get("prefix_hit_tokens")) or 0.0 for each in fleet.replicas]
    return {
        "end": fleet.end_s,
        "words": "; ".join(filter(None, (balance.imbalance(fleet), scaled_words([run.summary])))),
        "hits": hits if any(hits) else [],
        "maps": {name: each for name, each in shown.items() if any(map(any, each["rows"]))},
    }


def _counted(fleet: balance.Fleet, column: str) -> dict[str, Any]:
    rows = _rounded(fleet.column(column, SLICES))
    return {"unit": "", "most": max(1.0, *(value or 0.0 for row in rows for value in row)), "rows": rows}


def _rounded(rows: balance.Floats) -> list[list[float | None]]:
    """Rounded to what a chart can show; None while a replica was absent."""
    return [[None if isnan(value) else float(f"{value:.3g}") for value in row] for row in rows.tolist()]
