"""TensorRT-LLM: a capacity policy decides which requests run, and a token budget which of them compute.

guaranteed-no-evict  The blocks of every running request, up to its longest possible answer (`--reserve`),
                     are set aside, though not allocated yet; the head of the queue enters if its own fit into
                     the rest. Nothing is evicted: paged memory, admitted like a reservation.
max-utilization      Only the blocks of the coming step count. A running request that finds none pauses the
                     one started last; then the queue is admitted in order, if its whole prompts fit.
static-batch         Like the first, but no request enters before all have ended.

Decodes come first, then prompts, up to `max_num_batched_tokens`; a prompt may be cut at the end of a block.
Texts can be hit from the end of the step that computes them. So a request that could share a block that
another request computes in this very step is skipped until the block exists; later requests may pass it.

Rules of cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp (2025), read, not recorded. Left out: beams,
LoRA pages, encoder memory, and the overlap of a step with the decision of the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.base import Content
from kvsim.allocators.option import option
from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.runs import cut
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import SAME_PREFIX
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server

NO_EVICT, MAX_UTILIZATION, STATIC_BATCH = "guaranteed-no-evict", "max-utilization", "static-batch"


@dataclass(frozen=True, kw_only=True)
class TensorRTOptions:
    """Options of TensorRT-LLM only."""

    capacity_policy: str = option(
        "Which requests are admitted: guaranteed-no-evict, max-utilization, static-batch.",
        default=NO_EVICT,
        value="NAME",
        allowed=(NO_EVICT, MAX_UTILIZATION, STATIC_BATCH),
        doc="which requests are admitted ([policies](schedulers.md#tensorrt-llm))",
    )


class TensorRTLLM(Scheduler):
    """Inflight batching under a capacity policy."""

    family: ClassVar[str] = "pieces"
    idea: ClassVar[str] = "capacity first, then a token budget; no preemption needed"
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    declares: ClassVar[type] = TensorRTOptions
    caches = True
    reserves = True
    publishes_late = True
    order = Order.QUEUE

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """Blocks of 32 tokens, large steps."""
        return {"block_size": 32, "max_num_seqs": 2048, "max_num_batched_tokens": 8192}

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if config.max_num_batched_tokens < config.block_size:
            raise KvsimError(
                f"max_num_batched_tokens must be at least block_size ({config.block_size}) for scheduler "
                f"{config.scheduler}, got {config.max_num_batched_tokens}"
            )
        self.capacity = self.own(TensorRTOptions).capacity_policy
        self.cache = CacheRules() if config.enable_prefix_caching else None
        self._skipped = False  # whether the last decision skipped the head of the queue

    def schedule(self, server: Server) -> None:
        """Allocate memory for decodes, then continue prompts, then admit."""
        server.grow_due()
        budget = self.config.max_num_batched_tokens - server.progress.size
        computing: set[Content] = set()
        for request in list(server.running.values()) if server.prefill_held else ():
            if request.state is State.PREFILL and request.seq in server.running:
                chunk = self._chunk(request.known_tokens - request.computed, budget)
                if chunk and server.continue_prefill(request, chunk):
                    budget -= chunk
                    computing |= self._next_block(server, request.content, request.computed - chunk)
        self._skipped = False
        if server.waiting and not server.step.preemptions:
            self._admit(server, budget, computing)

    def _admit(self, server: Server, budget: int, computing: set[Content]) -> None:
        waiting, skipped = server.waiting, list[Request]()
        if self.capacity == STATIC_BATCH and server.running:
            return
        left = self._left(server)
        while waiting and budget > 0 and len(server.running) < self.config.max_num_seqs:
            head, match = waiting[0], server.match_head()
            found = match.tokens if match else 0
            ahead = self._next_block(server, head.content, found)
            if self.capacity != STATIC_BATCH and not ahead.isdisjoint(computing):
                skipped.append(waiting.popleft())
                continue
            needed = self._needed(server, head)
            if self.capacity != MAX_UTILIZATION:
                promised = needed - found + (match.woken_slots if match else 0)
                if promised > left:
                    server.refuse_head()
                    break
                left -= promised
            elif not server.head_fits(head.known_tokens, match):
                break
            chunk = self._chunk(head.known_tokens - found, budget)
            if not chunk or not server.admit_head(found + chunk, match):
                break
            budget -= chunk
            computing |= ahead
        self._skipped = bool(skipped)
        for request in reversed(skipped):
            waiting.appendleft(request)

    def _left(self, server: Server) -> int:
        """Free slots that are not reserved for running requests."""
        allocator = server.allocator
        aside = sum(
            max(0, self._needed(server, request) - allocator.capacity(request.seq))
            for request in server.running.values()
        )
        return allocator.free_slots - aside

    def _needed(self, server: Server, request: Request) -> int:
        """Slots of a request with its longest possible answer."""
        longest = max(server.rules.bound(request), request.known_tokens)
        return server.allocator.slots_needed(longest, longest)

    def _chunk(self, missing: int, budget: int) -> int:
        """Prompt tokens to compute now: all, or up to the end of a block."""
        if missing <= budget:
            return missing
        return budget - budget % self.config.block_size if self.config.enable_chunked_prefill else 0

    def _next_block(self, server: Server, content: Content, found: int) -> set[Content]:
        """The text up to the end of the first missing block, if other requests may share it."""
        if not server.allocator.caches:
            return set()
        size = self.config.block_size
        end = found - found % size + size
        return {tuple(cut(content, 0, end))} if sum([length for _, _, length in content]) >= end else set()

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """As in the base; also refuses requests whose longest answer exceeds the memory."""
        if self.capacity != MAX_UTILIZATION:
            needed, slots = self._needed(server, request), server.allocator.capacity_slots
            if needed > slots:
                return f"may need {needed:,} slots, the arena has {slots:,}"
        if not self.config.enable_chunked_prefill:
            budget = self.config.max_num_batched_tokens
            if request.final_tokens > budget:  # its recomputation would not fit
                return f"has more than {budget:,} tokens in a step without chunks"
        return super().refusal(server, request, sequences)

    def held_back(self, server: Server) -> str:
        """The capacity policy, a prefix shared with another prompt in progress, or the budget."""
        if server.step.preemptions:
            return "eviction"
        if self.capacity == STATIC_BATCH and server.running and not server.step.chunks:
            return "batch"
        if self._skipped:
            return SAME_PREFIX
        return super().held_back(server)
