"""Constant: every answer is predicted to have `constant:N` tokens."""

from kvsim.sim.predictors.base import Predictor
from kvsim.sim.serving.request import Request


class Constant(Predictor):
    """Always predicts the same number."""

    form = "constant:N"

    def __init__(self, argument: str, longest: int) -> None:
        super().__init__(argument, longest)
        self._tokens = int(self.numbers(argument, (1, 1 << 30))[0])

    def tokens(self, request: Request, generated: int) -> int:
        return self._tokens
