"""How many requests a cluster serves, as in Splitwise: nine percentiles of slowdowns, each within its limit.

    slowdown    the time to the first token, of each other token, or to the end, relative to that of the same
                request alone on the reference machine
    rate        the most requests per second with P50, P90 and P99 of each slowdown within its limit
    saturated   requests completed per second when more arrive than can be served
    alone       median times of requests that are served one at a time, in milliseconds

Prompts and answers are drawn independently, and arrivals are Poisson's. Where prompts have machines of their
own, these give the first token. The time per token is that of all but the first, divided by all, as in the
authors' simulator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvsim.reports.papers.declared import Table
from kvsim.reports.papers.prompts import computed_ps
from kvsim.reports.sweeps.search import Tried, search
from kvsim.sim.build import build_engine, engine_defaults
from kvsim.sim.cost.dgx import PS_PER_MS, Machine
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.instants import FEWEST_ROWS
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S, Clients, Workload

PERCENTILES = (0.5, 0.9, 0.99)
TOLERANCE, RANGE, FACTOR = 0.05, 8.0, 1.2
"""Tolerance of the search; the range of rates that it tries, relative to the first; its first step."""
ROUTER = "kvsim.sim.routers.shortest_queue:ShortestQueue"
Times = npt.NDArray[np.float64]


@dataclass
class Cluster:
    """A cluster under one kind of traffic.

    Attributes
    ----------
    fleet : Deployment
    reference : Machine
        Step times of the machine on which requests alone are the measure.
    lengths : (int64 array, int64 array)
        Tokens from which prompts and answers are drawn.
    warm_s : float
        Requests that arrive earlier do not count.
    tail_s : float
        Requests go on to arrive for so long after the last that counts: it ends among others.
    requests : int
        Requests per run that count.
    heard : callable
        Called with the requests of each run when it is done.
    runs : int
        Runs done so far.
    """

    fleet: Deployment
    reference: Machine
    lengths: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    warm_s: float
    tail_s: float
    requests: int
    heard: Callable[[int], None] = lambda _: None
    runs: int = 0

    def slowdowns(self, rate: float) -> Times:
        """To the first token, per token and to the end, at this many requests per second; shape (3, n)."""
        first = round(rate * self.warm_s)
        last = first + self.requests
        work = self._drawn(last + round(rate * self.tail_s), rate)
        times_ps = self._times(work)
        first_ps, token_ps = (
            np.array([price(tokens) for tokens in work.prompt_tokens.tolist()])
            for price in (self.reference.prompt_ps, self.reference.token_ps)
        )
        alone_ps = np.array([first_ps, token_ps, first_ps + token_ps * (work.output_tokens - 1)])
        return (times_ps / alone_ps)[:, first:last]

    def rate(self, limits: Mapping[str, Sequence[float]], start: float) -> tuple[float | None, list[Tried]]:
        """The most requests per second within the limits, None if no low rate is; and all rates tried."""

        def attempt(rate: float) -> Tried:
            found = np.quantile(self.slowdowns(rate), PERCENTILES, axis=1).T
            excess = found / np.array([limits[name] for name in ("ttft", "tbt", "e2e")])
            row, column = np.unravel_index(excess.argmax(), excess.shape)
            binds = f"{('TTFT', 'TBT', 'E2E')[row]} P{PERCENTILES[column] * 100:.0f}"
            return Tried(rate, bool(excess.max() <= 1), float(excess.max()), {"binds": binds})

        low, high = start / RANGE, start * RANGE
        found = search(attempt, start, least=low, most=high, tolerance=TOLERANCE, factor=FACTOR)
        return found.edge, sorted(found.tried, key=lambda each: each.load)

    def saturated(self, rate: float) -> float:
        """Requests completed per second, from the warm-up to the last arrival, if this many arrive."""
        work = self._drawn(round(rate * self.warm_s) + self.requests, rate)
        begin_ps, until_ps = self.warm_s * PS_PER_S, int(work.arrival_ps[-1])
        _, _, end_ps = self._run(work)
        completed = int(((end_ps >= begin_ps) & (end_ps < until_ps)).sum())
        return completed / (until_ps - begin_ps) * PS_PER_S

    def alone(self) -> list[float]:
        """Median milliseconds to the first token, per token and to the end of requests one at a time."""
        at_once = np.zeros(self.requests, dtype=np.int64)
        work = replace(self._drawn(self.requests, 1.0), arrival_ps=at_once, waits=Clients(1, at_once))
        return (np.median(self._times(work), axis=1) / PS_PER_MS).tolist()

    def _drawn(self, count: int, rate: float) -> Workload:
        rng = np.random.default_rng(0)
        prompts, answers = (rng.choice(tokens, count) for tokens in self.lengths)
        arrival_s = np.cumsum(rng.exponential(1 / rate, count))
        return Workload("lengths", (arrival_s * PS_PER_S).astype(np.int64), prompts, answers)

    def _times(self, work: Workload) -> Times:
        """To the first token, per token and to the end, in picoseconds; shape (3, n)."""
        arrival_ps, first_ps, end_ps = self._run(work)
        return np.array(
            [first_ps - arrival_ps, (end_ps - first_ps) / work.output_tokens, end_ps - arrival_ps]
        )

    def _run(self, work: Workload) -> npt.NDArray[np.int64]:
        """When each request arrives, has its first token, and ends; shape (3, n)."""
        result = build_engine(self.fleet, work, timeline_rows=FEWEST_ROWS).run()
        self.runs += 1
        self.heard(len(work))
        return np.array([result.arrival_ps, computed_ps(result), result.requests["finish_ps"]])


def cluster_of(
    arguments: Table,
    settings: Table,
    requests: int,
    heard: Callable[[int], None] = lambda _: None,
) -> Cluster:
    """The cluster declared in a paper's files: `machines` and `engines` by role; `settings` of its runs."""
    machines: Table = arguments["machines"]
    pools = tuple(
        Pool(role, role, own["count"], _server(arguments, role, own["gpu"], own["count"]))
        for role, own in machines.items()
    )
    fleet = pools[0].server
    if len(pools) > 1:
        fleet = replace(fleet, fleet=_fleet(sum(pool.replicas for pool in pools)), pools=pools)
    prompts, answers = (np.array(tokens, dtype=np.int64) for tokens in arguments["lengths"])
    around = settings["warm_s"], settings.get("tail_s", 0)
    reference = _server(arguments, "both", arguments["reference"], 1)
    return Cluster(fleet, Machine("batch", reference), (prompts, answers), *around, requests, heard)


def _fleet(machines: int) -> FleetConfig:
    return FleetConfig(replicas=machines, router=ROUTER) if machines > 1 else FleetConfig()


def _server(whole: Table, role: str, gpu: str, count: int) -> Deployment:
    engine, longest = whole["engines"][role], whole["max_model_len"]
    settings = {**engine_defaults(engine["scheduler"], longest), **engine, "max_model_len": longest}
    return Deployment(
        model=replace(model_named(whole["model"]), max_model_len=longest),
        gpu=gpu_named(gpu),
        tensor_parallel_size=8,
        kv_tokens=whole["kv_tokens"],
        cost=whole["cost"],
        fleet=_fleet(count),
        engine=EngineConfig.of(settings),
    )
