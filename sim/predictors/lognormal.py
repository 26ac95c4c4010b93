"""Lognormal: `lognormal:S` is the true length times exp(S z), with a normal number z per request."""

from math import ceil, exp

from kvsim.sim.predictors.base import Predictor, noise_of
from kvsim.sim.serving.request import Request


class Lognormal(Predictor):
    """Errs by a factor; S is the standard deviation of its logarithm."""

    form = "lognormal:S"

    def __init__(self, argument: str, longest: int) -> None:
        super().__init__(argument, longest)
        self._sigma = self.numbers(argument, (0, 10))[0]

    def tokens(self, request: Request, generated: int) -> int:
        factor = exp(self._sigma * noise_of(request).gauss(0.0, 1.0))
        return min(self.longest, max(1, ceil(request.output_tokens * factor)))
