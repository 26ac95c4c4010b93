"""One load of a capacity search: a run as long as it takes to judge it against the SLO.

    settings, seed, load --> run, doubled in length until it suffices --> its steady window --> Tried

All figures, tokens per second included, are of the window (reports/sweeps/steady.py). A trace with its own
arrival times is judged whole: it has no steady state and a fixed number of requests.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kvsim.commands.sweep_runs import prepared
from kvsim.reports.rundir.formats import plain
from kvsim.reports.sweeps.assumed import assumed
from kvsim.reports.sweeps.search import Tried
from kvsim.reports.sweeps.steady import everything, tells, window
from kvsim.reports.waiting import LIMITS
from kvsim.sim.deployment.host_memory import host_gib
from kvsim.sim.fleet_summary import FleetSummary
from kvsim.sim.options.goals import Goals
from kvsim.sim.record.attainment import judged
from kvsim.sim.record.slo import Slo
from kvsim.sim.record.stages import shares
from kvsim.sim.run import Simulation
from kvsim.sim.workload import PS_PER_S
from kvsim.workloads.lengths import FIRST_OF, REPEATED

CLOCK = ("clock", "profile", "date", "trust", "extrapolated_share", "validated")
"""The fields of a summary's section `cost` that describe the clock."""

Columns = Mapping[str, Any]


class Load(NamedTuple):
    """The option that is varied, and how.

    Attributes
    ----------
    most_requests : int
        The limit on a run's length, even if it does not suffice.
    replayed : bool
        Whether the option is the speed of a trace.
    unit : float
        The answer that corresponds to a value of 1 for the option.
    """

    option: str
    most_requests: int
    replayed: bool = False
    unit: float = 1.0


def tried(
    settings: Mapping[str, Any], seed: int, goals: Goals, at: float, load: Load, *, long: bool
) -> Tried:
    """Try a load in its steady state; `long`: in a run that is also long enough for the queue."""
    slo, requests = goals.limits, settings["num_prompts"]
    assert slo is not None
    while True:
        simulation = prepared({**settings, "num_prompts": requests}, seed, goals)
        outcome = simulation.outcome()
        steady = everything(outcome.requests) if load.replayed else window(outcome.requests)
        part = {name: column[steady.rows] for name, column in outcome.requests.items()}
        hardware = _hardware(simulation, part, bool(settings.get("pool")))
        span_s = float(part["arrival_s"].max() - part["arrival_s"].min())
        verdict: Any = judged(slo, part, span_s, hardware["gpus"])
        summary: Any = plain(outcome.summary)
        overloaded = summary["load"]["overloaded"]
        enough = steady.long_enough and not steady.grows
        enough = enough and not (long and _uncertain(slo, verdict, part))
        if overloaded or enough or load.replayed or 2 * requests > load.most_requests:
            break
        requests *= 2
    about = {
        "hardware": hardware,
        **_latencies(verdict, part),
        **_sides(slo, part),
        **_made(part, span_s, at if load.option == "request_rate" else None),
        **_server(simulation, summary),
        "overloaded": overloaded,
        "growth": steady.growth,
        "enough": enough,
        "requests": len(simulation.engine.workload),
    }
    within = bool(verdict["met"]) and not overloaded and not steady.grows
    return Tried(at, within, max(_excess(verdict).values()), about)


def _hardware(simulation: Simulation, part: Columns, pooled: bool) -> dict[str, Any]:
    """The GPUs billed during the window, of pools also of each kind; the host memory below them, if any.

    With replicas that come and go these are means, and `gpus_of_all` says how many GPUs there are at most.
    """
    deployment, arrival_s = simulation.deployment, part["arrival_s"]
    fleet = FleetSummary(simulation.engine, deployment, simulation.goals)
    billed = fleet.mean_replicas(*(round(end * PS_PER_S) for end in (arrival_s.min(), arrival_s.max())))
    below_gib, kinds = 0.0, dict[str, float]()
    for pool, replicas in zip(deployment.every_pool, billed, strict=True):
        server = pool.server
        kinds[server.gpu.name] = kinds.get(server.gpu.name, 0) + replicas * server.gpus
        below_gib += replicas * host_gib(server)
    return {
        "gpus": sum(kinds.values()),
        **({"gpus_of_all": simulation.gpus} if deployment.fleet.scale else {}),
        **({"gpus_by_kind": kinds} if pooled else {}),
        **({"host_gib": below_gib} if below_gib else {}),
    }


def _excess(verdict: Columns) -> dict[str, float]:
    """Each latency as a multiple of its limit; infinity if nothing finished."""
    measured = {name: (each["measured_s"], each["limit_s"]) for name, each in verdict["by_limit"].items()}
    return {
        name: float("inf") if found is None else found / limit for name, (found, limit) in measured.items()
    }


def _uncertain(slo: Slo, verdict: Columns, part: Columns) -> bool:
    """Whether the run is too short, given the queue, to tell how many requests miss the binding limit."""
    excess = _excess(verdict)
    limit = max(slo.limits, key=lambda each: excess[each.name])
    return limit.quantile is not None and not tells(part[limit.column], limit.quantile, limit.limit_s)


def _latencies(verdict: Columns, part: Columns) -> dict[str, Any]:
    """The latencies against their limits."""
    return {
        "measured_s": {name: each["measured_s"] for name, each in verdict["by_limit"].items()},
        "missed": [name for name, each in verdict["by_limit"].items() if not each["met"]],
        "attained_share": verdict["attained_share"],
        "goodput_requests_per_s": verdict["goodput_requests_per_s"],
        "tpot_p50_s": _median(part["tpot_s"]),
    }


def _sides(slo: Slo, part: Columns) -> dict[str, Any]:
    """For each limit, where the requests that miss it were, if prefill and decode are disaggregated."""
    found = {limit.name: shares(part, limit) for limit in slo.limits}
    return {"sides": found} if any(found.values()) else {}


def _median(column: Any) -> float | None:  # noqa: ANN401 - a column
    known = np.asarray(column, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else None


def _made(part: Columns, span_s: float, rate: float | None) -> dict[str, float | None]:
    """The window's throughput: requests per second as they arrive, or the rate they are drawn at."""
    per_s = rate if rate is not None else len(part["arrival_s"]) / span_s if span_s else None
    tokens = np.where(part["status"] != "rejected", part["output_tokens"], 0).mean()
    return {"requests_per_s": per_s, "output_tokens_per_s": None if per_s is None else per_s * float(tokens)}


def _server(simulation: Simulation, summary: Columns) -> dict[str, Any]:
    """The limits that held requests back in the whole run, the assumptions, and the clock."""
    finished = summary["requests"]["finished"] or 1
    notes = simulation.engine.workload.notes
    return {
        "mean_running": summary["engine"]["mean_running"],
        "recomputed_share": summary["engine"]["preemptions_recompute"] / finished,
        "held_back_share": {name: summary["load"]["held_back_share"][name] for name in LIMITS},
        "cost": {name: summary["cost"][name] for name in CLOCK},
        "requests_from": next((note[:-1] for note in notes if REPEATED in note or FIRST_OF in note), ""),
        "assumed": assumed(simulation),
    }
