"""Told: the trace's `predicted_tokens` for each answer; the longest if it has none."""

from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request


class Told(Predictor):
    """Reads the trace."""

    def tokens(self, request: Request, generated: int) -> int:
        told = request.facts.predicted_tokens
        return self.longest if told is None else max(told, 1)
