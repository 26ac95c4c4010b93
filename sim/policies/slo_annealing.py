"""SLO annealing: waiting requests are put in the order predicted to meet most goals, by annealing.

    plan   D A C B      G = requests that meet their goals / sum of their latencies, as predicted
    swap   D C A B      better: kept; worse: kept with probability e^(-loss / temperature), which falls
    ...                 served in the best order found; requests that come meanwhile wait for the next plan

Source: Huang et al., SLO-aware scheduling for large language model inferences (arXiv 2504.14966), section 4:
simulated annealing over the priority sequence with the objective G = n / t, started from the sequences by
latency and by arrival; the temperature falls by 0.95. There batches follow each other, and their sizes are
annealed, too; here sim/policies/forecast.py evaluates an order, as batching is continuous.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappush
from math import exp
from random import Random

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.deadlines import DeadlineOptions
from kvsim.sim.policies.forecast import Forecast, Foreseen
from kvsim.sim.policies.predicted import Predicting
from kvsim.sim.policies.queue import Keys, Sorted
from kvsim.sim.predictors.base import PredictorOptions
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.queues import Queue
from kvsim.sim.serving.request import Request

COOLING = 0.95


@dataclass(frozen=True, kw_only=True)
class AnnealingOptions(DeadlineOptions, PredictorOptions):
    """How long it searches."""

    annealing_steps: int = option(
        "Orders tried for each plan.",
        default=200,
        value="N",
        least=0,
        most=100_000,
    )


class Planned(Sorted):
    """Requests in the order of a plan; later ones wait for the next plan, preempted ones go first."""

    def __init__(self, policy: Keys, plans: "SloAnnealing") -> None:
        super().__init__(policy)
        self._plans = plans

    def place(self) -> None:
        """Plan, once all requests of the previous plan are served."""
        if self._heap or not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        for place, request in enumerate(self._plans.plan(fresh)):
            self[request] = place
            self._heap.append((place, request.index, request.sample, place, request))
        heapify(self._heap)

    def appendleft(self, request: Request) -> None:
        """A preempted request goes before the plan."""
        self[request] = -1
        heappush(self._heap, (-1, request.index, request.sample, -1, request))

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        if request in self._fresh:
            self._fresh.remove(request)
            del self[request]
        else:
            super().remove(request)

    def __iter__(self) -> Iterator[Request]:
        self.place()
        return iter([*super().__iter__(), *self._fresh])


class SloAnnealing(Predicting):
    """Orders requests by a plan for the whole queue."""

    family = "deadlines"
    why = "the plan that meets most goals has them before"
    idea = "the order of the queue that is predicted to meet most goals, by simulated annealing"
    needs = "slo_ttft_s, slo_tpot_s or deadline_s; a predictor; step costs"
    source = "arXiv 2504.14966, section 4"
    declares = AnnealingOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(AnnealingOptions)
        self._steps, self._usual_ps = own.annealing_steps, round(own.usual_slo * PS_PER_S)
        self._random = Random(0)

    def queue(self) -> Queue:
        return Planned(self, self)

    def timeless(self) -> bool:
        return False

    def key(self, request: Request, now_ps: int) -> int:
        return 0

    def look(self) -> None:
        """Plan now, before anything asks for the head."""
        self.place()

    def plan(self, requests: list[Request]) -> list[Request]:
        """The best order that was found."""
        if len(requests) < 2:
            return requests
        forecast = Forecast(self)
        by_work = sorted(requests, key=lambda r: (self.left(r), r.index, r.sample))
        arrived = sorted(requests, key=lambda r: (r.index, r.sample))
        order = max(arrived, by_work, key=lambda order: self._worth(forecast, order))
        worth = most = self._worth(forecast, order)
        best, temperature, draw = order, 1.0, self._random
        for _ in range(self._steps):
            one, other = draw.randrange(len(order)), draw.randrange(len(order))
            tried = order.copy()
            tried[one], tried[other] = tried[other], tried[one]
            found = self._worth(forecast, tried)
            if found >= worth or draw.random() < exp((found / worth - 1) / temperature):
                order, worth = tried, found
                if worth > most:
                    best, most = order, worth
            temperature = max(temperature * COOLING, 1e-3)
        return best

    def _worth(self, forecast: Forecast, order: list[Request]) -> float:
        """G, with a millionth of a request for a plan that meets no goal."""
        met, spent_ps = 0, 1
        for foreseen in forecast.of(order):
            met += self._meets(foreseen, forecast.step_ps)
            spent_ps += foreseen.end_ps - foreseen.request.arrival_ps
        return (met + 1e-6) / spent_ps

    def _meets(self, foreseen: Foreseen, step_ps: int) -> bool:
        request, facts = foreseen.request, foreseen.request.facts
        if facts.deadline_ps is not None and foreseen.end_ps > request.arrival_ps + facts.deadline_ps:
            return False
        if facts.slo_tpot_ps is not None and step_ps > facts.slo_tpot_ps:
            return False
        goal_ps = facts.slo_ttft_ps
        if goal_ps is None and facts.deadline_ps is None:
            goal_ps = self._usual_ps
        return goal_ps is None or foreseen.first_ps <= request.arrival_ps + goal_ps
