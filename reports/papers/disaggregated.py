"""Separate prefill and decode servers compared with servers that do both, as in DistServe.

    attained    share of the requests whose first token is within `ttft` and whose others are within `tpot`
    goodput     the largest rate per GPU with 90 % attained, by the search of `sim capacity`
    scale       at the `rate` of the paper, the factor on both limits that is needed for 90 %

A run is as short as the paper's: `requests` requests per GPU, all of which count, including the warm-up.
It is repeated with several seeds. The first token of a disaggregated request is the prefill server's, as in
DistServe; everything after it, including the copy and the wait for a place, counts in TPOT.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvsim.reports.papers.declared import Table
from kvsim.reports.papers.prompts import computed_ps
from kvsim.reports.sweeps.search import Tried, search
from kvsim.sim.build import build_engine, engine_defaults
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.instants import FEWEST_ROWS
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S, Workload

GOAL = 0.9
TOLERANCE, LEAST, MOST = 0.05, 1 / 64, 16.0
"""Tolerance of the search; the range of rates that it tries, relative to the published one."""


@dataclass
class Attainment:
    """One system under one kind of traffic.

    Attributes
    ----------
    fleet : Deployment
    lengths : int64 array, shape (2, n)
        Tokens of prompts and of answers, from which requests are drawn.
    limits_s : (float, float)
        For the first token, and for each of the others.
    requests : int
        Requests per run and GPU.
    seeds : int
        Runs at each rate.
    heard : callable
        Called with the requests of each run when it is done.
    runs : int
        Runs done so far.
    """

    fleet: Deployment
    lengths: npt.NDArray[np.int64]
    limits_s: tuple[float, float]
    requests: int
    seeds: int
    heard: Callable[[int], None] = lambda _: None
    runs: int = 0

    def times(self, rate: float) -> npt.NDArray[np.float64]:
        """Each request's times relative to its limits, 1: just met, at a rate per GPU; shape (seeds, n)."""
        found = []
        for seed in range(self.seeds):
            gpus = self.fleet.all_gpus
            work = drawn(self.lengths, self.requests * gpus, rate * gpus, seed)
            result = build_engine(self.fleet, work, timeline_rows=FEWEST_ROWS).run()
            self.runs += 1
            self.heard(len(work))
            first = computed_ps(result)
            ttft_s = (first - result.arrival_ps) / PS_PER_S
            rest_s = (result.requests["finish_ps"] - first) / PS_PER_S
            tpot_s = np.where(result.output_tokens > 1, rest_s / np.maximum(result.output_tokens - 1, 1), 0.0)
            found.append(np.maximum(ttft_s / self.limits_s[0], tpot_s / self.limits_s[1]))
        return np.array(found)

    def attained(self, rate: float) -> float:
        """The share of the requests within both limits, at a rate per GPU."""
        return float((self.times(rate) <= 1).mean())

    def goodput(self, start: float) -> float | None:
        """The rate per GPU at which the goal is just met; None if no low rate meets it."""

        def attempt(rate: float) -> Tried:
            missed = (1 - self.attained(rate)) / (1 - GOAL)
            return Tried(rate, missed <= 1, missed)

        return search(
            attempt, start, least=start * LEAST, most=start * MOST, tolerance=TOLERANCE, factor=1.6
        ).edge

    def scale(self, rate: float) -> float:
        """The factor on both limits that is needed for the goal, at a rate per GPU."""
        return float(np.quantile(self.times(rate), GOAL))


def drawn(lengths: npt.NDArray[np.int64], count: int, rate: float, seed: int) -> Workload:
    """Requests of these lengths in random order, with Poisson arrivals."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.permutation(lengths.shape[1]) for _ in range(-(-count // lengths.shape[1]))])
    prompts, answers = lengths[:, rows[:count]]
    arrival_s = np.cumsum(rng.exponential(1 / rate, count))
    return Workload("lengths", (arrival_s * PS_PER_S).astype(np.int64), prompts, answers)


def attainment_of(
    arguments: Table,
    limits: Mapping[str, float],
    seeds: int,
    heard: Callable[[int], None] = lambda _: None,
) -> Attainment:
    """The attainment declared in a paper's files: `servers`, one for both roles or two, and a model."""
    servers = {role: _server(arguments, own) for role, own in arguments["servers"].items()}
    pools = tuple(Pool(role, role, 1, server) for role, server in servers.items())
    fleet = next(iter(servers.values()))
    if len(pools) > 1:
        fleet = replace(fleet, fleet=FleetConfig(replicas=len(pools)), pools=pools)
    lengths = np.array(arguments["lengths"], dtype=np.int64)
    return Attainment(fleet, lengths, (limits["ttft"], limits["tpot"]), arguments["requests"], seeds, heard)


def _server(whole: Table, own: Table) -> Deployment:
    model, engine = model_named(whole["model"]), {**whole["engine"], **own.get("engine", {})}
    settings = {**engine_defaults(engine["scheduler"], model.max_model_len), **engine}
    return Deployment(
        model=model,
        gpu=gpu_named(whole["gpu"]),
        tensor_parallel_size=own["tp"],
        pipeline_parallel_size=own.get("pp", 1),
        kv_tokens=own["kv_tokens"],
        cost=whole["cost"],
        engine=EngineConfig.of({**settings, "max_model_len": model.max_model_len}),
    )
