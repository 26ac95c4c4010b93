"""What a step of a server that speculates may still compute: tokens of its budget and of its input.

A separate draft model takes `slots` more of the input for each request (draft_records.py).
"""

from kvsim.sim.serving.draft_records import DraftRules
from kvsim.sim.serving.steps import Limits


class Budget:
    """The budgets of the step that is being decided."""

    def __init__(self, rules: DraftRules, limits: Limits) -> None:
        self._limits, self._slots, self._kept_back = limits, rules.slots, rules.kept_back
        self._tokens = self._input = 0

    def begin(self) -> None:
        """Nothing of a step is taken yet."""
        self._tokens = self._input = self._limits.budget

    def most(self) -> int:
        """Tokens that a request may have."""
        return min(self._tokens, self._input - self._slots)

    def share(self, requests: int) -> int:
        """Tokens that one of so many requests may have of a whole step."""
        limits = self._limits
        return limits.threshold if limits.threshold and requests > 1 else limits.budget

    def keep_back(self, left: int, tokens: int) -> int:
        """How many of `left` known tokens may be computed now, at most `tokens`."""
        kept_back = self._kept_back
        return max(left - kept_back, 0) if 0 < left - tokens < kept_back else tokens

    def take(self, tokens: int, requests: int = 1) -> None:
        """Each of these requests takes so many."""
        self._tokens -= requests * tokens
        self._input -= requests * (tokens + self._slots)

    def give_back(self, tokens: int) -> None:
        """A request does not take its tokens after all."""
        self._tokens += tokens
        self._input += tokens + self._slots
