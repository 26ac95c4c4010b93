"""vLLM V1: decodes and prefill chunks share each step's token budget (prefix cache off).

1. Running requests first, in order of admission: one token each, or the next chunk of a prompt. Who
   finds no room evicts the *last* running request, which is recomputed later, from the head of the queue.
2. Then the queue, first come first served, unless anybody was evicted in this step: a request enters
   with as large a chunk as the budget has left, if it fits. The first that does not blocks those behind.

The budget is at least the number of sequences, so it always reaches every decode, and a prompt that
is not done is the only one and the last of `running`.

Releases differ in `Policy`. Versions: 0.11.0; 0.33.0, the default.
"""

from dataclasses import dataclass
from typing import ClassVar

from sim.config import EngineConfig
from sim.errors import KvsimError
from sim.request import State
from sim.schedulers.base import Scheduler
from sim.server import Server


@dataclass(frozen=True)
class Policy:
    """Where releases of vLLM V1 differ."""

    reserve_full_prompt: bool
    """admit a request only when all of it fits, not just its first chunk"""
    freed_first: bool
    """lend the blocks freed last before all others, or after them"""
    has_switches: bool
    """whether the rule above can be switched, and a watermark be set"""


POLICIES = {
    "0.11.0": Policy(reserve_full_prompt=False, freed_first=False, has_switches=False),
    "0.33.0": Policy(reserve_full_prompt=True, freed_first=True, has_switches=True),
}


class VllmV1(Scheduler):
    """Chunked prefill under a token budget, preemption by recomputation."""

    VERSIONS: ClassVar[tuple[str, ...]] = tuple(POLICIES)

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
            raise KvsimError(
                "max_num_batched_tokens must be at least max_model_len when chunked prefill is off "
                f"({max_model_len}), got {config.max_num_batched_tokens}"
            )
        policy = POLICIES[self.version]
        if not policy.has_switches:
            self.refuse("watermark", "reserve_full_prompt")
        self.freed_first = policy.freed_first
        self._budget = config.max_num_batched_tokens
        self._whole = policy.reserve_full_prompt
        if config.reserve_full_prompt is not None:
            self._whole = config.reserve_full_prompt

    def schedule(self, server: Server) -> None:
        """Grow the running requests, then admit within the token budget."""
        server.grow_due()
        budget = self._budget - server.decoding
        if server.prefill_held:
            budget -= self._continue_last(server, budget)
        if server.waiting and not server.evicted:
            self._admit(server, budget)

    def _continue_last(self, server: Server, budget: int) -> int:
        request = next(reversed(server.running.values()))
        chunk = min(request.known_tokens - request.computed, budget)
        if request.state is not State.PREFILL or chunk < 1:
            return 0
        return chunk if server.continue_prefill(request, chunk) else 0

    def _admit(self, server: Server, budget: int) -> None:
        waiting, room = server.waiting, self.config.max_num_seqs - len(server.running)
        while waiting and budget > 0 and room > 0:
            known = waiting[0].known_tokens
            chunk = known if known < budget else budget
            if chunk < known and not self.config.enable_chunked_prefill:
                return
            needed = known if self._whole else chunk
            if needed > chunk and not server.head_fits(needed):
                return
            if self.config.watermark and not server.head_leaves(needed, self.config.watermark):
                return
            if not server.admit_head(chunk):
                return
            budget -= chunk
            room -= 1
