"""DLPM: the longest cached prefix first, within a deficit that each client may run up.

    deficit of a client   -= tokens that its requests compute: of prompts what is not cached, and answers
    next                  the longest cached prefix of those whose clients have a deficit above 0
    nobody has any        every client that waits gets --deficit-quantum more, until one is above 0

So locality is kept as far as fairness allows: the smaller the quantum, the fairer. With one client it is LPM.

Source: Cao et al., Locality-aware fair scheduling in LLM serving (arXiv 2501.14312), algorithm 1. D2LPM, the
same over replicas, is not here.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import Policy
from kvsim.sim.policies.queue import Moving
from kvsim.sim.serving.queues import Queue
from kvsim.sim.serving.request import Request, State


@dataclass(frozen=True, kw_only=True)
class DeficitOptions:
    """How much a client may be ahead."""

    deficit_quantum: int = option(
        "Tokens of service that a client gets when nobody has any left.",
        default=2048,
        value="N",
        least=1,
        doc="tokens of service that each client gets when nobody who waits has any left",
    )


class Dlpm(Policy):
    """Deficit longest prefix match."""

    family = "fair to clients"
    idea = "the longest cached prefix first, within a deficit of each client"
    needs = "client, prefixes"
    source = "arXiv 2501.14312, algorithm 1"
    declares = DeficitOptions
    moves = True

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._quantum = self.own(DeficitOptions).deficit_quantum
        self.deficits: dict[str, int] = {}
        self._charged: dict[Request, int] = {}  # tokens of its answer that were charged
        self._cached: dict[Request, int] = {}  # of those who wait, when it was looked at last
        self._moving = Moving(self)

    def queue(self) -> Queue:
        return self._moving

    def key(self, request: Request, now_ps: int) -> tuple[bool, int]:
        cached = self.server.cached_tokens(request) if self.server.allocator.caches else 0
        self._cached[request] = cached
        return self.deficits[request.facts.client] <= 0, -cached

    def waits(self, request: Request) -> None:
        self.deficits.setdefault(request.facts.client, self._quantum)
        if request in self._charged:  # it was preempted
            self._charge(request, request.generated)

    def look(self) -> None:
        """Charge what was generated, and refill where nobody has anything left."""
        for request in self.server.running.values():
            if request.state is not State.FINISHED:
                self._charge(request, self.generated(request))
        self._refill()

    def _charge(self, request: Request, generated: int) -> None:
        self.deficits[request.facts.client] -= generated - self._charged[request]
        self._charged[request] = generated

    def _refill(self) -> None:
        clients = {request.facts.client for request in self._moving.requests}
        most = max((self.deficits[client] for client in clients), default=1)
        if most <= 0:
            more = (-most // self._quantum + 1) * self._quantum
            for client in clients:
                self.deficits[client] += more

    def entered(self, request: Request) -> None:
        if request not in self._charged:
            self._charged[request] = 0
            self.deficits[request.facts.client] -= request.prompt_tokens - self._cached[request]
        del self._cached[request]
        self._refill()
        self._moving.again()

    def finished(self, request: Request) -> None:
        self._charge(request, request.output_tokens)
        del self._charged[request]
