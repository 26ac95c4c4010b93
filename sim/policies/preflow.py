"""PREFLOW: the least attention work first, weighted by age: 2^(age / D) / (P R).

    W(n) = n (n + 1) / 2     P = W(prompt) - W(cached when it came)     R = W(prompt) - W(computed)

A request twice as heavy in P R is passed by one that came D seconds later. All ages grow alike, so the order
of two requests stays: log2(P R) + arrival / D, the smallest first.

Source: vllm-project/vllm-ascend, pull 16360. There it also orders prompts that are under way; here it orders
waiting requests.
"""

from dataclasses import dataclass
from math import log2

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import Policy
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class PreflowOptions:
    """How age counts."""

    age_doubling: float = option(
        "Seconds in which the priority of a waiting request doubles.", default=1.0, value="S", above=0
    )


def work(tokens: int) -> int:
    """Pairs of tokens in attention over this many."""
    return tokens * (tokens + 1) // 2


class Preflow(Policy):
    """Orders requests by aged attention work."""

    family = "work to prefill"
    why = "less was to compute for them"
    idea = "the least attention work first, doubled by age"
    needs = "prefix hits"
    source = "vllm-ascend pull 16360"
    declares = PreflowOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._doubling_ps = self.own(PreflowOptions).age_doubling * PS_PER_S

    def timeless(self) -> bool:
        return not self.server.allocator.caches

    def key(self, request: Request, now_ps: int) -> float:
        cached = self.server.cached_tokens(request) if self.server.allocator.caches else 0
        whole = max(work(request.prompt_tokens) - work(cached), 1)
        left = max(work(request.known_tokens) - work(cached), 1)
        return log2(whole) + log2(left) + request.arrival_ps / self._doubling_ps
