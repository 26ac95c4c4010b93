"""A measured run replayed in the simulator: the same requests at the same times, with both sets of numbers.

MeasuredRun, Scenario --simulated--> Simulated --compared--> a row per quantity: measured, simulated
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvsim.sim.bench.compared import Compared
from kvsim.sim.bench.measured import (
    LATENCIES,
    PER_S,
    RATES,
    STATISTICS,
    Floats,
    Key,
    MeasuredRun,
    Requests,
    statistics_of,
)
from kvsim.sim.bench.workload import AS_MEASURED, MEASURED, Load, workload_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.record.metrics import Column
from kvsim.sim.run import Outcome, prepare
from kvsim.sim.workload import Int64Column

ORDER: tuple[Key, ...] = (
    *((what, PER_S) for what in RATES),
    *((what, statistic) for what in LATENCIES for statistic in STATISTICS),
)


@dataclass(frozen=True)
class Simulated:
    """A replayed run.

    Attributes
    ----------
    scenario : Scenario
        The server.
    outcome : Outcome
        What `sim run` would write.
    requests : Requests
        The served requests as a benchmark would see them, in the order of the workload.
    rows : int64 array
        Index of the measured request for each of them.
    places : int64 array
        Their rows in the tables of the outcome, which also has requests that the tool cut off.
    numbers : mapping of (what, statistic) to float
    """

    scenario: Scenario
    outcome: Outcome
    requests: Requests
    rows: Int64Column
    places: Int64Column
    numbers: Mapping[Key, float]

    @property
    def summary(self) -> Mapping[str, object]:
        """The numbers of the simulation, as in summary.json."""
        return self.outcome.summary

    def column(self, name: str) -> Floats:
        """A column of the request table, for served requests."""
        values: Floats = np.asarray(self.outcome.requests[name], dtype=np.float64)[self.places]
        return values


def simulated(run: MeasuredRun, scenario: Scenario, load: Load = AS_MEASURED) -> Simulated:
    """Simulate the run on this server, with requests as measured or by a given load.

    Raises
    ------
    KvsimError
        An impossible server or load, or a server that serves none of the requests.
    """
    workload = workload_of(run, load)
    outcome = prepare(scenario.deployed(), workload, {"trace": f"replay of {run.name}"}).outcome()
    table = outcome.requests
    measured = workload.labels.get(MEASURED, np.arange(len(workload))).astype(np.int64)
    places = np.flatnonzero((measured >= 0) & (table["status"] != "rejected")).astype(np.int64)
    rows = measured[places]
    if not len(rows):
        why = "; ".join(str(each) for each in _reasons(outcome))
        raise KvsimError(f"result {run.name}: the simulated server must take some request, got none ({why})")

    def column(name: str) -> Column:
        found: Column = table[name][places]
        return found

    requests = Requests(
        np.asarray(column("arrival_s"), dtype=np.float64),
        np.asarray(column("prompt_tokens"), dtype=np.int64),
        np.asarray(column("output_tokens"), dtype=np.int64),
        np.asarray(column("ttft_s"), dtype=np.float64),
        np.asarray(column("e2e_s"), dtype=np.float64),
    )
    gaps = {} if (measured < 0).any() else _itl(outcome)
    numbers = statistics_of(requests, None) | gaps
    return Simulated(scenario, outcome, requests, rows, places, numbers)


def compared(run: MeasuredRun, found: Simulated) -> list[Compared]:
    """Each number that both have, in table order."""
    measured = run.numbers()
    return [
        Compared(*key, measured[key], found.numbers[key])
        for key in ORDER
        if key in measured and key in found.numbers and measured[key] > 0
    ]


def pairs(run: MeasuredRun, found: Simulated) -> dict[str, tuple[Floats, Floats]]:
    """TTFT, TPOT and E2E of each request, measured and simulated; empty if only aggregates are known."""
    if run.requests is None:
        return {}
    real, rows = run.requests, found.rows
    return {
        "TTFT": (real.ttft_s[rows], found.requests.ttft_s),
        "TPOT": (real.tpot_s[rows], found.requests.tpot_s),
        "E2E": (real.e2e_s[rows], found.requests.e2e_s),
    }


def _itl(outcome: Outcome) -> dict[Key, float]:
    """All gaps between tokens, over all requests."""
    latency = outcome.summary["latency"]
    spread = latency["itl_s"] if isinstance(latency, dict) else {}
    return {("ITL", each): float(spread[each]) for each in STATISTICS if spread.get(each) is not None}


def _reasons(outcome: Outcome) -> list[str]:
    requests = outcome.summary["requests"]
    return list(requests["rejected_reasons"]) if isinstance(requests, dict) else []
