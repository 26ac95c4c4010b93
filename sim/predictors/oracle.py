"""Oracle: the true length, which no real predictor can know."""

from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request


class Oracle(Predictor):
    """Predicts the true length."""

    def tokens(self, request: Request, generated: int) -> int:
        return request.output_tokens
