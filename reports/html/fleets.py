"""The replicas of each fleet for the page: means over slices of time, and their balance in words."""

from collections.abc import Sequence
from typing import Any

from kvsim.reports import balance, palette
from kvsim.reports.rundir.run import Run
from kvsim.reports.scaled import scaled_words

SLICES = 150


def fleets(runs: Sequence[Run]) -> list[dict[str, Any] | None]:
    """The replicas of each run, None for a single server: a list over time per replica and measure."""
    return [_fleet(run) if run.replicas else None for run in runs]


def _fleet(run: Run) -> dict[str, Any]:
    replicas = run.replicas
    until_s = balance.end_s(replicas)
    held = [_rounded(balance.means(each, balance.held(each), until_s, SLICES)) for each in replicas]
    shown = {
        "KV memory in use": {"unit": " %", "most": 100, "rows": held},
        "requests at once": _counted(replicas, "running", until_s),
        "requests waiting": _counted(replicas, "waiting", until_s),
    }
    hits = [palette.number(each.summary["engine"].get("prefix_hit_tokens")) or 0.0 for each in replicas]
    return {
        "end": until_s,
        "words": "; ".join(filter(None, (balance.imbalance(replicas), scaled_words([run.summary])))),
        "hits": hits if any(hits) else [],
        "maps": {name: each for name, each in shown.items() if any(map(any, each["rows"]))},
    }


def _counted(replicas: Sequence[Run], column: str, until_s: float) -> dict[str, Any]:
    rows = [
        _rounded(balance.means(each, each.columns.timeline[column], until_s, SLICES)) for each in replicas
    ]
    return {"unit": "", "most": max(1.0, *map(max, rows)), "rows": rows}


def _rounded(values: balance.Floats) -> list[float]:
    return [float(f"{value:.3g}") for value in values]
