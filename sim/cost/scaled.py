"""A cost model with every step's time multiplied by a factor, as found by `sim replay --fit scale`.

step of the model    12.0 ms  12.1 ms  30.4 ms
x 1.08               13.0 ms  13.1 ms  32.8 ms
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

from kvsim.sim.cost.step_cost import CostModel, Spread, StepShape


class Scaled(CostModel):
    """Another model's times, each multiplied and rounded to a picosecond."""

    def __init__(self, inner: CostModel, factor: float) -> None:
        self._inner, self._factor = inner, factor
        self.source = f"{inner.source}, every step x {factor:.6g}"
        self.context_tile, self.flags = inner.context_tile, inner.flags

    @property
    def extrapolated_share(self) -> float:
        """Like the inner model's."""
        return self._inner.extrapolated_share

    def outside(self) -> list[str]:
        """What the inner model reports."""
        return self._inner.outside()

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Tell the inner model, in its own time."""
        self._inner.carried_out(shape, round(duration_ps / self._factor))

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Tell the inner model, in its own time, rounded step by step."""
        own = accumulate(round((later - before) / self._factor) for before, later in pairwise([0, *ends]))
        self._inner.span_carried_out(decode_seqs, context_tokens, list(own))

    def step_ps(self, shape: StepShape) -> int:
        """The inner model's duration, multiplied; at least 1 ps."""
        return self._scaled(self._inner.step_ps(shape))

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """The inner model's durations, each multiplied."""
        return [self._scaled(each) for each in self._inner.span_ps(decode_seqs, context_tokens, steps)]

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        """The inner model's steps, each multiplied, up to the first that ends at or after the limit."""
        room = int((limit_ps + steps) / self._factor) + 1  # rounding adds up to less than 1 ps per step
        inner = self._inner.span_ends(decode_seqs, context_tokens, steps, room, spread)
        ends = list(accumulate(self._scaled(later - before) for before, later in pairwise([0, *inner])))
        if ends[-1] > limit_ps:
            del ends[bisect_left(ends, limit_ps) + 1 :]
        return ends

    def _scaled(self, duration_ps: int) -> int:
        return max(round(self._factor * duration_ps), 1)
