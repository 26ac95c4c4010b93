"""One run of a sweep, in any process: takes settings, returns a row of the table.

    settings, seed --> a few hundred bytes to a worker --> the trace is read there, once --> row, CPU time

A worker caches the traces it has read and the servers it has looked up. If a run fails, its row has the
reason; a run that kills its worker is reported by the backend, see `lost`.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np

from kvsim.api import described
from kvsim.reports.rundir.formats import plain
from kvsim.reports.sweeps.table import FAILED, FINISHED, numbers
from kvsim.sim import __version__
from kvsim.sim.build import kept, resolve
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.record.instants import FEWEST_ROWS
from kvsim.sim.record.summary import Summary
from kvsim.sim.run import Simulation, defaults_told, prepare
from kvsim.sim.starts import starts_told
from kvsim.workloads.source import READING, Source, opened

Settings = Mapping[str, Any]

_SERVERS: dict[str, tuple[Deployment, str]] = {}


def carried_out(settings: Settings, seed: int, goals: Goals) -> tuple[dict[str, Any], float]:
    """Simulate one run.

    Parameters
    ----------
    settings : mapping
        Options of `kvsim.simulate`, without goals and seed.

    Returns
    -------
    The row without its settings, and the CPU time in seconds.
    """
    begun_s = time.process_time()
    try:
        simulation = prepared(settings, seed, goals)
        flat = Summary(plain(simulation.outcome().summary)).flat()
        row = {"status": FINISHED, "reason": "", "gpus": simulation.gpus, **numbers(flat)}
    except KvsimError as error:
        row = {"status": FAILED, "reason": str(error)}
    except Exception as error:
        row = {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}
    return row, time.process_time() - begun_s


def lost(by: str) -> tuple[dict[str, Any], None]:
    """The result of a run that killed its process: a row, not saved for the next command."""
    return {"status": FAILED, "reason": f"its process was ended by {by}, also when it ran alone"}, None


def prepared(settings: Settings, seed: int, goals: Goals) -> Simulation:
    """Prepare a run; KvsimError if it is impossible."""
    server, traffic, _ = described(None, None, dict(settings))
    deployment, _ = _deployed(server)
    source = _source(traffic).with_seed(seed)
    deployment, workload = deployment.with_seed(seed), source.workload()
    return prepare(deployment, workload, source.as_json(), goals=goals, timeline_rows=FEWEST_ROWS)


def defaults(each: Iterable[Settings]) -> list[str]:
    """Servers that vLLM would not start, and settings that are a release's defaults, in words."""
    found = [_deployed(described(None, None, dict(settings))[0])[0] for settings in each]
    pools = (pool for deployment in found for pool in resolve(deployment).every_pool)
    return [*starts_told(pools), *defaults_told(found)]


def checked(settings: Settings, goals: Goals) -> str:
    """Raise KvsimError for impossible settings; else return a digest of everything that affects the result.

    It covers the settings with all defaults resolved, the lengths of the trace, the goals and kvsim's
    version; random draws depend on the seed.
    """
    server, traffic, _ = described(None, None, dict(settings))
    deployment, digest = _deployed(server)
    for pool in deployment.every_pool:
        goals.price_of_server(pool.server)
    source = _source(traffic)
    trace = _drawn(traffic, 0)
    asked = {"workload": source.with_seed(0).as_json(), "goals": goals.as_json()}
    return _digest([__version__, digest, trace, asked])


def replays(settings: Settings) -> bool:
    """Whether requests arrive at times from a trace."""
    return _source(described(None, None, dict(settings))[1]).replays


def drawn_anew(settings: Settings) -> dict[str, Any]:
    """The settings with rows of the trace drawn again by each seed, unless set otherwise."""
    traffic = described(None, None, dict(settings))[1]
    drawn = _source(traffic).drawn_anew().traffic.shuffle
    return {**settings, **({"shuffle": True} if drawn else {})}


def seeds_differ(settings: Settings) -> bool:
    """Whether another seed may change the run; not if a trace fixes everything and nothing else is drawn."""
    server, traffic, _ = described(None, None, dict(settings))
    several = server.replicas > 1 or server.pool is not None
    drawn = several or traffic.beam_width > 1 or traffic.shared_prefix is not None
    return drawn or not _source(traffic).replays or len({_drawn(traffic, seed) for seed in (0, 1)}) > 1


def first_seed(settings: Settings) -> int:
    """The seed of a point's first run."""
    return int(settings.get("seed", Traffic().seed))


def forget() -> None:
    """Clear the caches, as files and classes may have changed."""
    _SERVERS.clear()
    _read.cache_clear()
    _drawable.cache_clear()


def _deployed(server: Scenario) -> tuple[Deployment, str]:
    """The servers with every name resolved, and a digest; cached for the next run."""
    known = _SERVERS.get(repr(server))
    if known is None:
        found = resolve(server.deployed())
        deployment = found.deployment
        for pool in found.every_pool:
            kept(pool.deployment, pool.scheduler)  # raises if nothing fits
        pools = [[pool.role, pool.replicas, pool.server.as_json()] for pool in deployment.pools]
        parts = [deployment.as_json(), deployment.fleet.as_json(), *pools]
        known = (deployment, _digest(plain(parts)))
        _SERVERS[repr(server)] = known
    return known


def _source(traffic: Traffic) -> Source:
    return Source(
        traffic, _read(Traffic(**{name: getattr(traffic, name) for name in ("trace", *READING)})).lengths
    )


@lru_cache(maxsize=8)
def _read(traffic: Traffic) -> Source:
    """Read a traffic's trace with no options applied, which takes longest."""
    return opened(traffic)


def _drawn(traffic: Traffic, seed: int) -> str:
    """Raise KvsimError unless requests can be drawn; else return a digest of a seed's requests."""
    return _drawable(replace(traffic, seed=seed))


@lru_cache(maxsize=4096)
def _drawable(traffic: Traffic) -> str:
    workload = _source(traffic).workload()
    columns = (workload.arrival_ps, workload.prompt_tokens, workload.output_tokens)
    return sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest()


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
