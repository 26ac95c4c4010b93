"""Oracle: the true length, which nobody can know."""

from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request


class Oracle(Predictor):
    """Says what will be."""

    def tokens(self, request: Request, generated: int) -> int:
        return request.output_tokens
