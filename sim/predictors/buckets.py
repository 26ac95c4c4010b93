"""Buckets: `buckets:N:P` predicts one of N equal buckets, the right one with probability P, else a neighbour.

The prediction is the upper end of the bucket. S3 (Jin et al., NeurIPS '23) has 10, right for 98.61 % of
Alpaca's answers, 77.13 % of Natural Questions', 65.6 % of the Pile's.
"""

from kvsim.sim.deployment.prediction import Predictor as Said
from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request


class Buckets(Predictor):
    """Predicts the upper end of an answer's bucket."""

    form = "buckets:N:P"

    def __init__(self, argument: str, longest: int) -> None:
        super().__init__(argument, longest)
        buckets, accuracy = self.numbers(argument, (1, 1 << 20), (0, 1))
        self._said = Said(buckets=int(buckets), accuracy=accuracy)

    def tokens(self, request: Request, generated: int) -> int:
        return self._said.tokens(request.index, min(request.output_tokens, self.longest), self.longest)
