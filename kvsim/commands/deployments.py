"""Find every deployment that can serve a load: `sim capacity --gpu all --for-rate R`.

    GPUs with a price x TP 1, 2, 4, 8 --memory--> candidates (PP 2, 4 if no TP within one node fits)
    short searches of all --> the cheapest, long runs, all seeds --> confirmed, until no other can be cheaper

Short searches overestimate capacity, so a deployment costs at least as much as they say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvsim.commands.sweep import Sweep, planned
from kvsim.reports.sweeps.capacity_table import clock_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_names
from kvsim.sim.options.goals import LISTED, Goals

ALL = "all"
TENSOR, PIPELINE = (1, 2, 4, 8), (2, 4)
MOST_CONFIRMED = 6
AT_ONCE = 2
"""Systems to confirm before prices are compared again."""


def wants_all(given: Mapping[str, Any]) -> bool:
    """Whether every GPU is requested."""
    return given.get("gpu") in (ALL, [ALL])


def every_deployment(given: Mapping[str, Any]) -> Sweep:
    """The candidates: every GPU that has a price, with each tensor and pipeline parallelism that fits."""
    given = {"gpu_price": LISTED, **given}
    priced = Goals(gpu_price=given["gpu_price"]).prices
    gpus = [name for name in gpu_names() if name in priced or "" in priced]
    free = not {"tensor_parallel_size", "pipeline_parallel_size"} & given.keys()
    given = {"gpu": gpus, **{name: value for name, value in given.items() if name != "gpu"}}
    found = planned({"gpu": gpus, "tensor_parallel_size": list(TENSOR), **given})
    fitting = {run.point.settings["gpu"] for run in found.runs if not run.reason}
    if free and (without := [gpu for gpu in gpus if gpu not in fitting]):
        stages = {"tensor_parallel_size": TENSOR[-1], "pipeline_parallel_size": list(PIPELINE)}
        more = planned({**given, **stages, "gpu": without})
        found = replace(found, points=[*found.points, *more.points], runs=[*found.runs, *more.runs])
    runs = [run for run in found.runs if not run.reason]
    if not runs:
        reasons = dict.fromkeys(run.reason for run in found.runs)
        raise KvsimError(f"gpu all: nothing fits, as in: {next(iter(reasons), 'no GPU has a price')}")
    points = {id(run.point): run.point for run in runs}
    return replace(found, points=list(points.values()), runs=runs)


def to_confirm(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Positions of the next systems to confirm, in rows sorted by cost; empty if no other can be cheaper.

    Each is compared only with systems on its own clock.
    """
    by_clock: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for place, row in enumerate(rows):
        by_clock.setdefault(clock_of(row), []).append((place, row))
    return [place for members in by_clock.values() for place in _to_confirm(members)]


def _to_confirm(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> list[int]:
    met = [(place, row) for place, row in rows if row["status"] == "met"]
    sure = [row["fleet_price_per_hour"] for _, row in met if not row["rough"]]
    if sum(not row["rough"] for _, row in rows) >= MOST_CONFIRMED:
        return []
    rough = [
        place for place, row in met if row["rough"] and (not sure or row["fleet_price_per_hour"] <= min(sure))
    ]
    return rough[:AT_ONCE]
