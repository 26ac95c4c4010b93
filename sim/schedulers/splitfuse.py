"""SplitFuse: each step computes about the same number of tokens: decodes, then pieces of prompts.

    budget 8   |d|d|d|ppppp|       a long prompt is split over steps
               |d|d|d|pp|qqq|      its rest and a short one are combined
               |d|d|d|d|d|qqq|     only the last piece of a prompt generates

1. Decoding requests, one token each.
2. Prompts in progress, then the queue, in order: each takes what is left of the budget. A prompt enters
   only if all of it fits in the memory; the first that does not blocks those behind it.

Source: Holmes et al., DeepSpeed-FastGen (arXiv 2401.08671), section 3: "long prompts are decomposed", "short
prompts will be composed to exactly fill a target token budget"; deepspeedai/DeepSpeed-MII,
mii/batching/ragged_batching.py (`_do_schedule_requests`; 768 tokens, 512 sequences). In DeepSpeed-MII a
request without a free block stalls, and if none can continue, all are recomputed; here the request is
preempted.
"""

from collections.abc import Mapping
from typing import ClassVar

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import NO_ROOM
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import State
from kvsim.sim.serving.server import Server


class SplitFuse(Scheduler):
    """Steps of constant size."""

    family: ClassVar[str] = "pieces"
    idea: ClassVar[str] = "every step the same number of tokens: long prompts split, short ones put together"
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """As in DeepSpeed-MII."""
        return {"max_num_batched_tokens": 768, "max_num_seqs": 512}

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if not config.enable_chunked_prefill:
            raise KvsimError(
                "enable_chunked_prefill must be on for scheduler splitfuse, which splits prompts"
            )
        self.max_chunk = config.max_num_batched_tokens

    def schedule(self, server: Server) -> None:
        """Decode, continue prompts, admit."""
        server.grow_due()
        budget = self.config.max_num_batched_tokens - server.decoding
        if server.prefill_held:
            for request in list(server.running.values()):
                piece = min(request.known_tokens - request.computed, budget)
                if request.state is State.PREFILL and piece > 0 and server.continue_prefill(request, piece):
                    budget -= piece
        if server.step.preemptions:
            return
        while server.waiting and budget > 0 and len(server.running) < self.config.max_num_seqs:
            known = server.waiting[0].known_tokens
            piece = min(known, budget)
            if (piece < known and not server.head_fits(known)) or not server.admit_head(piece):
                return
            budget -= piece

    def held_back(self, server: Server) -> str:
        """Memory or seats are short, or the budget is used up."""
        return NO_ROOM if server.step.no_room else super().held_back(server)
