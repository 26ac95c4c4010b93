"""vLLM V1: decodes and prefill chunks share each step's token budget.

1. Running requests first, in order of admission: one token each, or the next chunk of a prompt. Who
   finds no room preempts the *last* running request (by priority: the least urgent), which is recomputed
   later, from the head of the queue.
2. Then the queue, in its order, unless anybody was preempted in this step: a request enters with as large a
   chunk as the budget has left, if it fits. The first that does not blocks those behind.

With the prefix cache on, what is cached of a prompt counts as computed; blocks can be found as soon as the
step that computes them is decided.

The budget is at least the number of sequences, so it always reaches every decode, and a prompt that
is not done is the only one and the last of `running`.

With asynchronous scheduling, as in 0.33.0 unless it is switched off, a step is decided before the engine
knows how the one before ended. Who finished in it holds its memory and its seat for one decision longer, and
may even be preempted meanwhile, without any effect but the count. A token that is not known yet cannot be
found in the prefix cache. A decision that finds nothing to compute, as all have just finished, spends the
step.

Releases differ in `Policy`. Versions: 0.11.0; 0.33.0, the default.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.abilities import Abilities
from kvsim.allocators.base import Allocator
from kvsim.allocators.options import CacheRules, Order
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.speculation import CONFIG, SHORT, Speculation
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.vllm_options import VllmV1Options
from kvsim.sim.serving.acceptance import Acceptance, Drawn, Recorded
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.draft_batch import DraftBatch, VerifiedMemory
from kvsim.sim.serving.drafts import Drafts, Limits
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.pieces import Pieces
from kvsim.sim.serving.queues import Ordered, Queue
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.workload import Workload


@dataclass(frozen=True)
class Policy:
    """Where releases of vLLM V1 differ."""

    reserve_full_prompt: bool
    """admit a request only when all of it fits, not just its first chunk"""
    order: Order
    """the free block to allocate, prefix cache off"""
    cached_order: Order
    """the free block to allocate, prefix cache on"""
    threshold_alone: bool
    """a long prompt is cut even where nobody else is there"""
    asynchronous: bool
    """decide a step before the one before it has ended, unless told otherwise"""
    keeps_groups: bool
    """keep layers of every kind in groups over one pool, with prefixes (earlier ones: windows, without)"""
    has_switches: bool
    """whether the rule above can be switched, and a watermark and asynchronous scheduling be set"""


POLICIES = {
    "0.11.0": Policy(
        reserve_full_prompt=False,
        order=Order.QUEUE,
        cached_order=Order.QUEUE,
        threshold_alone=True,
        asynchronous=False,
        keeps_groups=False,
        has_switches=False,
    ),
    "0.33.0": Policy(
        reserve_full_prompt=True,
        order=Order.STACK,
        cached_order=Order.HASHED_LAST,
        threshold_alone=False,
        asynchronous=True,
        keeps_groups=True,
        has_switches=True,
    ),
}


def _urgency(request: Request) -> tuple[int, int, str]:
    """By priority; of equals, who came first; of these, by its number as a text: "10" is before "9"."""
    return request.priority, request.arrival_ps, str(request.index)


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1(Scheduler):
    """Chunked prefill under a token budget, preemption by recomputation."""

    VERSIONS: ClassVar[tuple[str, ...]] = tuple(POLICIES)
    keyed: ClassVar[bool] = True
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    declares: ClassVar[type] = VllmV1Options
    caches: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
            raise KvsimError(
                "max_num_batched_tokens must be at least max_model_len when chunked prefill is off "
                f"({max_model_len}), got {config.max_num_batched_tokens}"
            )
        policy, own = POLICIES[self.version], self.own(VllmV1Options)
        if not policy.has_switches:
            if own.watermark:
                self._refuse("watermark", own.watermark)
            if own.reserve_full_prompt is not None:
                self._refuse("reserve_full_prompt", own.reserve_full_prompt)
            if config.async_scheduling:
                self._refuse("async_scheduling", True)
            for name in (CONFIG, *SHORT):
                if config.options.get(name) is not None:
                    self._refuse(name, config.options[name])
            if own.kv_offloading_size is not None:
                self._refuse("kv_offloading_size", own.kv_offloading_size)
        self._pieces: Pieces | None = None
        self._drafts: Drafts | None = None
        self.speculation: Speculation | None = None
        self.acceptance: Acceptance | None = None
        self._lower: LowerTier | None = None
        self._displaced = 0  # in this step, by the policy: that keeps nobody out
        self.watermark = own.watermark
        self.cache = CacheRules() if config.enable_prefix_caching else None
        self.order = policy.cached_order if self.cache else policy.order
        self._budget = self.max_chunk = config.max_num_batched_tokens
        self.asynchronous = policy.asynchronous
        if config.async_scheduling is not None:
            self.asynchronous = config.async_scheduling
        speculation = Speculation.of_options(config.options)
        if speculation is not None:
            self._speculate(speculation)
        self.hides_host = self.asynchronous
        self.keeps_groups = policy.keeps_groups
        self._whole = policy.reserve_full_prompt
        if own.reserve_full_prompt is not None:
            self._whole = own.reserve_full_prompt

    def _speculate(self, speculation: Speculation) -> None:
        """Verify drafts; what can be found of a text then depends on them."""
        self.speculation = speculation
        if self.policy is not None:
            raise KvsimError(
                f"policy must be fcfs, priority or sjf with speculative decoding, got {self.config.policy!r}"
            )
        if not speculation.asynchronous:
            if self.config.async_scheduling:
                raise KvsimError(
                    f"async_scheduling must be off with method {speculation.method}, which drafts on the "
                    "host (ngram_gpu does not)"
                )
            self.asynchronous = False
        if self.cache is not None:
            rules = speculation.rules(True, self.config.max_num_seqs)
            self.cache = CacheRules(
                lookahead=rules.hash_lookahead, told=True, drops_last=speculation.drops_last
            )

    def follow(self, workload: Workload) -> None:
        """Take from it what was recorded of drafts, or the seed that draws it."""
        if self.speculation is None:
            return
        if workload.drafts is not None:
            most = self.speculation.num_speculative_tokens
            self.acceptance = Recorded(workload.drafts.tolist(), most)
        else:
            self.acceptance = Drawn(self.speculation.rates, workload.seed)

    def _new_drafts(
        self, speculation: Speculation, allocator: Allocator, rules: Rules, waiting: Queue | None
    ) -> Drafts:
        config, seats = self.config, self.config.max_num_seqs
        if Abilities.of(allocator).ends_pieces:
            raise KvsimError(
                "speculative_config must be left out where states of recurrent layers are kept for prefixes "
                "(or use --no-enable-prefix-caching)"
            )
        server = Server(batch := DraftBatch(VerifiedMemory(allocator)), rules, waiting)
        if self.acceptance is None:
            self.acceptance = Drawn(speculation.rates, 0)
        return Drafts(
            server,
            batch,
            speculation.rules(self.cache is not None, seats),
            Limits(
                self._budget,
                seats,
                self.max_model_len,
                self._whole,
                config.enable_chunked_prefill,
                self.watermark,
                self.own(VllmV1Options).long_prefill_token_threshold,
            ),
            self.acceptance,
        )

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server whose steps may be decided before the one before has ended."""
        waiting: Queue | None = Ordered(_urgency) if self.config.policy == "priority" else None
        if self.speculation is not None:
            rules = Rules(bound, self.config.policy, publishes_late=True, known_late=self.asynchronous)
            self._drafts = self._new_drafts(self.speculation, allocator, rules, waiting)
            self.ends_steps = True
            return self._drafts.server
        policy = self.policy
        victim = policy.victim if policy is not None and policy.preempts else None
        rules = Rules(bound, self.config.policy, known_late=self.asynchronous, victim=victim)
        if policy is not None:
            waiting = policy.queue()
        server = Server(Batch(KvMemory(allocator)), rules, waiting)
        if policy is not None:
            policy.begin(server)
        threshold = self.own(VllmV1Options).long_prefill_token_threshold
        if threshold or server.memory.abilities.ends_pieces:
            self._pieces = Pieces(server, threshold, POLICIES[self.version].threshold_alone)
        return server

    @property
    def in_turn(self) -> bool:
        """Not where a request may be passed over: then who comes may enter before others."""
        return super().in_turn and self._lower is None

    def use(self, lower: LowerTier) -> None:
        """Have a tier below the memory of its server."""
        self._lower = lower

    def admission(self, at_once_bytes: int, token_bytes: int) -> tuple[bool, bool, float, int, int]:
        """What `LowerTier` must know of how requests enter."""
        return self._whole, self.config.enable_chunked_prefill, self.watermark, at_once_bytes, token_bytes

    def schedule(self, server: Server) -> None:
        """Grow the running requests, then admit within the token budget."""
        if self._lower is not None:
            self._lower.schedule(self._budget, self.config.max_num_seqs)
            return
        policy, told = self.policy, server.memory.abilities.pieces
        self._displaced = 0
        if policy is not None:
            departed = list(server.batch.departed.values())  # as is known after this decision
            self._displaced = policy.decide(self.config.max_num_seqs, self._budget)
        if told is not None:
            told.new_step()
        if self._drafts is not None:
            self._drafts.decide()
        elif self._pieces is not None:
            self._admit(server, self._pieces.continue_in_order(self._budget))
        else:
            server.grow_due()
            prefilling = server.memory.prefill_held
            if prefilling or server.waiting:
                budget = self._budget - server.progress.size
                if prefilling:
                    budget -= self._continue_last(server, budget)
                self._admit(server, budget)
        if told is not None:
            told.decided()
        if policy is not None:
            policy.decided()
            for request in departed:
                policy.finished(request)
        if server.batch.departed:
            server.release_departed()

    def _continue_last(self, server: Server, budget: int) -> int:
        for request in reversed(server.running.values()):
            if request.state != State.FINISHED:
                break
        else:
            return 0
        chunk = min(request.known_tokens - request.computed, budget)
        if request.state != State.PREFILL or chunk < 1:
            return 0
        return chunk if server.continue_prefill(request, chunk) else 0

    def _admit(self, server: Server, budget: int) -> None:
        waiting = server.waiting
        if budget <= 0 or not waiting or server.step.preemptions > self._displaced:
            return
        room = self.config.max_num_seqs - len(server.running)
        caches, match, hits = server.allocator.caches, None, 0
        pieces = server.memory.abilities.ends_pieces
        longest = self._budget if self._pieces is None else self._pieces.most(self._budget)
        while waiting and budget > 0 and room > 0:
            chunk = known = waiting[0].known_tokens
            if caches:
                match = server.match_head(budget=None if self._whole else min(budget, longest))
                hits = match.tokens if match else 0
                chunk -= hits
            chunk = min(chunk, longest)
            if chunk > budget:
                if not self.config.enable_chunked_prefill:
                    return
                chunk = budget
            if pieces is not None:
                chunk = pieces.piece(match, -1, hits, chunk, self._budget)
                if chunk < 1:
                    return
            needed = known if self._whole else hits + chunk
            if needed > hits + chunk and not server.head_fits(needed, match):
                return
            if self.watermark and not (
                server.head_leaves(needed, match, self.watermark)
                and server.head_leaves(hits + chunk, match, self.watermark)
            ):
                return
            if not server.admit_head(hits + chunk, match):
                return
            budget -= chunk
            room -= 1

    # -- asynchronous scheduling --------------------------------------------------------------

    def finish(self, server: Server, request: Request) -> None:
        """The memory is free for the next step, or for the one after it."""
        if self._drafts is not None:
            self._drafts.finish(request)
        elif self._lower is not None:
            self._lower.finish(request)
        elif server.rules.known_late:
            server.depart_late(request)
        else:
            if self.policy is not None:
                self.policy.finished(request)
            server.finish(request)

    def end_step(self, server: Server) -> None:
        """A step with drafts is over."""
        if self._drafts is not None:
            self._drafts.end_step()

    def rest(self, server: Server) -> None:
        """What is still to be stored is offered."""
        if self._lower is not None:
            self._lower.rest()
