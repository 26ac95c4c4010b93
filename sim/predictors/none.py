"""None: nothing is known, so all answers are alike, and who came first is first."""

from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request


class Nothing(Predictor):
    """Says the same of all."""

    def tokens(self, request: Request, generated: int) -> int:
        return self.longest
