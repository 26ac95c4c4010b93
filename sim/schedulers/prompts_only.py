"""vLLM V1 on a prefill server: prompts are computed and kept until another server has read them.

Follows vLLM 0.33.0 with the NIXL connector. Memory read in a step is freed after it; with asynchronous
scheduling one decision later. Leases do not expire: the decode side renews every prompt until it has it.

In the mixed pool (sim/serving/mixed_pool.py) it also answers requests, whose decodes take no seats from
prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kvsim.allocators.base import Allocator
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.schedulers.vllm_v1 import InTurn, VllmV1
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.held import HoldingServer, Leases
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.pulling import Prompts, Pulls
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.workload import PS_PER_S

LEASE_PS: Final = 30 * PS_PER_S


class PromptsOnly(VllmV1):
    """Computes prompts and hands them over."""

    def __init__(self, config: EngineConfig, max_model_len: int, hand_over: Pulls) -> None:
        super().__init__(config, max_model_len)
        self._hand_over = hand_over
        self._began_ps = self._decided_ps = -1  # times of the last two decisions

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server that keeps the prompts it has computed."""
        rules = Rules(bound, known_late=self.asynchronous)
        batch, leases = Batch(KvMemory(allocator)), Leases(LEASE_PS, LEASE_PS)
        self._server = server = HoldingServer(batch, rules, leases, _nobody)
        server.hand_over = partial(self._hand_over.computed, server)
        server.waiting = Prompts(partial(self._hand_over.comes, server))
        self._steps = self.steps_of(server)
        self.use(self._steps)
        server.wakes.beside = True
        self._hand_over.prefills(server)
        return server

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """Its prompt must fit here, and all of it on every decode server; or all of it must fit here."""
        if request.own in self._server.answers:
            return super().refusal(server, request, sequences)
        allocator, prompt = server.allocator, request.prompt_tokens
        if not allocator.fits(prompt, prompt):
            return f"does not fit an empty arena of {allocator.capacity_slots:,} slots"
        return self._hand_over.refusal(request)

    def schedule(self, server: Server) -> None:
        """Schedule as vLLM does, and process completed reads."""
        if server.now_ps > self._decided_ps:
            self._began_ps, self._decided_ps = self._decided_ps, server.now_ps
        again = not self.asynchronous and self._settle()
        again = bool(server.batch.departed) or again
        if self._server.answers and isinstance(self._steps, InTurn):
            self._steps.limits = replace(self.limits, seats=self.limits.seats + server.decoding)
        super().schedule(server)
        if self.asynchronous:
            again = self._settle() or again
        server.hold_until(server.now_ps if again else max(server.now_ps, self._server.leases.next_ps()))

    def _settle(self) -> bool:
        """Free what was reported in the previous step; returns whether there was anything."""
        server = self._server
        began_ps = max(self._began_ps, server.wakes.before_ps)
        if any(end_ps <= began_ps for end_ps in server.leases.ends_ps.values()):
            server.leases.heartbeat(server.held, began_ps)
        read, _ = server.settle(began_ps)
        server.free_settled()
        return bool(read)

    def start_decode(self, server: Server, request: Request) -> Sequence[Request]:
        """The prompt is computed; returns no answer, unless all of it is computed here."""
        if request.own in self._server.answers:
            return super().start_decode(server, request)
        server.end_prefill(request)
        request.move(State.FINISHED)
        self.finish(server, request)
        return ()


def _nobody(_: Request, __: tuple[int, ...]) -> None:
    raise AssertionError
