"""SGLang: prompts before decodes, admission by estimated answer lengths, a radix tree.

1. If any request waits and the batch is not known to be full, the step computes prompts, in the order of the
   policy: each is admitted if its prompt and its longest answer fit beside a share of the running requests'
   longest answers, the *new-token ratio* (sim/schedulers/sglang_budget.py); with `--ignore-eos` beside all of
   them, or, without a radix tree, if the memory lasts until each answer has ended. The first that does not
   fit makes the batch full until a request leaves. With chunked prefill the last prompt of a step may be cut,
   and continues in the next. Running requests wait meanwhile, unless decodes are mixed in
   (`--enable-mixed-chunk`).
2. Otherwise the step decodes. If that finds no room, requests are *retracted*: the shortest answer first,
   ties: the longer prompt; they wait at the end of the queue and are recomputed, and the ratio rises. Every
   decode step without a retraction lowers it.

Prefixes can be hit from the end of the step that computes them, answers once they are finished. Text is
matched when a request is considered; all entering requests are locked, and only then is anything evicted.
An answer is truncated if it would not fit the memory alone. With `--preemption-threshold`, by priority, a
request preempts those less urgent by more than that. Without overlap scheduling. Version 0.5.23.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from kvsim.allocators.base import Allocator, Match
from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.sglang.rows import SglangMatch
from kvsim.sim.deployment.engine import POLICIES, EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import NO_ROOM, STORAGE
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.sglang_budget import (
    MOST_ESTIMATED,
    RETRACT_STEPS,
    Budget,
    FixedAnswers,
    NewTokenRatio,
    WindowBudget,
)
from kvsim.sim.schedulers.sglang_options import SglangOptions
from kvsim.sim.schedulers.sglang_order import Orders, woken
from kvsim.sim.serving.decision import NO_PROMPTS
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.serving.sglang_parts import Below, SglangBatch, SglangMemory, WaitingList

if TYPE_CHECKING:
    from kvsim.sim.deployment.deployment import Deployment
    from kvsim.sim.deployment.sharing import SharedTiers

CHUNK = 8192
Admission = tuple[Request, Match | None, int]


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
        self.orders = Orders(config.policy, self.most_new, self.options.random_seed)
        if config.policy == "shortest-prefill-first" and self.cache is None:
            raise KvsimError("policy shortest-prefill-first needs enable_prefix_caching, as in SGLang")
        self._preempts = config.policy == "priority" and self.options.preemption_threshold is not None
        self._retries = self._preempts
        """Whether waiting requests are considered in every step."""
        self.full = False
        """Whether the batch is known to be full, until a request leaves."""
        self.cut: Request | None = None
        """The request whose prompt was cut."""
        self._entered: tuple[Request | None, int] = (None, 0)  # how many of its tokens can be found
        self._left = False  # a request left, or was cut, since the last decision
        self._began = False  # the prefilled requests start a new batch
        self._held = "seats"
        self._looked: dict[Request, int] = {}  # tokens to compute, when last considered
        self._decoded_at = -1  # step of the last decision to decode without retraction
        self._waits = -1  # the server's count at the last reset of the ratio
        self._capacity = 0
        self._answers: FixedAnswers | None = None  # known in this step, if no answer ends early
        self._below = Below()

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server whose queue it sorts."""
        self._memory, self._waiting = SglangMemory(allocator), self._new_queue()
        self._batch = SglangBatch(self._memory)
        self._cached, self._windowed = self._memory.cached, self._memory.windowed
        if self.config.policy == "dfs-weight" and self._cached is None:
            raise KvsimError(f"policy dfs-weight needs allocator sglang, got {self.config.allocator}")
        self._capacity, self._page = allocator.capacity_slots, allocator.block_slots
        if self._cached is not None:
            self._capacity = self._cached.pool.pages * self._page
        self._retries = self._preempts or self._windowed is not None
        return self._server_of(Rules(bound, publishes_late=True))

    def _new_queue(self) -> WaitingList:
        return WaitingList()

    def _server_of(self, rules: Rules) -> Server:
        return Server(self._batch, rules, self._waiting)

    def put_below(self, server: Server, deployment: "Deployment", shared: "SharedTiers") -> None:
        """HiCache, if its options ask for it."""
        if self.options.enable_hierarchical_cache:
            from kvsim.sim.deployment.hicache import hicache_below  # late: most runs do not need it

            self._below = hicache_below(deployment, server, self.options)

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
        return max(1, min(longest - prompt, self._room(prompt)))

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """As in the base; a prompt must leave room for more than one page."""
        if request.prompt_tokens + self._page >= self._capacity:
            return f"does not fit an empty arena of {self._capacity:,} slots"
        memory = self._windowed
        if memory is not None:
            empty = memory.pool.pages * self._page, memory.pairs.windowed.pages * self._page
            budget, most_new = self._budget(empty, 0, 0), self.most_new(request)
            after = max(most_new - request.output_tokens, 0)  # if it is retracted at its end
            lengths = ((request.prompt_tokens, most_new), (request.final_tokens, after))
            if not all(budget.admit(0, known, min(left, MOST_ESTIMATED)) for known, left in lengths):
                return f"does not fit an empty windowed pool of {empty[1]:,} tokens"
        return super().refusal(server, request, sequences)

    def most_new(self, request: Request) -> int:
        """The tokens that a request may generate: its client's limit, or what it will generate."""
        asked = max(request.output_tokens, self.options.max_tokens or 0)
        return max(0, min(asked, self._room(request.prompt_tokens)))

    def _room(self, prompt: int) -> int:
        """The longest answer to a prompt that fits in the empty memory, as SGLang computes it."""
        paged = -(-prompt // self._page) * self._page
        return self._capacity - paged - self._page - 1

    def _set_aside(self, server: Server, request: Request) -> float:
        """Tokens reserved for a running request's answer."""
        left = min(self.most_new(request) - self._batch.generated(request), MOST_ESTIMATED)
        return left if self.options.ignore_eos else left * self.ratio.now

    # -- a step -------------------------------------------------------------------------------

    def schedule(self, server: Server) -> None:
        """Prefill the requests that fit, else decode."""
        self._below.begin_step()
        self._choose_step(server)
        self._below.end_step()

    def _choose_step(self, server: Server) -> None:
        self._catch_up(server)
        if self.cut is not None and self._entered != (self.cut, self.cut.computed):
            self._memory.enter(self.cut)
            self._entered = self.cut, self.cut.computed
        if self._waiting or self.cut is not None:
            if self._prefill(server):
                return
            if self._waiting and (self._retries or not self.full):
                server.ask_again()
        self._decode(server)

    def _catch_up(self, server: Server) -> None:
        """Account for the steps since the last decision."""
        if self._decoded_at >= 0:
            self.ratio.decode(server.steps - self._decoded_at - 1)
            self._decoded_at = -1
        if self._waits != server.wakes.waits:
            self.ratio.reset()
            self._waits = server.wakes.waits
        if self._retries or self._left or self._began or not server.decoding:
            self.full = self._left = self._began = False

    def finish(self, server: Server, request: Request) -> None:
        """The memory is free, and the batch no longer full."""
        self._forget(request)
        super().finish(server, request)

    def _forget(self, request: Request) -> None:
        self._left = True
        self._waiting.forget(request)
        self.orders.forget(request)
        self._looked.pop(request, None)

    def held_back(self, server: Server) -> str:
        """Why the batch counts as full."""
        return self._held

    def _decode(self, server: Server) -> None:
        if not server.decoding:
            return
        if self._fits(server, self._batch.growing()):
            self.ratio.decode()
            self._decoded_at = server.steps
        else:
            self._retract(server)
        self._grow(server)

    def _fits(self, server: Server, units: int) -> bool:
        """Whether `units` sequences can get another page each, evicting cached pages if necessary."""
        slots = units * self._page
        if self._cached is not None:
            return self._cached.make_room(slots)
        return slots <= server.allocator.free_slots

    def _grow(self, server: Server) -> None:
        """Give decoding requests their slots; with pages of several tokens, as if each needed a page."""
        self._batch.slide()
        if self._cached is not None and self._page > 1:
            self._cached.make_room(server.decoding * self._page)
            self._batch.growth.margin = server.decoding
        server.grow_due()

    def _retract(self, server: Server) -> None:
        """Send requests back to the queue until the others can continue."""
        kept = self._batch.retraction_order()
        out: list[Request] = []
        while not out or not self._fits(server, self._batch.growing()):
            if len(kept) == 1:
                break
            out.append(kept.pop())
            self._send_back(server, out[-1])
            if self._cached is not None:
                self._cached.make_room(len(kept) * RETRACT_STEPS)
        self.ratio.retracted((self._batch.generated(request), self.most_new(request)) for request in kept)
        self._batch.arrange(kept)
        for request in out:
            self._waiting.append(request)
        self.full = False

    def _send_back(self, server: Server, request: Request) -> None:
        self._looked[request] = request.known_tokens
        server.preempt(request, requeue=False)

    # -- prompts ------------------------------------------------------------------------------

    def _prefill(self, server: Server) -> bool:
        """Compute prompts in this step; False: no request can enter."""
        config, running = self.config, server.decoding
        if self.cut is None:
            if self.full or not self._waiting:
                return False
            if self._seated(server) >= config.max_num_seqs and not self._preempts:
                self.full, self._held = True, "seats"
                return False
        self.orders.sort(self._waiting, self._memory, server.running.values(), self._below)
        mixed = running if self.options.enable_mixed_chunk else 0
        decoding = sum([self._set_aside(server, r) for r in self._batch.requests()])
        budget = self._budget(self._memory.free_tokens(), decoding, mixed)
        chosen, went_on = self._choose(server, budget)
        if not chosen and not went_on:
            return False
        self.orders.processed += (server.step.prompts or NO_PROMPTS).tokens
        self._began = not server.decoding or self.options.enable_mixed_chunk
        pages = self._cached is not None or server.allocator.growth_unit
        mixes = self.options.enable_mixed_chunk and server.decoding and pages
        if mixes and self._fits(server, self._batch.growing()):
            self._grow(server)
            self._batch.arrange([*server.step.chunks, *self._batch.requests()])
        else:
            server.pause()
        return True

    def _budget(self, free: tuple[int, int], decoding: float, mixed: int) -> Budget:
        config = self.config
        tokens, chunked = config.max_num_batched_tokens, config.enable_chunked_prefill
        settings = free[0], self._page, decoding, tokens, chunked, mixed
        memory = self._windowed
        if memory is not None:
            pool = memory.pairs.windowed.pages * self._page
            return WindowBudget(settings, free[1], pool, memory.groups.window)
        return Budget(*settings)

    def _choose(self, server: Server, budget: Budget) -> tuple[list[Admission], int]:
        """Continue the cut prompt and admit requests that fit; returns these, and the cut prompt's tokens."""
        cut = self.cut
        went_on = self._go_on(server, budget, cut) if cut is not None else 0
        if self.options.ignore_eos and not server.allocator.caches:
            self._answers = FixedAnswers(self._to_come(server, cut if went_on else None))
        chosen: list[Admission] = []
        preempted: list[Request] = []
        passed = False
        for request in self._waiting.ready():
            if budget.spent:
                self._held = "token budget"
                break
            if budget.admitted >= self.config.max_num_seqs - self._seated(server):
                self.full, self._held = True, "seats"
            if self.full and not (self._preempts and self._preempt(server, budget, request, preempted)):
                break
            if not self._below.ready(request):
                passed = True
            elif not self._admit(server, budget, request, chosen):
                break
        if passed and not self.full:
            self._held = STORAGE
        if passed and chosen:
            entering = {request: None for request, *_ in chosen}
            self._waiting.arrange([*entering, *(one for one in self._waiting if one not in entering)])
        self._below.start_loading()
        if self._cached is not None:
            self._enter(server, cut, went_on, chosen)
        for request in preempted:
            self._waiting.append(request)
        return chosen, went_on

    def _enter(self, server: Server, cut: Request | None, went_on: int, chosen: Sequence[Admission]) -> None:
        """Allocate memory for the chosen requests, the first of the queue."""
        self._make_room(server, cut, went_on, chosen)
        if cut is not None and went_on:
            server.continue_prefill(cut, went_on)
        for request, match, tokens in chosen:
            if not server.admit_head((match.tokens if match else 0) + tokens, match):
                raise KvsimError(
                    f"request {request.index} finds no memory, and SGLang would end: what the GPU could give "
                    "up finds no room on the host, which waits for its storage; use a higher hicache_ratio"
                )

    def _seated(self, server: Server) -> int:
        """Requests that have a seat before this step."""
        return server.decoding

    def _go_on(self, server: Server, budget: Budget, cut: Request) -> int:
        """The next chunk of the cut prompt; 0: it waits."""
        missing = cut.known_tokens - cut.computed
        piece = budget.next_piece(missing)
        if not piece:
            return 0
        ends = piece == missing
        budget.charge(piece, min(self.most_new(cut), MOST_ESTIMATED) if ends else 0)
        if ends:
            self.cut = None
        else:
            self._left = True
        if self._cached is None and not server.continue_prefill(cut, piece):
            self.cut = None
            return 0
        return piece

    def _admit(self, server: Server, budget: Budget, request: Request, chosen: list[Admission]) -> bool:
        """Admit the next request of the queue if it fits; False: no request after it is considered."""
        match = self._memory.look(request, request.known_tokens - 1) if server.allocator.caches else None
        cached = match.tokens if match else 0
        missing = self._looked[request] = request.known_tokens - cached
        still = min(max(self.most_new(request) - request.generated, 0), MOST_ESTIMATED)
        budget.hold(*woken(match))
        below = self._below.on_host(match)
        if self._answers is not None:
            self._answers.add(self.most_new(request) - request.generated, request.known_tokens)
            tokens = budget.admit_fixed(missing, still, self._answers)
        else:
            tokens = budget.admit(cached + below, missing - below, still, below)
            if tokens and below:
                loaded = self._below.load(request, match)
                cached, missing = cached + loaded, missing - loaded
                budget.hold(loaded)
                if not loaded:
                    tokens = budget.admit(cached, missing, still)
        if tokens is None:
            self._no_room(server, budget, request)
            return False
        if tokens < 1:
            self._held = "token budget"
            return False
        if self._cached is not None:
            if match is not None:
                assert isinstance(match, SglangMatch)
                self._cached.hold(match)
        elif not server.admit_head(cached + tokens, match):
            return False
        chosen.append((request, match, tokens))
        whole = tokens == missing
        if not whole:
            self.cut, self._left = request, True
        budget.charge(tokens, min(self.most_new(request), MOST_ESTIMATED) if whole else 0)
        if not budget.has_room:
            self._no_room(server, budget, request)
            return False
        if budget.tokens <= 0:
            self._held = "token budget"
            return False
        return True

    def _to_come(self, server: Server, cut: Request | None) -> Iterator[tuple[int, int]]:
        """Answer tokens to come and tokens held, of running requests and a prompt in progress."""
        for request in [*self._batch.requests(), *([cut] if cut is not None else [])]:
            done = self._batch.generated(request)
            yield self.most_new(request) - done, request.prompt_tokens + done

    def _no_room(self, server: Server, budget: Budget, request: Request) -> None:
        """Memory is short: the batch counts as full while anything runs; else the request can never run."""
        if self._windowed is not None and not (server.running or budget.admitted):
            raise KvsimError(
                f"request {request.index} would wait forever, as in SGLang: the pool of windowed layers "
                f"({self._windowed.free_windowed:,} tokens) is too small beside what the request finds "
                "cached; use a higher swa_full_tokens_ratio"
            )
        self.full = budget.admitted > 0 or server.decoding > 0
        self._held = NO_ROOM
        if self._waiting and self._waiting[0] is request:
            server.refuse_head(request.known_tokens)

    def _make_room(
        self, server: Server, cut: Request | None, went_on: int, chosen: Sequence[Admission]
    ) -> None:
        """Evict what all of them need; with pages of several tokens, as if each needed one more."""
        assert self._cached is not None
        tokens = went_on + sum([tokens for *_, tokens in chosen])
        if self._page > 1:
            tokens += self._page * (len(chosen) + (went_on > 0))
        self._cached.make_room(tokens)

    def _preempt(self, server: Server, budget: Budget, request: Request, preempted: list[Request]) -> bool:
        """Preempt the least urgent requests for an urgent one; False: there are none, or too few."""
        threshold = self.options.preemption_threshold
        assert threshold is not None
        came = self._waiting.came
        running = self._batch.requests()
        needed = self._looked.get(request, 0) + min(self.most_new(request), MOST_ESTIMATED) - budget.left
        victims: list[Request] = []
        for other in sorted(running, key=lambda r: (-r.priority, -came(r))):
            if other.priority - request.priority <= threshold:
                break
            victims.append(other)
            needed -= self._set_aside(server, other)
            if needed <= 0:
                break
        if not victims or needed > 0:
            return False
        for other in [r for r in running if r in victims]:
            budget.give(self._set_aside(server, other))
            before = self._memory.free_tokens()
            self._send_back(server, other)
            budget.hold(*(a - b for a, b in zip(before, self._memory.free_tokens(), strict=True)))
            preempted.append(other)
        return True
