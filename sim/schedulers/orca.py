"""Orca: iteration-level scheduling over reserved memory (OSDI'22), the PagedAttention paper's baseline.

At every step admit from the head of the queue while a whole reservation fits and seats are left; a
request computes its whole prompt at once, beside the others' decodes, and keeps its reservation until
it ends. With an allocator that reserves, nobody is ever evicted; with one that grows on demand, the
latest admission makes room, as there is no other way.
"""

from sim.config import EngineConfig
from sim.schedulers.base import Scheduler
from sim.server import Server


class Orca(Scheduler):
    """First come first served, whole prompts, reservations held to the end."""

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self.refuse("watermark", "reserve_full_prompt", "enable_prefix_caching", "async_scheduling")
        self.refuse("num_cpu_blocks")
        self.only_recomputes()

    def schedule(self, server: Server) -> None:
        """Admit whole requests while they fit."""
        server.grow_due()
        if server.evicted:
            return
        seats = self.config.max_num_seqs - len(server.running)
        while server.waiting and seats > 0 and server.admit_head(server.waiting[0].known_tokens):
            seats -= 1
