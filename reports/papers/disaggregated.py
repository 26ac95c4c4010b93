"""Prefill and decode on servers of their own beside servers that do both, as DistServe compares them.

    attained    share of the requests whose first token is within `ttft` and whose others are within `tpot`
    goodput     the largest rate per GPU with 90 % attained, by the search of `sim capacity`
    scale       at the `rate` of the paper, how many times both limits must be for 90 %

A run is as short as the paper's: so many requests for each GPU, all of which count, those of the warm-up too.
It is repeated with several seeds. The first token of a prompt that was computed apart is that of the prefill
server, as DistServe gives it; what comes behind it, the copy and the wait for a place too, is in TPOT.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvsim.reports.papers.declared import Table
from kvsim.reports.sweeps.search import Tried, search
from kvsim.sim.build import build_engine, engine_defaults
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S, Workload

GOAL = 0.9
TOLERANCE, LEAST, MOST = 0.05, 1 / 64, 16.0
"""Of the search; the rates that it tries, of the one that was published."""


@dataclass
class Attainment:
    """One system under one kind of traffic.

    Attributes
    ----------
    fleet : Deployment
    lengths : int64 array, shape (2, n)
        Tokens of prompts and of answers, of which requests are drawn.
    limits_s : (float, float)
        Of the first token, and of each of the others.
    requests : int
        Of a run, for each GPU.
    seeds : int
        Runs at each rate.
    heard : callable
        Is told the requests of each run when it is done.
    runs : int
        That were done.
    """

    fleet: Deployment
    lengths: npt.NDArray[np.int64]
    limits_s: tuple[float, float]
    requests: int
    seeds: int
    heard: Callable[[int], None] = lambda _: None
    runs: int = 0

    def times(self, rate: float) -> npt.NDArray[np.float64]:
        """By how much each request exceeds its limits, 1: not at all, at a rate per GPU; shape (seeds, n)."""
        found = []
        for seed in range(self.seeds):
            gpus = self.fleet.all_gpus
            work = drawn(self.lengths, self.requests * gpus, rate * gpus, seed)
            result = build_engine(self.fleet, work).run()
            self.runs += 1
            self.heard(len(work))
            first = (
                result.requests["first_token_ps"]
                if result.stages is None
                else result.stages["prompt_computed_ps"]
            )
            ttft_s = (first - result.arrival_ps) / PS_PER_S
            rest_s = (result.requests["finish_ps"] - first) / PS_PER_S
            tpot_s = np.where(result.output_tokens > 1, rest_s / np.maximum(result.output_tokens - 1, 1), 0.0)
            found.append(np.maximum(ttft_s / self.limits_s[0], tpot_s / self.limits_s[1]))
        return np.array(found)

    def attained(self, rate: float) -> float:
        """The share of the requests within both limits, at a rate per GPU."""
        return float((self.times(rate) <= 1).mean())

    def goodput(self, start: float) -> float | None:
        """The rate per GPU at which the goal is just met; None where no low rate meets it."""

        def attempt(rate: float) -> Tried:
            missed = (1 - self.attained(rate)) / (1 - GOAL)
            return Tried(rate, missed <= 1, missed)

        return search(
            attempt, start, least=start * LEAST, most=start * MOST, tolerance=TOLERANCE, factor=1.6
        ).edge

    def scale(self, rate: float) -> float:
        """How many times both limits must be for the goal, at a rate per GPU."""
        return float(np.quantile(self.times(rate), GOAL))


def drawn(lengths: npt.NDArray[np.int64], count: int, rate: float, seed: int) -> Workload:
    """Requests of these lengths in any order, that come at random."""
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
    """What the files of a paper say: `servers`, one of role both or two, of a `model` on a `gpu`."""
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
