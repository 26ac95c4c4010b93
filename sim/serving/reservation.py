"""How many slots to reserve for a request whose answer's length is not known yet.

`max` is what real engines must do; `pow2` and `oracle` are the PagedAttention paper's better-informed
baselines; `predicted:MODEL` reserves what a predictor says (sim/deployment/prediction.py). A request whose
answer turns out longer leaves: its memory is freed, and it comes back with twice the reservation, as in S3,
and its text so far is recomputed. Allocators that grow on demand ignore the reservation.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvsim.sim.deployment.prediction import PREFIX, Predictor, predictor_named
from kvsim.sim.errors import unknown
from kvsim.sim.serving.request import Request


def _pow2(request: Request) -> int:
    return request.prompt_tokens + (1 << (request.output_tokens - 1).bit_length())


def _oracle(request: Request) -> int:
    return request.prompt_tokens + request.output_tokens


@dataclass(frozen=True)
class Predicted:
    """Reservations by prediction: the prompt and the predicted answer, doubled each time it was too short."""

    predictor: Predictor
    max_model_len: int

    def __call__(self, request: Request) -> int:
        """Slots for the next stay of a request: the answer is doubled for each stay that was too short."""
        return min(request.prompt_tokens + (self._answer(request) << request.outgrown), self.max_model_len)

    def at_last(self, request: Request) -> int:
        """Slots of the stay in which it finishes."""
        answer = self._answer(request)
        while answer < request.output_tokens:
            answer *= 2
        return min(request.prompt_tokens + answer, self.max_model_len)

    def _answer(self, request: Request) -> int:
        return self.predictor.tokens(request.index, request.output_tokens, self.max_model_len)


def reservation(policy: str, max_model_len: int) -> Callable[[Request], int]:
    """The policy as a function of a request; never more than `max_model_len` tokens."""
    if policy.startswith(PREFIX):
        return Predicted(predictor_named(policy.removeprefix(PREFIX)), max_model_len)
    policies: dict[str, Callable[[Request], int]] = {
        "max": lambda _: max_model_len,  # the model's longest sequence
        "pow2": lambda request: min(_pow2(request), max_model_len),  # the answer rounded up: 25 -> 32
        "oracle": _oracle,  # the true length, known only to an oracle
    }
    if policy not in policies:
        raise unknown("reserve", policy, list(policies))
    return policies[policy]
