"""nano-vLLM: a step is prefills only or decodes only, prefills first; prefixes are always cached.

1. If any waiting request can be placed, the step computes prompts: whole requests from the head of the queue,
   each with memory for all its known tokens, up to the token budget. Only the first of a step may be cut; it
   keeps its memory and stays at the head of the queue until it is done.
2. Otherwise the step decodes the first `max_num_seqs` running requests; more may be running, waiting for a
   seat. A request that finds no room evicts the *last* running one, which is recomputed before any decode.

Prefixes can be hit from the end of the step that computes them. An answer does not end at `max_model_len`.
Revision bb823b3.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.options import CacheRules, Order
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


@mypyc_attr(allow_interpreted_subclasses=True)
class NanoVllm(Scheduler):
    """Whole prompts before decodes, preemption by recomputation."""

    family: ClassVar[str] = "by turns"
    idea: ClassVar[str] = "whole prompts up to a budget, otherwise all decode"
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    caches: ClassVar[bool] = True
    publishes_late: ClassVar[bool] = True
    limits_length: ClassVar[bool] = False

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """Large blocks and batches, cache always on."""
        return {
            "block_size": 256,
            "max_num_seqs": 512,
            "max_num_batched_tokens": 16_384,
            "enable_prefix_caching": True,
        }

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self.order, self.hides_host = Order.QUEUE, False
        self.cache = CacheRules(newest=True)
        if not config.enable_prefix_caching:
            raise KvsimError(
                "enable_prefix_caching must be on for scheduler nano-vllm, which has no switch for it"
            )
        if not config.enable_chunked_prefill:
            raise KvsimError(
                "enable_chunked_prefill must be on for scheduler nano-vllm, which has no switch for it"
            )

    def schedule(self, server: Server) -> None:
        """Prefill as far as the budget allows, else decode."""
        partial = self._partial(server)
        if server.waiting or partial is not None:
            self._prefill(server, partial)
        if server.step.chunks:
            server.pause()
        else:
            server.fill_seats(self.config.max_num_seqs)
            server.grow_due()

    def _partial(self, server: Server) -> Request | None:
        """The request whose prompt was cut, if any: always the one admitted last."""
        if not server.prefill_held:
            return None
        last = next(reversed(server.running.values()))
        return last if last.computed < last.known_tokens and last.state == State.PREFILL else None

    def counted_as_waiting(self, server: Server) -> int:
        """A cut prompt stays at the head of nano-vLLM's queue."""
        return int(self._partial(server) is not None)

    def _prefill(self, server: Server, first: Request | None) -> None:
        budget, seats = self.config.max_num_batched_tokens, self.config.max_num_seqs
        if first is not None:
            chunk = min(first.known_tokens - first.computed, budget)
            server.continue_prefill(first, chunk)
            if first.computed < first.known_tokens:
                return
            budget, seats = budget - chunk, seats - 1
        while server.waiting and budget > 0 and seats > 0:
            match = server.match_head()
            known = server.waiting[0].known_tokens
            missing = known - (match.tokens if match else 0)
            if missing > budget and server.step.chunks:
                return
            chunk = min(missing, budget)
            if not server.admit_head(known, match, chunk):
                return
            budget, seats = budget - chunk, seats - 1

    def held_back(self, server: Server) -> str:
        """Seats limit the prompts per step, not the running requests."""
        return "seats" if len(server.step.chunks) >= self.config.max_num_seqs else "token budget"

    def start_decode(self, server: Server, request: Request) -> Sequence[Request]:
        """The prompt is computed: decode as soon as a seat is free."""
        if request.generated < request.output_tokens:
            server.await_seat(request)
            return ()
        server.end_prefill(request)
        return (request,)
