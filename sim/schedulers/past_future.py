"""Past-Future: LightLLM's admission with answer lengths expected from past answers (ASPLOS '25).

    past       the last 1,000 answers     |..::|||||||:::....|
    now        an answer has 40 tokens         '- drawn among those longer than 40
    future     the peak of all running requests (future_peak.py); admit while it fits

Each request has one random number between 0 and 1: its answer is expected to be at that quantile of the past
answers that are longer than it is so far. So the expectation changes as the answer grows and as others end.
Nothing else is random: the same seed gives the same run. Before any answer is known, and for answers longer
than all past ones, the longest possible answer is expected.

It admits more than `lightllm`, which always expects the longest answer, and pauses a request now and then.
"""

from bisect import bisect_right, insort
from collections import deque
from typing import ClassVar

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.schedulers.lightllm import LightLLM, WaitOptions
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server

PAST = 1000
"""Number of past answers remembered: the paper's window."""


def drawn(number: int) -> int:
    """A pseudorandom number below 2**64: splitmix64 of `number`."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return mixed ^ mixed >> 31


class PastFuture(LightLLM):
    """Admission by future peak, with answer lengths drawn from the past."""

    family: ClassVar[str] = "by turns"
    idea: ClassVar[str] = "as lightllm, with answers as long as earlier ones were"
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    declares = WaitOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def longest(self, server: Server, request: Request, generated: int, busy: bool) -> int:
        """At the request's quantile of the past answers that are longer than its own so far."""
        most = max(server.rules.bound(request) - request.prompt_tokens, generated)
        start = bisect_right(self._sorted, generated)
        longer = len(self._sorted) - start
        if not longer:
            return most
        return min(most, self._sorted[start + (drawn(request.own) * longer >> 64)])

    def finish(self, server: Server, request: Request) -> None:
        """Remember the answer's length."""
        if len(self._recent) == PAST:
            oldest = self._recent.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._recent.append(request.generated)
        insort(self._sorted, request.generated)
        super().finish(server, request)
