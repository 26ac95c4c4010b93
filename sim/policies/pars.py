"""PARS: by a learned rank; requests that have waited too long go first.

    rank   3  9  1  7      served  1  3  7  9, and any request first after --starvation seconds

A rank is not a length: only the order of the predictions counts (`--predictor ranks:T`).

Source: Tao et al., PARS: low-latency LLM serving via pairwise learning-to-rank (arXiv 2510.03243): pairwise
ranks of output length, and a starvation guard that puts requests first that waited beyond a threshold. The
threshold is kvsim's.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.predicted import Predicting
from kvsim.sim.predictors.base import PredictorOptions
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class StarvationOptions(PredictorOptions):
    """When a waiting request goes first regardless of its rank."""

    starvation: float = option(
        "Seconds of waiting after which a request goes first.", default=60.0, value="S", above=0
    )


class Pars(Predicting):
    """Orders requests by rank, with a guard against starvation."""

    family = "predicted length"
    idea = "the lowest rank first; requests that waited too long go before all"
    needs = "a predictor"
    source = "PARS, arXiv 2510.03243"
    declares = StarvationOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._patience_ps = round(self.own(StarvationOptions).starvation * PS_PER_S)

    def key(self, request: Request, now_ps: int) -> tuple[int, int]:
        starves = now_ps >= request.arrival_ps + self._patience_ps
        return (0, 0) if starves else (1, self.said(request))

    def turns_ps(self, request: Request) -> int:
        return request.arrival_ps + self._patience_ps
