"""vLLM V1: decodes and prefill chunks share each step's token budget (0.33.0, prefix cache off).

1. Running requests first, in order of admission: one token each, or the next chunk of a prompt. Who
   finds no room evicts the *last* running request, which is recomputed later, from the head of the queue.
2. Then the queue, first come first served, unless anybody was evicted in this step: a request enters
   with as large a chunk as the budget has left, once the *whole* of it would fit. The first that does
   not fit blocks those behind it.

The budget is at least the number of sequences, so it always reaches every decode, and a prompt that
is not done is the only one and the last of `running`.
"""

from sim.config import EngineConfig
from sim.errors import KvsimError
from sim.request import State
from sim.schedulers.base import Scheduler
from sim.server import Server


class VllmV1(Scheduler):
    """Chunked prefill under a token budget, preemption by recomputation."""

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._budget = config.max_num_batched_tokens
        if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
            raise KvsimError(
                "max_num_batched_tokens must be at least max_model_len when chunked prefill is off "
                f"({max_model_len}), got {config.max_num_batched_tokens}"
            )

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
            chunk = min(known, budget)
            if chunk < known and not (self.config.enable_chunked_prefill and server.head_fits(known)):
                return
            if not server.admit_head(chunk):
                return
            budget -= chunk
            room -= 1
