"""One search for the capacity of a system with one seed, wherever it is computed: a row comes out.

    settings, seed --> saturated once, for a start --> load after load, each in a steady state --> row

Every load is tried with the same seed, so with the same requests and the same gaps between them. A run is
made twice as long until it is long enough to judge (reports/sweeps/steady.py).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.reports.rundir.formats import plain
from kvsim.reports.sweeps.search import Found, Tried, search
from kvsim.reports.sweeps.steady import window
from kvsim.reports.sweeps.table import FAILED, FINISHED
from kvsim.reports.waiting import LIMITS
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB
from kvsim.sim.options.goals import Goals
from kvsim.sim.record.attainment import judged
from kvsim.sim.run import Outcome, Simulation
from kvsim.sweep_runs import prepared

USUAL_REQUESTS = 1000
MOST_REQUESTS = 64_000
LOADS = {"rate": "request_rate", "clients": "clients", "rate-scale": "rate_scale"}
"""What is sought -> the option that is varied."""

FINER = 10
"""How many times finer a search is that is compared with another of the same seed."""

MOST_CLIENTS = 100_000


@dataclass(frozen=True)
class Sought:
    """What is sought: `find` is one of LOADS, `tolerance` a share, `more_kv_gib` of each GPU beside."""

    find: str
    tolerance: float
    more_kv_gib: float = 0.0


def searched(
    settings: Mapping[str, Any], seed: int, goals: Goals, sought: Sought
) -> tuple[dict[str, Any], float]:
    """Find the capacity of a system: returns the row without its settings, and the CPU time in seconds."""
    begun_s = time.process_time()
    try:
        row = _searched(dict(settings), seed, goals, sought)
    except KvsimError as error:
        row = {"status": FAILED, "reason": str(error)}
    except Exception as error:
        row = {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}
    return row, time.process_time() - begun_s


def _searched(settings: dict[str, Any], seed: int, goals: Goals, sought: Sought) -> dict[str, Any]:
    load = LOADS[sought.find]
    settings = _drawn(settings, seed, goals, load)
    fine = sought.tolerance / FINER if sought.more_kv_gib else sought.tolerance
    found, gpus = _search(settings, seed, goals, load, fine)
    row = {"status": FINISHED, "reason": "", "gpus": gpus, **_told(found, load)}
    if sought.more_kv_gib and found.best is not None:
        larger = _with_more_kv(settings, seed, goals, sought.more_kv_gib)
        more, _ = _search(larger, seed, goals, load, fine, start=found.best.load)
        row["more_kv_load"] = None if more.best is None else more.best.load
    return row


def _search(  # noqa: PLR0917 - the parts of a search
    settings: dict[str, Any],
    seed: int,
    goals: Goals,
    load: str,
    tolerance: float,
    start: float | None = None,
) -> tuple[Found, int]:
    whole = load == "clients"
    gpus, first, least, most = _range(settings, seed, goals, load)

    def attempt(at: float) -> Tried:
        return _tried({**settings, load: int(at) if whole else at}, seed, goals, at)

    found = search(attempt, start or first, least=least, most=most, tolerance=tolerance, whole=whole)
    return found, gpus


def _range(settings: dict[str, Any], seed: int, goals: Goals, load: str) -> tuple[int, float, float, float]:
    """The GPUs, and the load to begin with, the least and the most to try.

    What the server does when all requests come at once is about the most that it can do.
    """
    if load == "rate_scale":
        return prepared(settings, seed, Goals()).gpus, 1.0, 1e-3, 1e6
    at_once = prepared({**settings, "request_rate": float("inf")}, seed, Goals())
    summary: Any = plain(at_once.outcome().summary)
    rate, running = summary["throughput"]["requests_per_s"], summary["engine"]["mean_running"]
    if not rate:
        raise KvsimError("no request finishes, so there is no load to look for")
    if load == "clients":
        return at_once.gpus, max(running or 1.0, 1.0), 1.0, MOST_CLIENTS
    return at_once.gpus, 0.7 * rate, rate / 1000, 4 * rate


def _tried(settings: dict[str, Any], seed: int, goals: Goals, load: float) -> Tried:
    """A load in its steady state: a run as long as it takes to judge it."""
    requests = int(settings.get("num_prompts") or USUAL_REQUESTS)
    while True:
        simulation = prepared({**settings, "num_prompts": requests}, seed, goals)
        outcome = simulation.outcome()
        steady = window(outcome.requests)
        summary: Any = plain(outcome.summary)
        overloaded = summary["load"]["overloaded"]
        enough = steady.long_enough and not steady.grows
        if overloaded or enough or 2 * requests > MOST_REQUESTS or not _longer(settings):
            break
        requests *= 2
    verdict: Any = _judged(simulation, outcome, steady.rows)
    ratios = [
        each["measured_s"] / each["limit_s"] if each["measured_s"] is not None else float("inf")
        for each in verdict["by_limit"].values()
    ]
    within = bool(verdict["met"]) and not overloaded and not steady.grows
    return Tried(load, within, max(ratios), _about(summary, verdict, requests, overloaded, steady.growth))


def _longer(settings: Mapping[str, Any]) -> bool:
    """Whether more requests may be drawn: of a part of a trace there are no more."""
    return settings.get("duration") is None


def _judged(simulation: Simulation, outcome: Outcome, rows: Any) -> dict[str, object]:  # noqa: ANN401
    """The goals, held against the requests of the window."""
    slo = simulation.goals.limits
    assert slo is not None
    part = {name: column[rows] for name, column in outcome.requests.items()}
    arrival_s = part["arrival_s"]
    span_s = float(arrival_s.max() - arrival_s.min())
    return judged(slo, part, span_s, simulation.gpus)


def _about(
    summary: Any,  # noqa: ANN401 - JSON
    verdict: Any,  # noqa: ANN401 - JSON
    requests: int,
    overloaded: bool,
    growth: float,
) -> dict[str, Any]:
    """What is told of a load: its latencies against their limits, what held requests back, what it made."""
    finished = summary["requests"]["finished"] or 1
    return {
        "requests": requests,
        "overloaded": overloaded,
        "growth": growth,
        "measured_s": {name: each["measured_s"] for name, each in verdict["by_limit"].items()},
        "missed": [name for name, each in verdict["by_limit"].items() if not each["met"]],
        "attained_share": verdict["attained_share"],
        "goodput_requests_per_s": verdict["goodput_requests_per_s"],
        "output_tokens_per_s": summary["throughput"]["output_tokens_per_s"],
        "tpot_p50_s": summary["latency"]["tpot_s"]["p50"],
        "mean_running": summary["engine"]["mean_running"],
        "recomputed_share": summary["engine"]["preemptions_recompute"] / finished,
        "held_back_share": {name: summary["load"]["held_back_share"][name] for name in LIMITS},
    }


def _told(found: Found, load: str) -> dict[str, Any]:
    """The row of a search: the load, what it makes, and why not more."""
    best, worst, closest = found.best, found.worst, found.closest
    return {
        "load": None if best is None else best.load,
        "tried": len(found.tried),
        "at_load": None if best is None else best.about,
        "above": None if worst is None else {"load": worst.load, **worst.about},
        "closest": {"load": closest.load, "excess": min(closest.excess, 1e9), **closest.about},
    }


def _drawn(settings: dict[str, Any], seed: int, goals: Goals, load: str) -> dict[str, Any]:
    """The settings with requests that each seed draws anew, where the trace allows it."""
    settings.setdefault("num_prompts", USUAL_REQUESTS)
    if load == "rate_scale" or "shuffle" in settings:
        return settings
    drawn = {**settings, "shuffle": True}
    try:
        prepared({**drawn, load: 1}, seed, goals)
    except KvsimError:
        return settings
    return drawn


def _with_more_kv(settings: dict[str, Any], seed: int, goals: Goals, gib: float) -> dict[str, Any]:
    """The settings with so many GiB of KV memory more on each GPU."""
    simulation = prepared(settings, seed, goals)
    server = simulation.scenario
    per_token = server.served_model.kv_bytes_per_token_per_gpu(server.tensor_parallel_size)
    more = int(gib * GIB // per_token)
    kept = {name: value for name, value in settings.items() if name not in ("num_gpu_blocks", "kv_tokens")}
    return {**kept, "kv_tokens": simulation.capacity.tokens + more}
