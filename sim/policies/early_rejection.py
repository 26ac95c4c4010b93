"""Early rejection: by arrival, but a request whose first token would come too late is refused immediately.

    now            |== A ==|== B ==|== C ==|        C's first token is due before: C is refused when it comes,
    due of C                    ^                   not after it has waited, or been computed in vain

Source: Qin et al., Mooncake (FAST '25), section 7, "early rejection based on prediction": a request whose
load, as predicted for the time at which it would be served, exceeds what the SLO allows is rejected as it
comes. There the loads of prefill and decode instances are predicted with one decode time for all; here
sim/policies/forecast.py says when its first token would come, by a predictor.
"""

from dataclasses import dataclass

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.deadlines import DeadlineOptions
from kvsim.sim.policies.forecast import Forecast
from kvsim.sim.policies.predicted import Predicting
from kvsim.sim.predictors.base import PredictorOptions
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request

REASON = "first token is predicted to come too late"


@dataclass(frozen=True, kw_only=True)
class RejectionOptions(DeadlineOptions, PredictorOptions):
    """The usual goal, and a predictor."""


class EarlyRejection(Predicting):
    """First come first served, or not at all."""

    family = "deadlines"
    idea = "by arrival; requests whose first token would come too late are refused"
    needs = "slo_ttft_s; a predictor; step costs"
    source = "Mooncake, FAST '25, section 7"
    declares = RejectionOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._usual_ps = round(self.own(RejectionOptions).usual_slo * PS_PER_S)
        self._new: list[Request] = []

    def timeless(self) -> bool:
        return False

    def key(self, request: Request, now_ps: int) -> int:
        return 0

    def waits(self, request: Request) -> None:
        if not request.preemptions:
            self._new.append(request)

    def look(self) -> None:
        """Judge requests that came since the last step, in order of arrival."""
        self.place()
        new, self._new = self._new, []
        refused: set[int] = set()
        for request in new:
            if request.index in refused:
                continue
            goal_ps = request.facts.slo_ttft_ps
            due_ps = request.arrival_ps + (self._usual_ps if goal_ps is None else goal_ps)
            foreseen = next(f for f in Forecast(self).of(self.server.waiting) if f.request is request)
            if foreseen.first_ps > due_ps:
                refused.add(request.index)
                self.refuse(request, REASON)
