"""SGLang: prompts before decodes, admission by estimated answer lengths, a radix tree.

1. If any request waits and the batch is not known to be full, the step computes prompts (sglang_adder.py):
   each is admitted if its prompt and its longest answer fit beside a share of the running requests' longest
   answers, the *new-token ratio* (sglang_lengths.py); with `--ignore-eos` beside all of them, or, without a
   radix tree, if the memory lasts until each answer has ended. The first that does not fit makes the batch
   full until a request leaves. With chunked prefill the last prompt of a step may be cut, and continues in
   the next. Running requests wait meanwhile, unless decodes are mixed in (`--enable-mixed-chunk`).
2. Otherwise the step decodes. If that finds no room, requests are *retracted*: the shortest answer first,
   ties: the longer prompt; they wait at the end of the queue and are recomputed, and the ratio rises. Every
   decode step without a retraction lowers it.

Prefixes can be hit from the end of the step that computes them, answers once they are finished. An answer is
truncated if it would not fit the memory alone. Without overlap scheduling. Version 0.5.23.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from kvsim.allocators.base import Allocator
from kvsim.allocators.options import CacheRules, Order
from kvsim.sim.deployment.engine import POLICIES, EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.sglang_adder import PrefillAdder
from kvsim.sim.schedulers.sglang_budget import Budget, WindowBudget
from kvsim.sim.schedulers.sglang_lengths import MOST_ESTIMATED, RETRACT_STEPS, AnswerLengths, NewTokenRatio
from kvsim.sim.schedulers.sglang_options import SglangOptions
from kvsim.sim.schedulers.sglang_order import Orders
from kvsim.sim.serving.decision import NO_PROMPTS
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.serving.sglang_parts import SglangBatch, SglangMemory, WaitingList

if TYPE_CHECKING:
    from kvsim.sim.deployment.deployment import Deployment
    from kvsim.sim.deployment.sharing import SharedTiers

CHUNK = 8192


class Sglang(Scheduler):
    """Whole prompts before decodes, admission by estimated answer lengths, retraction."""

    family: ClassVar[str] = "by turns"
    idea: ClassVar[str] = "prompts up to a budget as long as predicted memory lasts, otherwise all decode"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.5.23",)
    declares = SglangOptions
    caches = True
    policies: ClassVar[tuple[str, ...]] = POLICIES
    serves_in_turn: ClassVar[tuple[str, ...]] = policies  # no request is considered while the batch is full
    publishes_late = True
    order = Order.QUEUE
    lengths_of: ClassVar[type[AnswerLengths]] = AnswerLengths

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """Pages of one token, chunks of 8,192, radix tree on."""
        return {"block_size": 1, "max_num_batched_tokens": CHUNK, "enable_prefix_caching": True}

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if config.enable_chunked_prefill and config.max_num_batched_tokens % config.block_size:
            raise KvsimError(
                f"max_num_batched_tokens must be a multiple of block_size ({config.block_size}) when prompts "
                f"are chunked, got {config.max_num_batched_tokens}"
            )
        self.cache = CacheRules() if config.enable_prefix_caching else None
        self.max_chunk = config.max_num_batched_tokens if config.enable_chunked_prefill else None
        self.options = self.own(SglangOptions)
        self.ratio = NewTokenRatio(self.options.schedule_conservativeness)
        if config.policy == "shortest-prefill-first" and self.cache is None:
            raise KvsimError("policy shortest-prefill-first needs enable_prefix_caching, as in SGLang")
        by_priority = config.policy in ("priority", "priority-lof")
        self._threshold = self.options.preemption_threshold if by_priority else None
        self.chunked_req: Request | None = None  # whose prompt was cut
        self._stashed: tuple[Request | None, int] = (None, 0)  # how many of its tokens can be found

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server whose queue it sorts."""
        self._memory, self._waiting = SglangMemory(allocator), self._new_queue()
        self._batch = SglangBatch(self._memory, preempts=self._threshold is not None)
        if self.config.policy == "dfs-weight" and self._memory.cached is None:
            raise KvsimError(f"policy dfs-weight needs allocator sglang, got {self.config.allocator}")
        cached, capacity, page = self._memory.cached, allocator.capacity_slots, allocator.block_slots
        if cached is not None:
            capacity = cached.pool.pages * page
        self.lengths = self.lengths_of(self.options, self.ratio, capacity, page)
        self.orders = Orders(self.config.policy, self.lengths.most_new, self.options.random_seed)
        return self._server_of(Rules(bound, publishes_late=True))

    def _new_queue(self) -> WaitingList:
        return WaitingList()

    def _server_of(self, rules: Rules) -> Server:
        return Server(self._batch, rules, self._waiting)

    def put_below(self, server: Server, deployment: "Deployment", shared: "SharedTiers") -> None:
        """HiCache, if its options ask for it."""
        if self.options.enable_hierarchical_cache:
            from kvsim.sim.deployment.hicache import hicache_below  # late: most runs do not need it

            self._memory.hicache = hicache_below(deployment, server, self.options)

    @property
    def in_turn(self) -> bool:
        """No, if arrivals may pass requests whose prompts are being fetched."""
        return super().in_turn and self.options.hicache_storage_backend is None

    @property
    def reads_facts(self) -> bool:
        """Routing keys are clients."""
        return self.config.policy == "routing-key"

    # -- lengths ------------------------------------------------------------------------------

    def longest_answer(self, server: Server, prompt: int, longest: int) -> int:
        """An answer is truncated if it would not fit the empty memory alone."""
        return max(1, min(longest - prompt, self.lengths.room(prompt)))

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """As in the base; a prompt must leave room for more than one page."""
        lengths, memory = self.lengths, self._memory.windowed
        if request.prompt_tokens + lengths.page >= lengths.capacity:
            return f"does not fit an empty arena of {lengths.capacity:,} slots"
        if memory is not None:
            empty = memory.pool.pages * lengths.page, memory.pairs.windowed.pages * lengths.page
            budget, most_new = self._budget(empty, 0, 0), lengths.most_new(request)
            after = max(most_new - request.output_tokens, 0)  # if it is retracted at its end
            known = ((request.prompt_tokens, most_new), (request.final_tokens, after))
            if not all(budget.admit(0, tokens, min(left, MOST_ESTIMATED)) for tokens, left in known):
                return f"does not fit an empty windowed pool of {empty[1]:,} tokens"
        return super().refusal(server, request, sequences)

    # -- a step -------------------------------------------------------------------------------

    def schedule(self, server: Server) -> None:
        """Prefill the requests that fit, else decode."""
        self._memory.hicache.begin_step()
        self._catch_up(server)
        if self.chunked_req is not None:
            self._stash(self.chunked_req)
        if not self._prefill(server):
            if self._waiting and not (self._batch.full.now and self._batch.full.lasts):
                server.ask_again()
            self._decode(server)
        self._memory.hicache.end_step()

    def _catch_up(self, server: Server) -> None:
        """Account for the steps since the last decision."""
        self.ratio.catch_up(server.steps, server.wakes.waits)
        self._batch.full.catch_up(server.decoding)

    def _stash(self, request: Request) -> None:
        """The last chunk of a prompt can be found from now on."""
        if self._stashed != (request, request.computed):
            self._memory.enter(request)
            self._stashed = request, request.computed

    def finish(self, server: Server, request: Request) -> None:
        """The memory is free, and the batch no longer full."""
        self._forget(request)
        super().finish(server, request)

    def _forget(self, request: Request) -> None:
        self._batch.full.stale = True
        self._waiting.forget(request)
        self.orders.forget(request)

    def held_back(self, server: Server) -> str:
        """Why no more requests enter."""
        return self._batch.full.why

    # -- prompts ------------------------------------------------------------------------------

    def _prefill(self, server: Server) -> bool:
        """Compute prompts in this step; False: no request can enter."""
        batch, mixes = self._batch, self.options.enable_mixed_chunk
        if self.chunked_req is None and (batch.full.now or not self._waiting):
            return False
        seats = self.config.max_num_seqs - self._seated(server)
        if seats <= 0 and self.chunked_req is None and self._threshold is None:
            batch.full.now, batch.full.why = True, "seats"
            return False
        self.orders.sort(self._waiting, self._memory, server.running.values())
        reserved = sum([self.lengths.reserved(r, batch.generated(r)) for r in batch.requests()])
        budget = self._budget(self._memory.free_tokens(), reserved, server.decoding if mixes else 0)
        parts = server, batch, self._waiting, self.lengths, budget, seats, self._threshold
        adder = PrefillAdder(*parts, self.chunked_req)
        computes = adder.fill()
        self.chunked_req = adder.chunked_req
        if not computes:
            return False
        self.orders.processed += (server.step.prompts or NO_PROMPTS).tokens
        batch.full.stale |= mixes or not server.decoding
        pages = self._memory.cached is not None or server.allocator.growth_unit
        if mixes and server.decoding and pages and batch.check_decode_mem():
            batch.prepare_for_decode()
            server.grow_due()
            batch.arrange([*server.step.chunks, *batch.requests()])
        else:
            server.pause()
        return True

    def _seated(self, server: Server) -> int:
        """Requests that have a seat before this step."""
        return server.decoding

    def _budget(self, free: tuple[int, int], reserved: float, mixed: int) -> Budget:
        config, page, memory = self.config, self.lengths.page, self._memory.windowed
        tokens, chunked = config.max_num_batched_tokens, config.enable_chunked_prefill
        settings = free[0], page, reserved, tokens, chunked, mixed
        if memory is None:
            return Budget(*settings)
        return WindowBudget(settings, free[1], memory.pairs.windowed.pages * page, memory.groups.window)

    # -- decodes ------------------------------------------------------------------------------

    def _decode(self, server: Server) -> None:
        if not server.decoding:
            return
        if self._batch.check_decode_mem():
            self.ratio.decode_from(server.steps)
        else:
            self._retract(server)
        self._batch.prepare_for_decode()
        server.grow_due()

    def _retract(self, server: Server) -> None:
        """Send requests back to the queue until the others can continue."""
        batch = self._batch
        kept = batch.retraction_order()
        out: list[Request] = []
        while not out or not batch.check_decode_mem():
            if len(kept) == 1:
                break
            out.append(kept.pop())
            self._send_back(server, out[-1])
            self._memory.make_room(len(kept) * RETRACT_STEPS)
        self.ratio.retracted((batch.generated(request), self.lengths.most_new(request)) for request in kept)
        batch.arrange(kept)
        for request in out:
            self._waiting.append(request)
        batch.full.now = False

    def _send_back(self, server: Server, request: Request) -> None:
        self._waiting.missing[request] = request.known_tokens
        server.preempt(request, requeue=False)
