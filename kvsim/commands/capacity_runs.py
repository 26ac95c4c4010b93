"""One capacity search, for one system and seed, in any process: it returns a row.

    settings, seed --> saturated once, for a start --> short runs, load after load --> about there
                   --> long runs from there on, with a fresh seed, up or down       --> row

Every load of a search is tried with the same seed, so with the same requests and the same gaps between them,
and at least as many as the loads before it needed. Among short runs the luckiest passes, so their answer is
too high near saturation. Runs that are long for the queue, with requests that did not take part in that
selection, confirm it or step down. A trace with its own arrival times is sped up instead, and judged as a
whole: there is nothing to confirm.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from kvsim.commands.capacity_loads import Load, tried
from kvsim.commands.sweep_runs import drawn_anew, prepared, replays
from kvsim.reports.rundir.formats import plain
from kvsim.reports.sweeps.search import FACTOR, Found, Tried, search
from kvsim.reports.sweeps.table import FAILED, FINISHED
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB
from kvsim.sim.options.goals import Goals
from kvsim.sim.run import Simulation
from kvsim.sim.workload import PS_PER_S

USUAL_REQUESTS = 1000
MOST_REPLAYED = 64_000
"""Requests used of a trace with its own arrival times: the first ones of a longer trace."""
LONGER, LONGEST = 4, 64
"""Length of a confirming run as a multiple of the usual requests: at least, at most."""
ROUGH = 0.05
FRESH = 1 << 20
"""Added to a seed for the confirming runs."""
LOADS = {"rate": "request_rate", "clients": "clients", "rate-scale": "rate_scale"}
"""What is sought -> the option that is varied; a trace with its own arrival times is sped up instead."""

FINER = 10
"""How many times finer a search is if it is compared with another of the same seed."""

MOST_CLIENTS = 100_000
LEAST_SPEED = 1e-3
AT_ONCE_S = 1e-3
"""A trace sped up until all of it arrives within this time arrives at once: no load is higher."""


@dataclass(frozen=True)
class Sought:
    """What is sought: `find` is one of LOADS, `tolerance` a share, `more_kv_gib` extra memory per GPU.

    `rough`: short runs only, five per cent apart, whose answer is too high near saturation. `fleet_rate`:
    the load that equal servers carry together; capacity beyond one server's share is not sought.
    """

    find: str
    tolerance: float
    more_kv_gib: float = 0.0
    rough: bool = False
    fleet_rate: float | None = None

    def most(self, load: float, misses: float) -> float:
        """The highest load to try: a server's share of the fleet's, if no server carries load `misses`."""
        if self.fleet_rate is None:
            return load
        return min(load, self.fleet_rate / ceil(self.fleet_rate / misses))


def load_of(settings: Mapping[str, Any], find: str) -> str:
    """The option that is varied; KvsimError if such traffic has none."""
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
    replayed = option == "rate_scale"
    if replayed:
        settings, load = _replayed(settings, seed, sought.find)
    else:
        settings = _drawn(settings, option)
        load = Load(option, LONGEST * settings["num_prompts"])
    fine = sought.tolerance / FINER if sought.more_kv_gib else sought.tolerance
    first, least, most = _range(settings, seed, load)
    most = sought.most(most * load.unit, most * load.unit) / load.unit
    short: dict[str, Any] = {"goals": goals, "load": load, "bounds": (first, least, most)}
    rough = sought.rough or (sought.fleet_rate is not None and not replayed)
    found = _search(
        settings, seed, **short, tolerance=ROUGH if rough else fine if replayed else sought.tolerance
    )
    if found.best is not None and not replayed and not sought.rough:
        most = most if found.worst is None else sought.most(most, found.worst.load)
        short["bounds"] = (first, least, most)
        settings = {**settings, "num_prompts": LONGER * settings["num_prompts"]}
        seed += FRESH
        from_there = {**short, "start": found.best.load, "factor": 1 + 2 * sought.tolerance, "long": True}
        found = _search(settings, seed, **from_there, tolerance=fine)
    row = {
        "status": FINISHED,
        "reason": "",
        "rough": sought.rough,
        **_told(found, load),
    }
    if sought.more_kv_gib and found.best is not None:
        larger = _with_more_kv(settings, seed, goals, sought.more_kv_gib)
        beside = {**short, "start": found.best.load, "long": not replayed}
        more = _search(larger, seed, **beside, tolerance=fine)
        row["more_kv_load"] = None if more.best is None else load.unit * more.best.load
    return row


def _search(
    settings: dict[str, Any],
    seed: int,
    *,
    goals: Goals,
    load: Load,
    bounds: Sequence[float],
    tolerance: float,
    start: float | None = None,
    factor: float = FACTOR,
    long: bool = False,
) -> Found:
    whole, requests = load.option == "clients", settings["num_prompts"]
    first, least, most = bounds

    def attempt(at: float) -> Tried:
        nonlocal requests
        asked = {**settings, "num_prompts": requests, load.option: int(at) if whole else at}
        found = tried(asked, seed, goals, at, load, long=long)
        requests = max(requests, found.about["requests"])
        return found

    return search(
        attempt, start or first, factor=factor, least=least, most=most, tolerance=tolerance, whole=whole
    )


def _range(settings: dict[str, Any], seed: int, load: Load) -> tuple[float, float, float]:
    """The first, the least and the most load to try.

    The throughput when all requests arrive at once is about the most that a server can do.
    """
    if load.replayed:
        simulation = prepared(settings, seed, Goals())
        return 1.0, LEAST_SPEED, max(_span_s(simulation) / AT_ONCE_S, 1.0)
    drawn = {"arrivals": "gamma", "burstiness": None, "request_rate": float("inf")}
    drawn |= {"think_time": None} if load.option == "clients" else {}
    at_once = prepared({**settings, **drawn}, seed, Goals())
    summary: Any = plain(at_once.outcome().summary)
    rate, running = summary["throughput"]["requests_per_s"], summary["engine"]["mean_running"]
    if not rate:
        raise KvsimError("no request finishes, so there is no load to look for")
    if load.option == "clients":
        return max(running or 1.0, 1.0), 1.0, MOST_CLIENTS
    return 0.7 * rate, rate / 1000, 4 * rate


def _told(found: Found, load: Load) -> dict[str, Any]:
    """The row of a search: the load, its GPUs and results, and why not more."""
    best, worst, closest, unit = found.best, found.worst, found.closest, load.unit
    return {
        **(best or closest).about["hardware"],
        "load": None if best is None else unit * best.load,
        "edge": None if found.edge is None else unit * found.edge,
        "at_least": found.at_least,
        "speed": best.load if best is not None and load.replayed else None,
        "tried": len(found.tried),
        "at_load": None if best is None else best.about,
        "above": None if worst is None else {"load": unit * worst.load, **worst.about},
        "closest": {"load": unit * closest.load, "excess": min(closest.excess, 1e9), **closest.about},
    }


def _replayed(settings: dict[str, Any], seed: int, find: str) -> tuple[dict[str, Any], Load]:
    """The settings with as many requests of the trace as a run may have, and the load at its own speed."""
    simulation = prepared(settings, seed, Goals())
    requests = min(len(simulation.engine.workload), MOST_REPLAYED)
    settings = {**settings, "num_prompts": requests}
    unit = 1.0
    if find == "rate":
        span_s = _span_s(prepared(settings, seed, Goals()))
        if not span_s:
            raise KvsimError("find must be clients for a trace whose requests all come at once")
        unit = requests / span_s
    return settings, Load("rate_scale", requests, replayed=True, unit=unit)


def _span_s(simulation: Simulation) -> float:
    """From the first arrival to the last."""
    arrival_ps = simulation.engine.workload.arrival_ps
    return int(arrival_ps.max() - arrival_ps.min()) / PS_PER_S


def _drawn(settings: dict[str, Any], option: str) -> dict[str, Any]:
    """The settings with requests that each seed draws anew, if the trace allows it."""
    settings = {**settings, "num_prompts": settings.get("num_prompts") or USUAL_REQUESTS}
    drawn = drawn_anew({**settings, option: 1})
    return {name: value for name, value in drawn.items() if name != option}


def _with_more_kv(settings: dict[str, Any], seed: int, goals: Goals, gib: float) -> dict[str, Any]:
    """The settings with `gib` GiB more KV memory on each GPU."""
    simulation = prepared(settings, seed, goals)
    server = simulation.deployment
    per_token = server.served_model.kv_bytes_per_token_per_gpu(server.tensor_parallel_size)
    more = int(gib * GIB // per_token)
    kept = {name: value for name, value in settings.items() if name not in ("num_gpu_blocks", "kv_tokens")}
    return {**kept, "kv_tokens": simulation.capacity.tokens + more}
