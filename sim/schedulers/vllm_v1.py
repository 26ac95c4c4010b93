"""vLLM V1: decodes and prefill chunks share each step's token budget.

1. Running requests first, in order of admission: one token each, or the next chunk of a prompt. A request
   that finds no room preempts the *last* running one (by priority: the least urgent), which is recomputed
   later, from the head of the queue.
2. Then the queue, in its order, unless a request was preempted in this step: a request enters with as large a
   chunk as the budget has left, if it fits. The first that does not blocks those behind it.

With the prefix cache on, the cached part of a prompt counts as computed; blocks can be hit as soon as the
step that computes them is decided.

The budget is at least the number of sequences, so every decode always fits. At most one prompt is in
progress, and it is the last of `running`.

With asynchronous scheduling, as in 0.33.0 unless it is switched off, a step is decided before the engine
knows how the previous one ended. Requests that finished in it hold their memory and seats for one decision
longer, and may even be preempted meanwhile, with no effect except on the count. A token that is not known yet
cannot be found in the prefix cache. If a decision finds nothing to compute, because all requests have just
finished, the step is lost.

Releases differ in `Policy`. Recorded releases are 0.11.0 and 0.33.0, the default. Any other release from
0.7.0 on schedules as one of these (sim/deployment/vllm_defaults.py), with its own defaults, memory and
experts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.abilities import Abilities
from kvsim.allocators.base import Allocator
from kvsim.allocators.options import CacheRules, Order
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.speculation import CONFIG, SHORT, Speculation
from kvsim.sim.deployment.vllm_defaults import NEWEST, rules_of, scheduled_as
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.vllm_options import VllmV1Options
from kvsim.sim.serving.acceptance import Acceptance, Drawn, Recorded
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.draft_batch import DraftBatch, VerifiedMemory
from kvsim.sim.serving.drafts import Drafts
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.pieces import Pieces
from kvsim.sim.serving.queues import Ordered, Queue
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.serving.steps import Limits, Steps, told
from kvsim.sim.workload import Workload

if TYPE_CHECKING:
    from kvsim.sim.deployment.deployment import Deployment
    from kvsim.sim.deployment.sharing import SharedTiers


@dataclass(frozen=True)
class Policy:
    """Differences between releases of vLLM V1."""

    reserve_full_prompt: bool
    """admit a request only if all of it fits, not just its first chunk"""
    order: Order
    """the free block to allocate first, prefix cache off"""
    cached_order: Order
    """the free block to allocate first, prefix cache on"""
    threshold_alone: bool
    """cut a long prompt even if it is the only request"""
    asynchronous: bool
    """decide a step before the previous one has ended, by default"""
    keeps_groups: bool
    """keep unlike layers in groups over one pool, with prefixes (earlier releases: only windows, without)"""
    has_switches: bool
    """whether `reserve_full_prompt` can be switched, and a watermark and asynchronous scheduling set"""


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
    """By priority, then by arrival, then by number as text: "10" comes before "9"."""
    return request.priority, request.arrival_ps, str(request.index)


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1(Scheduler):
    """Chunked prefill under a token budget, preemption by recomputation."""

    family: ClassVar[str] = "pieces"
    idea: ClassVar[str] = (
        "decodes first, then the queue in pieces up to a token budget; the last is preempted"
    )
    VERSIONS: ClassVar[tuple[str, ...]] = tuple(POLICIES)
    keyed: ClassVar[bool] = True
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    declares: ClassVar[type] = VllmV1Options
    caches: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True
    steps: Steps
    """How its server's steps are decided."""

    @classmethod
    def recorded(cls, release: str) -> str:
        """The one of `VERSIONS` whose rules a release follows."""
        return scheduled_as(release)

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
            for name in ("kv_offloading_size", "secondary_tiers", "tier"):
                if config.options.get(name) is not None:
                    self._refuse(name, config.options[name])
        self.speculation: Speculation | None = None
        self.acceptance: Acceptance | None = None
        self.watermark = own.watermark
        self.cache = CacheRules() if config.enable_prefix_caching else None
        self.order = policy.cached_order if self.cache else policy.order
        self.max_chunk = config.max_num_batched_tokens
        self.asynchronous = policy.asynchronous
        if config.async_scheduling is not None:
            self.asynchronous = config.async_scheduling
        speculation = Speculation.of_options(config.options)
        if speculation is not None:
            self._speculate(speculation)
        self.hides_host = self.asynchronous
        self.keeps_groups = policy.keeps_groups
        self.limits = Limits(
            config.max_num_batched_tokens,
            config.max_num_seqs,
            max_model_len,
            self._whole_prompts(config) if own.reserve_full_prompt is None else own.reserve_full_prompt,
            config.enable_chunked_prefill,
            own.watermark,
            own.long_prefill_token_threshold,
        )

    def _whole_prompts(self, config: EngineConfig) -> bool:
        """Whether it admits only whole prompts, as releases from 0.17 on do."""
        release = (config.scheduler or "").partition("@")[2]
        return POLICIES[self.version].reserve_full_prompt and rules_of(release or NEWEST).reserve_full_prompt

    def _speculate(self, speculation: Speculation) -> None:
        """Verify drafts, on which the findable part of a text then depends."""
        self.speculation = speculation
        if self.policy is not None:
            raise KvsimError(
                f"policy must be fcfs, priority or sjf with speculative decoding, got {self.config.policy!r}"
            )
        self._check_last_piece(speculation)
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

    def _check_last_piece(self, speculation: Speculation) -> None:
        """Raise KvsimError if the kept-back end of a prompt never fits in a step: it would never finish."""
        least = speculation.rules(self.cache is not None, self.config.max_num_seqs).kept_back
        for name, tokens in (
            ("long_prefill_token_threshold", self.own(VllmV1Options).long_prefill_token_threshold or least),
            ("max_num_batched_tokens", self.config.max_num_batched_tokens),
        ):
            if tokens < least:
                raise KvsimError(
                    f"{name} must be at least {least} with several modules of MTP, which compute the last "
                    f"{least} tokens of a prompt together, got {tokens}"
                )

    def follow(self, workload: Workload) -> None:
        """Take the workload's recorded drafts, or the seed to draw drafts."""
        if self.speculation is None:
            return
        if workload.drafts is not None:
            most = self.speculation.num_speculative_tokens
            self.acceptance = Recorded(workload.drafts.tolist(), most)
        else:
            lengths = workload.prompt_tokens, workload.output_tokens
            self.acceptance = Drawn(self.speculation.rates, workload.seed, lengths)

    def _drafts(
        self, speculation: Speculation, allocator: Allocator, rules: Rules, waiting: Queue | None
    ) -> Drafts:
        if Abilities.of(allocator).ends_pieces:
            raise KvsimError(
                "speculative_config must be left out when states of recurrent layers are kept for prefixes "
                "(or use --no-enable-prefix-caching)"
            )
        server = Server(batch := DraftBatch(VerifiedMemory(allocator)), rules, waiting)
        if self.acceptance is None:
            self.acceptance = Drawn(speculation.rates, 0)
        draft_rules = speculation.rules(self.cache is not None, self.limits.seats)
        return Drafts(server, batch, draft_rules, self.limits, self.acceptance)

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server whose steps may be decided before the previous one has ended."""
        policy, config = self.policy, self.config
        waiting: Queue | None = Ordered(_urgency) if config.policy == "priority" else None
        if self.speculation is not None:
            rules = Rules(bound, config.policy, publishes_late=True, known_late=self.asynchronous)
            drafts = self._drafts(self.speculation, allocator, rules, waiting)
            self.use(told(drafts))
            return drafts.server
        victim = policy.victim if policy is not None and policy.preempts else None
        rules = Rules(bound, config.policy, known_late=self.asynchronous, victim=victim)
        if policy is not None:
            waiting = policy.queue()
        server = Server(Batch(KvMemory(allocator)), rules, waiting)
        steps = self.steps_of(server)
        if policy is not None:
            from kvsim.sim.policies.steps import ByPolicy  # late: most runs do not need it

            policy.begin(server)
            steps = ByPolicy(steps, policy, self.limits.seats, self.limits.budget)
        self.use(steps)
        return server

    def steps_of(self, server: Server) -> Steps:
        """The way to decide steps, without drafts, a policy with keys, or a tier."""
        limits = self.limits
        steps: Steps = InTurn(server, limits)
        if limits.threshold or server.memory.abilities.ends_pieces:
            pieces = Pieces(server, limits.threshold, POLICIES[self.version].threshold_alone)
            steps = InPieces(server, limits, pieces)
        return told(steps)

    def use(self, steps: Steps) -> None:
        """Decide the server's steps this way."""
        self.steps, self.ends_steps = steps, steps.ends_steps

    def put_below(self, server: Server, deployment: "Deployment", shared: "SharedTiers") -> None:
        own = self.own(VllmV1Options)
        if own.kv_offloading_size is not None or own.secondary_tiers is not None or own.tier is not None:
            from kvsim.sim.deployment.offloading import tier_below  # late: most runs do not need it

            tier = tier_below(deployment, server, own, self.limits, shared)
            if tier is not None:
                self.use(tier)

    @property
    def in_turn(self) -> bool:
        """Not if a request may be passed over: then an arrival may enter before others."""
        return super().in_turn and self.steps.in_turn

    def schedule(self, server: Server) -> None:
        """Decide the step; by now it is known which requests finished before it."""
        self.steps.decide()
        if server.batch.departed:
            server.release_departed()

    def head(self, server: Server) -> Request | None:
        """The request that waits first, which may be one whose load has ended."""
        return self.steps.head() or super().head(server)

    def held_back(self, server: Server) -> str:
        """Why the head of the queue was not admitted, if memory was not the reason."""
        return self.steps.held_back() or super().held_back(server)

    def finish(self, server: Server, request: Request) -> None:
        self.steps.finish(request)

    def end_step(self, server: Server) -> None:
        self.steps.end_step()

    def rest(self, server: Server) -> None:
        self.steps.rest()


@mypyc_attr(allow_interpreted_subclasses=True)
class InTurn(Steps):
    """Running requests grow, the last one may compute another chunk, then waiting requests enter."""

    def __init__(self, server: Server, limits: Limits) -> None:
        super().__init__(server)
        self.limits, self._batch = limits, server.batch

    def decide(self) -> None:
        server = self.server
        unpromised = self._batch.grow_promised(server.step)
        if unpromised is not None:
            server.grow_one_by_one(*unpromised)
        prefilling = server.memory.prefill_held
        if prefilling or server.waiting:
            budget = self.limits.budget - server.progress.size
            if prefilling and len(server.running) > server.progress.size:  # not only those set aside
                budget -= self._continue_last(budget)
            self.admit(budget, self.limits.budget)

    def _continue_last(self, budget: int) -> int:
        server = self.server
        for request in reversed(server.running.values()):
            if request.state != State.FINISHED:
                break
        else:
            return 0
        chunk = min(request.known_tokens - request.computed, budget)
        if request.state != State.PREFILL or chunk < 1:
            return 0
        return chunk if server.continue_prefill(request, chunk) else 0

    def admit(self, budget: int, longest: int) -> None:
        """Admit within a budget, in chunks of at most `longest` tokens."""
        server = self.server
        waiting, step = server.waiting, server.step
        if budget <= 0 or not waiting or step.preemptions > step.displaced:
            return
        room = self.limits.seats - len(server.running) - len(server.batch.moving)
        while room > 0 and budget > 0 and waiting:
            head = waiting[0]
            if head.state != State.ASIDE:
                tokens = self._enter(budget, longest)
                if not tokens:
                    return
                budget -= tokens
            elif server.resume_head(head):
                budget -= 1
            else:
                return
            room -= 1

    def _enter(self, budget: int, longest: int) -> int:
        """Admit the head of the queue; returns the tokens that it computes in this step (0: it must wait)."""
        server, limits, match, hits = self.server, self.limits, None, 0
        pieces = server.memory.abilities.ends_pieces
        whole, watermark = limits.whole_prompt, limits.watermark
        chunk = known = server.waiting[0].known_tokens
        if server.allocator.caches:
            match = server.match_head(budget=None if whole else min(budget, longest))
            hits = match.tokens if match else 0
            chunk -= hits
        if chunk > longest:
            chunk = longest
        if chunk > budget:
            if not limits.in_pieces:
                return 0
            chunk = budget
        if pieces is not None:
            chunk = pieces.piece(match, -1, hits, chunk, limits.budget)
            if chunk < 1:
                return 0
        needed = known if whole else hits + chunk
        fits = needed == hits + chunk or server.head_fits(needed, match)
        if fits and watermark:
            fits = server.head_leaves(needed, match, watermark) and server.head_leaves(
                hits + chunk, match, watermark
            )
        lost = server.step.lost
        if fits and lost is not None and server.waiting[0] in lost:
            if server.head_fits(needed, match):
                server.keep_out(needed)
            return 0
        return chunk if fits and server.admit_head(hits + chunk, match) else 0


@mypyc_attr(allow_interpreted_subclasses=True)
class InPieces(InTurn):
    """Several prompts may be in progress at once, in pieces."""

    def __init__(self, server: Server, limits: Limits, pieces: Pieces) -> None:
        super().__init__(server, limits)
        self._pieces = pieces

    def decide(self) -> None:
        budget = self.limits.budget
        left = self._pieces.continue_in_order(budget)
        self.admit(left, self._pieces.most(budget))
