"""Sarathi-Serve: decodes first, then pieces of prompts up to a fixed budget: no prompt stalls a decode.

    budget 8   |dddd|pppp|     each step: one token for all decodes, the rest of the budget for prompts
               |dddd|pppp|
               |ddddd|ppp|     the last piece produces a token, the next prompt takes what is left

1. Each decoding request, in order of arrival, must find a free block, even if it needs none; otherwise the
latest arrival among those not yet served is preempted.
2. Prompts in progress continue, then the queue: a request whose whole prompt fits above the watermark enters,
   with what is left of the budget. A victim may reenter in the same step. Only prompts are checked against
   `--max-model-len`.

`--max-num-batched-tokens` is the chunk, by default 512. With `--chunk-sizes` a prompt's chunk depends on its
progress, in stages of `--tokens-per-stage`: large pieces first, as attention grows.

Versions: 96f99117, the default, as recorded: a preempted request counts its answer from zero and generates
all of it again, and its next chunk is as long as if it had kept its progress. osdi24: neither, as in the
paper. Source: microsoft/sarathi-serve, commit 96f99117, sarathi/core/scheduler/sarathi_scheduler.py,
base_scheduler.py, block_space_manager, sequence_manager/base_sequence_manager.py. One pipeline stage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.base import Allocator
from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import NO_ROOM
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server

CHUNK = 512


@dataclass(frozen=True, kw_only=True)
class SarathiOptions:
    """Options that only Sarathi-Serve has."""

    watermark: float = option(
        "Share of the memory that an admission leaves free.", default=0.01, value="X", least=0, below=1
    )
    chunk_sizes: str = option(
        "Chunks by stage, as in 512,256,128; else one for all.",
        default="",
        value="N,N",
        shown="max_num_batched_tokens in all stages",
    )
    tokens_per_stage: int = option(
        "Tokens of a prompt in each stage but the last.", default=1024, value="N", least=1
    )


class Sarathi(Scheduler):
    """Stall-free batching with chunked prompts."""

    family: ClassVar[str] = "pieces"
    idea: ClassVar[str] = "decodes first, then pieces of prompts up to a small fixed budget: no stalls"
    VERSIONS: ClassVar[tuple[str, ...]] = ("osdi24", "96f99117")
    declares: ClassVar[type] = SarathiOptions
    policies: ClassVar[tuple[str, ...]] = ("fcfs",)
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    limits_length: ClassVar[bool] = False

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """Chunks of 512 tokens, at most 128 sequences."""
        return {"max_num_batched_tokens": CHUNK, "max_num_seqs": 128}

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if not config.enable_chunked_prefill:
            raise KvsimError("enable_chunked_prefill must be on for scheduler sarathi, which lives by chunks")
        if config.allocator == "kivi":  # it does not count the memory of uncomputed prompts
            raise KvsimError(
                "allocator must not be kivi for scheduler sarathi, which places whole prompts first"
            )
        own = self.own(SarathiOptions)
        self.watermark, self._stage = own.watermark, own.tokens_per_stage
        words = own.chunk_sizes.split(",") if own.chunk_sizes else [str(config.max_num_batched_tokens)]
        if not all(word.strip().isdecimal() and int(word) for word in words):
            raise KvsimError(f"chunk_sizes must be whole numbers above 0, got {own.chunk_sizes!r}")
        self._chunks = [int(word) for word in words]
        self.max_chunk = max(self._chunks)
        self._restarts = self.version == "96f99117"
        self._restarted: dict[Request, int] = {}  # answer tokens that a preemption turned into prompt
        self._before: dict[Request, int] = {}  # victims of this step -> tokens they had computed

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server that keeps a block free while it decodes."""
        server = super().new_server(allocator, bound)
        server.batch.growth.margin = 1
        self._unit = allocator.growth_unit or allocator.block_slots
        self._reserve = int(self.watermark * (allocator.capacity_slots // self._unit)) * self._unit
        return server

    def schedule(self, server: Server) -> None:
        """Decode, continue prompts, admit."""
        self._before.clear()
        prefilling = self._decode(server)
        tokens = server.decoding
        for request in prefilling:
            if request.state is State.WAITING:
                continue
            piece = self._piece(request.known_tokens, request.computed, tokens)
            if piece > 0 and server.continue_prefill(request, piece):
                tokens += piece
        self._admit(server, tokens)

    def _piece(self, known: int, computed: int, tokens: int) -> int:
        """Tokens of a prompt to compute in this step, beside `tokens` others."""
        chunk = self._chunks[min(computed // self._stage, len(self._chunks) - 1)]
        return min(known - computed, chunk - tokens)

    def _decode(self, server: Server) -> list[Request]:
        """Give decoding requests their memory; returns the prompts in progress, in order of arrival."""
        allocator, unit, batch = server.allocator, self._unit, server.batch
        if not server.prefill_held:
            growing = batch.growth.many_due(server.progress.clock)
            if not server.decoding or allocator.free_slots >= (growing + 1) * unit:
                server.grow_due()
                return []
        left = sorted(server.running.values(), key=lambda r: (r.arrival_ps, r.index, r.sample))
        must_grow, grown = set(batch.due_one_by_one(server.step)), []
        prefilling: list[Request] = []
        left.reverse()
        while left:
            request = left.pop()
            if request.state is State.WAITING:  # preempted to let another request grow
                continue
            if request.state is not State.DECODE:
                prefilling.append(request)
                continue
            while allocator.free_slots < unit:
                victim = left.pop(0) if left else request
                self._preempt(server, victim, request)
                if victim is request:
                    break
            grows = request.state is State.DECODE and request.seq in must_grow
            if grows and server.make_room(request, server.progress.tokens(request)):
                grown.append(request.seq)
        if must_grow or server.step.preemptions:
            server.step.changed = True
        batch.grew(grown)
        return prefilling

    def _preempt(self, server: Server, request: Request, by: Request) -> None:
        decoded = request.state is State.DECODE
        computed = request.computed
        server.preempt(request, by=by)
        self._before[request] = request.known_tokens if decoded else computed
        if self._restarts:
            request.set_output(request.output_tokens + request.generated - self._counted(request))

    def _counted(self, request: Request) -> int:
        """Answer tokens that existed at the request's previous preemption."""
        before = self._restarted.get(request, 0)
        self._restarted[request] = request.generated
        return before

    def _admit(self, server: Server, tokens: int) -> None:
        allocator, waiting = server.allocator, server.waiting
        while waiting and len(server.running) < self.config.max_num_seqs:
            head = waiting[0]
            known = head.known_tokens
            if known > self.max_model_len:
                server.drop_head(f"is longer than {self.max_model_len:,} tokens")
                continue
            if allocator.free_slots - allocator.slots_needed(known, known) < self._reserve:
                server.refuse_head(known)
                return
            computed = self._before.get(head, 0) if self._restarts else 0
            piece = self._piece(known, computed, tokens)
            if piece < 1 or not server.admit_head(known, chunk=piece):
                return
            tokens += piece

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """As in the base; a prompt must fit above the watermark."""
        allocator = server.allocator
        if allocator.slots_needed(request.prompt_tokens, 0) > allocator.capacity_slots - self._reserve:
            return f"does not fit an empty arena of {allocator.capacity_slots:,} slots above the watermark"
        return super().refusal(server, request, sequences)

    def held_back(self, server: Server) -> str:
        """Seats are short, or the chunk is used up."""
        if server.step.no_room:
            return NO_ROOM
        return "seats" if len(server.running) >= self.config.max_num_seqs else "token budget"

    def finish(self, server: Server, request: Request) -> None:
        """Its memory is free."""
        self._restarted.pop(request, None)
        super().finish(server, request)
