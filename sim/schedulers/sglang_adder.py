"""The prompts of a step, added one after another as by SGLang's PrefillAdder.

    chunked    the prompt that was cut continues
    waiting    enter while they fit, in the order of the policy; the last may be cut
    preempted  with a threshold, requests less urgent by more than that leave for one that is urgent

Text is matched when a request is considered; all entering requests are locked, and only then is anything
evicted. Source: SGLang 0.5.23, `schedule_policy.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvsim.allocators.base import Match
from kvsim.allocators.sglang.rows import SglangMatch
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import NO_ROOM, STORAGE
from kvsim.sim.schedulers.sglang_budget import Budget, FixedAnswers
from kvsim.sim.schedulers.sglang_lengths import MOST_ESTIMATED, AnswerLengths
from kvsim.sim.schedulers.sglang_order import woken
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.sglang_parts import SglangBatch, WaitingList


@dataclass
class PrefillAdder:
    """Chooses the prompts of one step."""

    server: Server
    batch: SglangBatch
    waiting: WaitingList
    lengths: AnswerLengths
    budget: Budget
    seats: int  # requests that may enter
    threshold: int | None = None  # how much less urgent those are that leave for one that is urgent
    chunked_req: Request | None = None  # whose prompt is cut
    continued: int = 0  # tokens of the prompt that was cut before
    can_run: list[tuple[Request, Match | None, int]] = field(default_factory=list)  # and their tokens
    preempted: list[Request] = field(default_factory=list)
    answers: FixedAnswers | None = None  # those that run, if their lengths are known

    def fill(self) -> bool:
        """Continue the prompt that was cut and let requests enter; False: the step computes no prompt."""
        cut = self.chunked_req
        if cut is not None:
            self._add_chunked_req(cut)
        if self.lengths.fixed and not self.server.allocator.caches:
            self.answers = FixedAnswers(self._to_come(cut if self.continued else None))
        self._add_waiting()
        self.batch.memory.hicache.start_loading()
        if self.batch.memory.cached is not None:
            self._enter(cut)
        for request in self.preempted:
            self.waiting.append(request)
        return bool(self.can_run or self.continued)

    def _add_chunked_req(self, request: Request) -> None:
        missing = request.known_tokens - request.computed
        if piece := self.budget.next_piece(missing):
            self.chunked_req = None
            self._charge(request, piece, missing)
            if self.batch.memory.cached is not None or self.server.continue_prefill(request, piece):
                self.continued = piece
            else:
                self.chunked_req = None

    def _to_come(self, chunked_req: Request | None) -> Iterator[tuple[int, int]]:
        """Answer tokens to come and tokens held, of running requests and a prompt in progress."""
        for request in [*self.batch.requests(), *([chunked_req] if chunked_req is not None else [])]:
            done = self.batch.generated(request)
            yield self.lengths.most_new(request) - done, request.prompt_tokens + done

    def _add_waiting(self) -> None:
        """Add requests in the order of the queue, until one does not fit."""
        full, hicache, passed = self.batch.full, self.batch.memory.hicache, False
        for request in self.waiting.ready():
            if self.budget.spent:
                full.why = "token budget"
                break
            if self.budget.admitted >= self.seats:
                full.now, full.why = True, "seats"
            if full.now and not self.preempt_to_schedule(request):
                break
            if not hicache.ready(request):
                passed = True
            elif why := self.add_one_req(request):
                full.why = why
                break
        if passed and not full.now:
            full.why = STORAGE
        if passed and self.can_run:
            entering = {request: None for request, *_ in self.can_run}
            self.waiting.arrange([*entering, *(one for one in self.waiting if one not in entering)])

    def add_one_req(self, request: Request) -> str:
        """Add the next request of the queue if it fits; why no request after it is considered, or ""."""
        budget, cached, caches = self.budget, self.batch.memory.cached, self.server.allocator.caches
        match = self.batch.memory.look(request, request.known_tokens - 1) if caches else None
        missing, tokens = self._fit(request, match)
        if tokens is None:
            return self._no_room(request)
        if tokens < 1:
            return "token budget"
        if cached is None:
            if not self.server.admit_head(request.known_tokens - missing + tokens, match):
                return self.batch.full.why
        elif match is not None:
            assert isinstance(match, SglangMatch)
            cached.hold(match)
        self.can_run.append((request, match, tokens))
        self._charge(request, tokens, missing)
        if not budget.has_room:
            return self._no_room(request)
        return "" if budget.tokens > 0 else "token budget"

    def _fit(self, request: Request, match: Match | None) -> tuple[int, int | None]:
        """Tokens that a request misses, and how many of them are computed now; None: memory is short."""
        budget, hicache, cached = self.budget, self.batch.memory.hicache, match.tokens if match else 0
        missing = self.waiting.missing[request] = request.known_tokens - cached
        to_come = self.lengths.most_new(request) - request.generated
        still = min(max(to_come, 0), MOST_ESTIMATED)
        budget.hold(*woken(match))
        if self.answers is not None:
            self.answers.add(to_come, request.known_tokens)
            return missing, budget.admit_fixed(missing, still, self.answers)
        below = hicache.on_host(match)
        tokens = budget.admit(cached + below, missing - below, still, below)
        if tokens and below:
            loaded = hicache.load(request, match)
            budget.hold(loaded)
            if loaded:
                return missing - loaded, tokens
            tokens = budget.admit(cached, missing, still)
        return missing, tokens

    def _charge(self, request: Request, tokens: int, missing: int) -> None:
        """Compute some of the tokens that a prompt misses: all, or it is cut."""
        if tokens < missing:
            self.chunked_req, self.batch.full.stale = request, True
        self.budget.charge(tokens, self.lengths.estimated(request) if tokens == missing else 0)

    def _no_room(self, request: Request) -> str:
        """Memory is short: the batch counts as full while anything runs; else the request can never run."""
        server, admitted, windowed = self.server, self.budget.admitted, self.batch.memory.windowed
        if windowed is not None and not (server.running or admitted):
            raise KvsimError(
                f"request {request.index} would wait forever, as in SGLang: the pool of windowed layers "
                f"({windowed.free_windowed:,} tokens) is too small beside what the request finds "
                "cached; use a higher swa_full_tokens_ratio"
            )
        self.batch.full.now = admitted > 0 or server.decoding > 0
        if self.waiting and self.waiting[0] is request:
            server.refuse_head(request.known_tokens)
        return NO_ROOM

    def _enter(self, chunked_req: Request | None) -> None:
        """Evict what all of them need, with larger pages as if each needed one more; allocate it."""
        tokens, page = self.continued + sum([tokens for *_, tokens in self.can_run]), self.budget.page_size
        if page > 1:
            tokens += page * (len(self.can_run) + (self.continued > 0))
        self.batch.memory.make_room(tokens)
        if chunked_req is not None and self.continued:
            self.server.continue_prefill(chunked_req, self.continued)
        for request, match, tokens in self.can_run:
            if not self.server.admit_head((match.tokens if match else 0) + tokens, match):
                raise KvsimError(
                    f"request {request.index} finds no memory, and SGLang would end: what the GPU could give "
                    "up finds no room on the host, which waits for its storage; use a higher hicache_ratio"
                )

    # -- preemption ---------------------------------------------------------------------------

    def preempt_to_schedule(self, request: Request) -> bool:
        """Preempt the least urgent requests for an urgent one; False: there are none, or too few."""
        victims = self._victims(request)
        for other in [r for r in self.batch.requests() if r in victims] if victims else ():
            self.budget.give(self._reserved(other))
            before = self.batch.memory.free_tokens()
            self.waiting.missing[other] = other.known_tokens
            self.server.preempt(other, requeue=False)
            self.seats += 1
            self.budget.hold(*(a - b for a, b in zip(before, self.batch.memory.free_tokens(), strict=True)))
            self.preempted.append(other)
        return bool(victims)

    def _victims(self, request: Request) -> list[Request]:
        """Running requests that would make room for an urgent one, least urgent first; none: too few."""
        threshold, came = self.threshold, self.waiting.came
        if threshold is None:
            return []
        victims: list[Request] = []
        needed = self.waiting.missing.get(request, 0) + self.lengths.estimated(request) - self.budget.left
        for other in sorted(self.batch.requests(), key=lambda r: (-r.priority, -came(r))):
            if other.priority - request.priority <= threshold:
                break
            victims.append(other)
            needed -= self._reserved(other)
            if needed <= 0:
                return victims
        return []

    def _reserved(self, request: Request) -> float:
        return self.lengths.reserved(request, self.batch.generated(request))
