"""A table of the pools of a heterogeneous fleet: requests served, latencies and cost."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from kvsim.reports.fitting import ruled_table
from kvsim.reports.palette import Summary, count, figures, number


def pools_table(seeds: Sequence[Summary]) -> Table | None:
    """A row per pool, means over the seeds; None if all servers are the same."""
    first: list[dict[str, Any]] = seeds[0].get("pools") or []
    if not first:
        return None
    priced = first[0]["cost"] is not None
    heads = ("replicas", "GPUs", "served", "TTFT", "TPOT", "GPU-hours", *(["cost"] if priced else []))
    table = ruled_table("pool (p99 in ms)", *heads)
    for place, pool in enumerate(first):
        each = [seed["pools"][place] for seed in seeds]
        cells = [
            count(pool["replicas"]),
            count(pool["gpus"]),
            count(_mean([one["finished"] for one in each])),
        ]
        for name in ("ttft_s", "tpot_s"):
            p99_s = _mean([one["latency"][name]["p99"] for one in each])
            cells.append(figures(None if p99_s is None else 1e3 * p99_s))
        cells.append(figures(_mean([one["gpu_hours"] for one in each])))
        if priced:
            cells.append(figures(_mean([one["cost"] for one in each])))
        table.add_row(str(pool["name"]), *cells)
    return table


def _mean(values: Sequence[object]) -> float | None:
    known = [found for found in map(number, values) if found is not None]
    return sum(known) / len(known) if known else None
