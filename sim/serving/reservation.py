"""How many slots to set aside for a request whose answer's length nobody knows yet.

`max` is what real engines must do; `pow2` and `oracle` are the PagedAttention paper's better-informed
baselines. Allocators that grow on demand ignore the reservation.
"""

from collections.abc import Callable

from kvsim.sim.errors import unknown
from kvsim.sim.serving.request import Request


def _pow2(request: Request) -> int:
    return request.prompt_tokens + (1 << (request.output_tokens - 1).bit_length())


def _oracle(request: Request) -> int:
    return request.prompt_tokens + request.output_tokens


def reservation(policy: str, max_model_len: int) -> Callable[[Request], int]:
    """The policy as a function of a request; never more than `max_model_len` tokens."""
    policies: dict[str, Callable[[Request], int]] = {
        "max": lambda _: max_model_len,  # the model's longest sequence
        "pow2": lambda request: min(_pow2(request), max_model_len),  # the answer rounded up: 25 -> 32
        "oracle": _oracle,  # the true length, known only to an oracle
    }
    if policy not in policies:
        raise unknown("reserve", policy, list(policies))
    return policies[policy]
