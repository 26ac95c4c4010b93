"""Constant: every step takes the same time; for tests, and to compare schedules step by step."""

from collections.abc import Sequence
from math import isfinite
from typing import ClassVar

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S

LONGEST_STEP_S = 86_400


class Constant(CostModel):
    """Every step takes the same time, whatever it computes."""

    batches: ClassVar[str] = "any"

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> "Constant":
        """The model for `constant:SECONDS`."""
        try:
            seconds = float(argument)
        except ValueError as error:
            raise KvsimError(
                f"cost constant needs seconds, as in constant:0.03, got {deployment.cost!r}"
            ) from error
        return cls(seconds)

    def __init__(self, seconds: float) -> None:
        if not (isfinite(seconds) and 0 < seconds <= LONGEST_STEP_S) or round(seconds * PS_PER_S) < 1:
            raise KvsimError(
                f"cost constant must be at least 1e-12 s (1 ps) and at most {LONGEST_STEP_S} s, got {seconds}"
            )
        self.source = f"constant {seconds:g} s"
        self._ps = round(seconds * PS_PER_S)

    def step_ps(self, shape: StepShape) -> int:
        """The constant."""
        return self._ps

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """The constant, `steps` times."""
        return [self._ps] * steps
