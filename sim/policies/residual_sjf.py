"""Residual SJF: the fewest prompt blocks to compute first; returned or long-waiting requests before all.

    prompt 900, cached 880: 2 blocks      prompt 100, nothing cached: 7 blocks      the long one goes first

Preempted requests come first, then those that have waited for `--aging` seconds, both by arrival; then by
blocks that are not cached when the request comes, of equals the first to arrive.

Source: vllm-project/vllm, pull 51375 (`residual_sjf_max_wait_ms`, by default 10 s). There the cache is looked
at in each step.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import Policy
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class AgingOptions:
    """When a waiting request goes first regardless of its blocks."""

    aging: float = option(
        "Seconds of waiting after which a request is served in order of arrival.",
        default=10.0,
        value="S",
        least=0,
    )


class ResidualSjf(Policy):
    """Orders requests by blocks to compute."""

    family = "work to prefill"
    why = "less was to compute for them"
    idea = "the fewest uncached prompt blocks first; returned or long-waiting requests go before all"
    needs = "prefix hits"
    source = "vllm pull 51375"
    declares = AgingOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._patience_ps = round(self.own(AgingOptions).aging * PS_PER_S)
        self._blocks: dict[Request, int] = {}

    def timeless(self) -> bool:
        return not self.server.allocator.caches

    def waits(self, request: Request) -> None:
        cached = self.server.cached_tokens(request) if self.server.allocator.caches else 0
        size = self.config.block_size
        self._blocks[request] = request.prompt_tokens // size - cached // size

    def key(self, request: Request, now_ps: int) -> tuple[int, int]:
        if request.preemptions:
            return 0, 0
        if now_ps >= request.arrival_ps + self._patience_ps:
            return 1, 0
        return 2, self._blocks[request]

    def turns_ps(self, request: Request) -> int:
        return request.arrival_ps + self._patience_ps

    def entered(self, request: Request) -> None:
        del self._blocks[request]
