"""Common to policies by predicted length: a predictor, and the predicted rest of an answer."""

from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import Policy
from kvsim.sim.predictors.base import PredictorOptions, predictor_of
from kvsim.sim.serving.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class Predicting(Policy):
    """Asks a predictor."""

    why: ClassVar[str] = "less is predicted of their answers"
    displaces_as: ClassVar[str] = "less is predicted of its answer"

    declares: ClassVar[type] = PredictorOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self.predictor = predictor_of(self.own(PredictorOptions).predictor, max_model_len)
        self._said: dict[Request, int] = {}  # asked once, unless the predictor moves

    def timeless(self) -> bool:
        return not self.predictor.moves

    def said(self, request: Request) -> int:
        """Predicted tokens of its answer."""
        if self.predictor.moves:
            return self.predictor.tokens(request, self.generated(request))
        found = self._said.get(request)
        if found is None:
            found = self._said[request] = self.predictor.tokens(request, self.generated(request))
        return found

    def left(self, request: Request) -> int:
        """Predicted tokens still to come."""
        return max(self.said(request) - self.generated(request), 0)

    def alike_steps(self) -> int:
        return 1 if self.preempts and self.predictor.moves else super().alike_steps()

    def finished(self, request: Request) -> None:
        self.predictor.finished(request)
        self._said.pop(request, None)
