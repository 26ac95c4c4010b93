"""Mixed continuous batching, as on the baseline machines of Splitwise: decodes beside whole prompts.

waiting     [ 700 | 1200 | 3000 ]     40 decode, budget 2,048
step 1      700 + 1200 + 40           whole prompts, as many as the budget has room for beside the decodes
step 2      3000                      a prompt that leaves them no room is computed alone: they pause
"""

from typing import ClassVar

from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.server import Server


class MixedBatching(Scheduler):
    """Whole prompts, first come first served; the budget limits what a step computes."""

    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)

    def schedule(self, server: Server) -> None:
        """Decode beside the prompts if the first prompt leaves room."""
        budget, waiting = self.config.max_num_batched_tokens, server.waiting
        prompts = bool(waiting) and len(server.running) < self.config.max_num_seqs
        if prompts and waiting[0].known_tokens + server.decoding > budget:
            if self._admit(server, budget):
                server.pause()
                return
            prompts = False
        server.grow_due()
        if prompts and not server.step.preemptions:
            self._admit(server, budget - server.decoding)

    def _admit(self, server: Server, budget: int) -> int:
        """Admit prompts up to the budget, or one longer prompt alone; returns their tokens."""
        admitted, waiting = 0, server.waiting
        while waiting and len(server.running) < self.config.max_num_seqs:
            tokens = waiting[0].known_tokens
            if (admitted and admitted + tokens > budget) or not server.admit_head(tokens):
                break
            admitted += tokens
        return admitted
