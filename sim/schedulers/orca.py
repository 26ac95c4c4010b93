"""Orca: iteration-level scheduling over reserved memory (OSDI'22), the PagedAttention paper's baseline.

At every step, admit from the head of the queue while a whole reservation fits and seats are left. A request
computes its whole prompt in one step, beside the others' decodes, and keeps its reservation until it ends.
With an allocator that reserves, nothing is ever evicted; with one that grows on demand, the latest admission
is evicted to make room.

Versions: sosp23, as in the PagedAttention paper: the answers to a prompt enter together, or, if they would
not fit even an empty arena, one by one while nothing runs; osdi22, the default: one by one.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


@mypyc_attr(allow_interpreted_subclasses=True)
class Orca(Scheduler):
    """First come first served, whole prompts, reservations kept to the end."""

    family: ClassVar[str] = "whole prompts"
    idea: ClassVar[str] = "a request whose reservation fits enters with its whole prompt"
    VERSIONS: ClassVar[tuple[str, ...]] = ("sosp23", "osdi22")
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._together = self.version == "sosp23"
        if self._together and config.policy != "fcfs":  # answers that enter together stay adjacent
            self._refuse("policy", config.policy)

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server; answers that enter together need an allocator that reserves."""
        if self._together and not allocator.reserves:
            raise KvsimError(
                f"allocator must reserve for scheduler {self.config.scheduler}, got {self.config.allocator}"
            )
        return super().new_server(allocator, bound)

    def schedule(self, server: Server) -> None:
        """Admit whole requests while they fit."""
        server.grow_due()
        if server.step.preemptions:
            return
        seats = self.config.max_num_seqs - len(server.running)
        while server.waiting and seats > 0:
            entering = self._entering(server, seats) if self._together else 1
            for _ in range(entering):
                if not server.admit_head(server.waiting[0].known_tokens):
                    return
            if not entering:
                return
            seats -= entering

    def _entering(self, server: Server, seats: int) -> int:
        """How many enter next: all answers to the prompt at the head, or none; one if nothing runs."""
        prompt = server.waiting[0].index
        answers = sum(1 for _ in takewhile(lambda request: request.index == prompt, server.waiting))
        if answers <= seats and (answers == 1 or server.heads_fit(answers)):
            return answers
        return 0 if server.running else 1

    def held_back(self, server: Server) -> str:
        """There is no token budget: either a request was evicted, or seats are short."""
        return "eviction" if server.step.preemptions else "seats"
