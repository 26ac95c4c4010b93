"""Which runs may be grouped: runs that differ only in the seed, and runs with the same traffic.

same_but_seed    config.json without the seed: such runs differ only by chance
traffic          the offered load: only such runs may be ranked, as more load alone gives more throughput
"""

import json
from collections.abc import Sequence

from kvsim.reports.grouping import by_key
from kvsim.reports.rundir.run import Run


def seed_of(run: Run) -> object:
    """The seed of a run's workload."""
    return run.workload.get("seed")


def traffic(run: Run) -> str:
    """All settings of a run's requests and arrivals, except the seed."""
    return json.dumps({**run.workload, "seed": None}, sort_keys=True)


def one_traffic(runs: Sequence[Run]) -> bool:
    """Whether all runs had the same traffic, so that they can be ranked."""
    return len({traffic(run) for run in runs}) <= 1


def same_but_seed(run: Run) -> str:
    """All settings except the seed, and the allocator's name in the summary."""
    allocator = run.summary["engine"].get("allocator", run.summary["label"])
    alike = {**run.config, "workload": {**run.workload, "seed": None}}
    return json.dumps([allocator, alike], sort_keys=True)


def by_seed(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of runs that differ only in the seed, in the order of their first runs.

    Runs that repeat a seed are not grouped: they are the same run, or differ in something not in config.json.
    """
    groups: list[list[Run]] = []
    for group in by_key(runs, same_but_seed).values():
        seeds = {json.dumps(seed_of(run)) for run in group}
        groups += [group] if len(seeds) == len(group) else [[run] for run in group]
    places = {id(run): place for place, run in enumerate(runs)}
    return sorted(groups, key=lambda group: places[id(group[0])])
