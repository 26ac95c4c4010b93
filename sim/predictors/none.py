"""None: all predictions are equal, so the order of arrival decides."""

from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request


class Nothing(Predictor):
    """Predicts the same for all answers."""

    def tokens(self, request: Request, generated: int) -> int:
        return self.longest
