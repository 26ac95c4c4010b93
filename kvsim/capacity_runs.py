"""One search for the capacity of a system with one seed, wherever it is computed: a row comes out.

    settings, seed --> saturated once, for a start --> load after load, each in a steady state --> row

Every load is tried with the same seed, so with the same requests and the same gaps between them. A run is
made twice as long until it is long enough to judge (reports/sweeps/steady.py). A trace that comes at its own
times is sped up instead, and judged as a whole: it has no steady state, nor more requests than it has.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvsim.reports.rundir.formats import plain
from kvsim.reports.sweeps.assumed import assumed
from kvsim.reports.sweeps.search import Found, Tried, search
from kvsim.reports.sweeps.steady import everything, window
from kvsim.reports.sweeps.table import FAILED, FINISHED
from kvsim.reports.waiting import LIMITS
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB
from kvsim.sim.options.goals import Goals
from kvsim.sim.record.attainment import judged
from kvsim.sim.run import Outcome, Simulation
from kvsim.sim.workload import PS_PER_S
from kvsim.sweep_runs import drawn_anew, prepared, replays
from kvsim.workloads.lengths import FIRST_OF, REPEATED

USUAL_REQUESTS = 1000
MOST_REQUESTS = 64_000
LOADS = {"rate": "request_rate", "clients": "clients", "rate-scale": "rate_scale"}
"""What is sought -> the option that is varied; for its rate a trace at its own times is sped up."""

FINER = 10
"""How many times finer a search is that is compared with another of the same seed."""

CLOCK = ("clock", "profile", "date", "trust", "extrapolated_share")
"""What is told of the clock, of the section `cost` of a summary."""
MOST_CLIENTS = 100_000
LEAST_SPEED = 1e-3
AT_ONCE_S = 1e-3
"""A trace that is sped up until all of it comes within this time comes at once: no load is higher."""


@dataclass(frozen=True)
class Sought:
    """What is sought: `find` is one of LOADS, `tolerance` a share, `more_kv_gib` of each GPU beside."""

    find: str
    tolerance: float
    more_kv_gib: float = 0.0


class Load(NamedTuple):
    """The option that is varied, whether it is the speed of a trace, and the answer for 1 of it."""

    option: str
    replayed: bool
    unit: float = 1.0


def load_of(settings: Mapping[str, Any], find: str) -> str:
    """The option that is varied; KvsimError where such traffic has none."""
    own_times = find != "clients" and replays(settings)
    if find == "rate-scale" and not own_times:
        raise KvsimError("find must be rate or clients for requests that come at no trace's own times")
    return "rate_scale" if own_times else LOADS[find]


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
    option = load_of(settings, sought.find)
    settings, load = _replayed(settings, seed, sought.find) if option == "rate_scale" else (
        _drawn(settings, option), Load(option, replayed=False))  # fmt: skip
    fine = sought.tolerance / FINER if sought.more_kv_gib else sought.tolerance
    found, gpus = _search(settings, seed, goals, load, fine)
    row = {"status": FINISHED, "reason": "", "gpus": gpus, **_told(found, load)}
    if sought.more_kv_gib and found.best is not None:
        larger = _with_more_kv(settings, seed, goals, sought.more_kv_gib)
        more, _ = _search(larger, seed, goals, load, fine, start=found.best.load)
        row["more_kv_load"] = None if more.best is None else load.unit * more.best.load
    return row


def _search(  # noqa: PLR0917 - the parts of a search
    settings: dict[str, Any],
    seed: int,
    goals: Goals,
    load: Load,
    tolerance: float,
    start: float | None = None,
) -> tuple[Found, int]:
    whole = load.option == "clients"
    gpus, first, least, most = _range(settings, seed, load)

    def attempt(at: float) -> Tried:
        tried = {**settings, load.option: int(at) if whole else at}
        return _tried(tried, seed, goals, at, replayed=load.replayed)

    found = search(attempt, start or first, least=least, most=most, tolerance=tolerance, whole=whole)
    return found, gpus


def _range(settings: dict[str, Any], seed: int, load: Load) -> tuple[int, float, float, float]:
    """The GPUs, and the load to begin with, the least and the most to try.

    What the server does when all requests come at once is about the most that it can do.
    """
    if load.replayed:
        simulation = prepared(settings, seed, Goals())
        return simulation.gpus, 1.0, LEAST_SPEED, max(_span_s(simulation) / AT_ONCE_S, 1.0)
    drawn = {"arrivals": "gamma", "burstiness": None, "request_rate": float("inf")}
    drawn |= {"think_time": None} if load.option == "clients" else {}
    at_once = prepared({**settings, **drawn}, seed, Goals())
    summary: Any = plain(at_once.outcome().summary)
    rate, running = summary["throughput"]["requests_per_s"], summary["engine"]["mean_running"]
    if not rate:
        raise KvsimError("no request finishes, so there is no load to look for")
    if load.option == "clients":
        return at_once.gpus, max(running or 1.0, 1.0), 1.0, MOST_CLIENTS
    return at_once.gpus, 0.7 * rate, rate / 1000, 4 * rate


def _tried(settings: dict[str, Any], seed: int, goals: Goals, load: float, *, replayed: bool) -> Tried:
    """A load in its steady state: a run as long as it takes to judge it."""
    requests = settings["num_prompts"]
    while True:
        simulation = prepared({**settings, "num_prompts": requests}, seed, goals)
        outcome = simulation.outcome()
        steady = everything(outcome.requests) if replayed else window(outcome.requests)
        summary: Any = plain(outcome.summary)
        overloaded = summary["load"]["overloaded"]
        enough = steady.long_enough and not steady.grows
        if overloaded or enough or 2 * requests > MOST_REQUESTS:
            break
        requests *= 2
    verdict: Any = _judged(simulation, outcome, steady.rows)
    ratios = [
        each["measured_s"] / each["limit_s"] if each["measured_s"] is not None else float("inf")
        for each in verdict["by_limit"].values()
    ]
    within = bool(verdict["met"]) and not overloaded and not steady.grows
    about = _about(summary, verdict, overloaded, steady.growth)
    about["requests"] = len(simulation.engine.workload)
    about["requests_from"] = _from(simulation)
    about["assumed"] = assumed(simulation)
    return Tried(load, within, max(ratios), about)


def _from(simulation: Simulation) -> str:
    """Which requests of a trace they are where that is not simply its rows: a note of the workload's own."""
    notes = simulation.engine.workload.notes
    return next((note[:-1] for note in notes if REPEATED in note or FIRST_OF in note), "")


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
    overloaded: bool,
    growth: float,
) -> dict[str, Any]:
    """What is told of a load: its latencies against their limits, what held requests back, what it made."""
    finished = summary["requests"]["finished"] or 1
    return {
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
        "cost": {name: summary["cost"][name] for name in CLOCK},
    }


def _told(found: Found, load: Load) -> dict[str, Any]:
    """The row of a search: the load, what it makes, and why not more."""
    best, worst, closest, unit = found.best, found.worst, found.closest, load.unit
    return {
        "load": None if best is None else unit * best.load,
        "speed": best.load if best is not None and load.replayed else None,
        "tried": len(found.tried),
        "at_load": None if best is None else best.about,
        "above": None if worst is None else {"load": unit * worst.load, **worst.about},
        "closest": {"load": unit * closest.load, "excess": min(closest.excess, 1e9), **closest.about},
    }


def _replayed(settings: dict[str, Any], seed: int, find: str) -> tuple[dict[str, Any], Load]:
    """The settings with so many requests of the trace as a run may have, and what its own speed gives."""
    simulation = prepared(settings, seed, Goals())
    requests = min(len(simulation.engine.workload), MOST_REQUESTS)
    settings = {**settings, "num_prompts": requests}
    unit = 1.0
    if find == "rate":
        span_s = _span_s(prepared(settings, seed, Goals()))
        if not span_s:
            raise KvsimError("find must be clients for a trace whose requests all come at once")
        unit = requests / span_s
    return settings, Load("rate_scale", replayed=True, unit=unit)


def _span_s(simulation: Simulation) -> float:
    """From the first arrival to the last."""
    arrival_ps = simulation.engine.workload.arrival_ps
    return int(arrival_ps.max() - arrival_ps.min()) / PS_PER_S


def _drawn(settings: dict[str, Any], option: str) -> dict[str, Any]:
    """The settings with requests that each seed draws anew, where the trace allows it."""
    settings = {**settings, "num_prompts": settings.get("num_prompts") or USUAL_REQUESTS}
    drawn = drawn_anew({**settings, option: 1})
    return {name: value for name, value in drawn.items() if name != option}


def _with_more_kv(settings: dict[str, Any], seed: int, goals: Goals, gib: float) -> dict[str, Any]:
    """The settings with so many GiB of KV memory more on each GPU."""
    simulation = prepared(settings, seed, goals)
    server = simulation.scenario
    per_token = server.served_model.kv_bytes_per_token_per_gpu(server.tensor_parallel_size)
    more = int(gib * GIB // per_token)
    kept = {name: value for name, value in settings.items() if name not in ("num_gpu_blocks", "kv_tokens")}
    return {**kept, "kv_tokens": simulation.capacity.tokens + more}
