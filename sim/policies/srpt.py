"""SRPT: the fewest predicted tokens still to come go first, and displace requests with more to come.

    runs: 40 to come     comes: 10     the 10 run, then the 40: no request waits for a longer one

With one seat and true lengths no order has a smaller mean response time (Schrage and Miller 1966).
Predictions err, and recomputing costs: with `--srpt-limit C` no request is displaced that has more than the
share C of its predicted tokens, as in TRAIL.

Source: Schrage, A proof of the optimality of the shortest remaining processing time discipline (1968);
Shahout et al., Don't stop me now (TRAIL, arXiv 2410.01035): "limits preemption" to an age below C times the
predicted size.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.displacing import Displacing
from kvsim.sim.predictors.base import PredictorOptions
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class SrptOptions(PredictorOptions):
    """How far preemption goes."""

    srpt_limit: float = option(
        "Share of its predicted tokens after which a request is not displaced.",
        default=1.0,
        value="C",
        least=0,
        most=1,
    )


class Srpt(Displacing):
    """Orders requests by predicted tokens still to come, with preemption."""

    family = "predicted length"
    idea = "the fewest predicted remaining tokens first; displaces requests with more"
    needs = "a predictor"
    source = "Schrage 1968; TRAIL, arXiv 2410.01035"
    declares = SrptOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._limit = self.own(SrptOptions).srpt_limit

    def key(self, request: Request, now_ps: int) -> int:
        return self.left(request)

    def mark(self, request: Request) -> int | None:
        progress = self.server.progress
        return self.said(request) - self.generated(request) + progress.clock if request.is_decoding else None

    def marked_key(self, mark: int) -> int:
        return max(mark - self.server.progress.clock, 0)

    def displaceable(self, request: Request) -> bool:
        return self.generated(request) <= self._limit * self.said(request)
