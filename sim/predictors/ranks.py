"""Ranks: `ranks:T` orders answers by length with a Kendall tau of T, as a learned ranking does.

The prediction is the length times a lognormal error, whose width gives a Kendall tau of T. Two normal numbers
of correlation r have a tau of 2/pi asin(r); for lengths whose logarithm has a standard deviation of 1, nearly
as in chats, the error's is sqrt(1/r^2 - 1).
"""

from math import exp, pi, sin, sqrt

from kvsim.sim.predictors.base import Predictor, noise_of
from kvsim.sim.serving.request import Request

SCALE = 1 << 20
"""Scale of predictions: only their order matters, so this adds digits."""


class Ranks(Predictor):
    """Predicts which answers are longer; T from 0.05 to 1."""

    form = "ranks:T"

    def __init__(self, argument: str, longest: int) -> None:
        super().__init__(argument, longest)
        correlation = sin(pi * self.numbers(argument, (0.05, 1))[0] / 2)
        self._sigma = sqrt(max(1 / correlation**2 - 1, 0))

    def tokens(self, request: Request, generated: int) -> int:
        factor = exp(self._sigma * noise_of(request).gauss(0.0, 1.0))
        return max(1, round(request.output_tokens * factor * SCALE))
