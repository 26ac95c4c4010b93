"""The current state of a server: the queue, the batch and the KV memory.

    waiting    waiting requests, in the order of the policy (queues.py)
    batch      running and decoding requests, and when each must grow (batch.py)
    memory     the allocator and its counters (memory.py)

A scheduler decides by calling the operations here. Each is carried out immediately, or refused, and entered
in `step`, the decision (decision.py); the replica keeps the time. Schedulers that need more bring their own
kind of batch or memory, and keep what only they know: groups of samples (groups.py), beams (beam_batch.py),
pieces of prompts (pieces.py), SGLang's order (sglang_parts.py).

Sequence ids count admissions. So `running` is in ascending order of id, the id of a preempted request never
comes back, and the last of `running` is the latest admission.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import InvariantError, Match
from kvsim.sim.errors import NoProgress
from kvsim.sim.record.events import Events, Refusal
from kvsim.sim.record.span import Rest
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.queues import Queue, queue_named
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.reservation import Predicted
from kvsim.sim.serving.seats import Seats
from kvsim.sim.serving.totals import Totals
from kvsim.sim.serving.wakes import Wakes

MOST_FUTILE: Final = 1_000
"""Preemptions without a new token, besides one per request, that are not an error yet."""


@dataclass(frozen=True)
class Rules:
    """Fixed rules of a server.

    Attributes
    ----------
    bound : callable
        Tokens to set aside for a request when it is admitted (the reservation policy).
    policy : str
        The order of the queue, see sim/serving/queues.py.
    publishes_late : bool
        Whether other requests can find a prefix only after the step that computes it.
    known_late : bool
        Whether a step is decided before the tokens of the previous step are known (asynchronous scheduling).
    victim : callable or None
        Which request is preempted if memory is short; None: as `policy` says (sim/serving/batch.py).
    """

    bound: Callable[[Request], int]
    policy: str = "fcfs"
    publishes_late: bool = False
    known_late: bool = False
    victim: Callable[[], Request] | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Server:
    """The state of one simulated engine.

    Parameters
    ----------
    batch : Batch
        Running requests and their memory: `Batch(KvMemory(allocator))`.
    rules : Rules
        Fixed rules.
    waiting : Queue, optional
        Waiting requests; by default the queue of the policy.

    Attributes
    ----------
    step : Decision
        The step that is being decided.
    steps : int
        Engine steps executed.
    swapped : int
        Sequences in the host pool.
    wakes : Wakes
        When it looks again, apart from its steps.
    holds : bool
        Whether it holds computed blocks until another server has read them (held.py).
    """

    holds: ClassVar[bool] = False

    def __init__(self, batch: Batch, rules: Rules, waiting: Queue | None = None) -> None:
        self.batch, self.rules = batch, rules
        self.memory, self.allocator = batch.memory, batch.allocator
        self.running, self.progress = batch.running, batch.progress
        self.waiting: Queue = queue_named(rules.policy) if waiting is None else waiting
        self.swapped = 0
        self.seats = Seats()
        self.step = Decision()
        self.steps = self.now_ps = 0
        self.wakes = Wakes()
        self.totals = Totals()
        self.events: Events | None = None

    def watch(self, events: Events | None, context_tile: int) -> None:
        """Record events; and how contexts differ, in tiles of `context_tile` tokens, unless that is 0."""
        self.events = events
        self.batch.watch(events is not None, context_tile)

    @property
    def decoding(self) -> int:
        """Sequences that decode."""
        return self.progress.size

    @property
    def prefill_held(self) -> int:
        """Tokens held by sequences that do not decode."""
        return self.memory.prefill_held

    @property
    def anybody_waits(self) -> bool:
        """Whether any request may enter when memory is free."""
        return len(self.waiting) > 0 or self.swapped > 0

    @property
    def last_step(self) -> int:
        """Number of the step that ended last; 0 if none has, where prompts are computed elsewhere."""
        return max(self.steps - 1, 0)

    # -- the step -----------------------------------------------------------------------------

    def wait(self, until_ps: int) -> None:
        """Time passes without a step."""
        self.now_ps = until_ps
        self.wakes.waits += 1

    def pause(self) -> None:
        """Pause the decoding sequences for this step."""
        self.step.paused = self.step.changed = True

    def hold_for(self, steps: int) -> None:
        """Let the scheduler decide again after this many steps at the latest, even if nothing happens."""
        self.step.of_validity().steps = steps

    def hold_until(self, until_ps: int) -> None:
        """Let the scheduler decide again at the first boundary from then on, even if nothing happens."""
        self.step.of_validity().until_ps = until_ps

    def ask_again(self) -> None:
        """The next step may find what this one did not: let the scheduler decide again before that step."""
        self.step.changed = True

    def tokens(self) -> tuple[int, int]:
        """(held, contexts) in the step, including its own new tokens.

        These are the slots that hold a token, and the sum of the contexts of all decoding seats.
        """
        progress, memory, allocator = self.progress, self.memory, self.allocator
        if self.step.paused:
            held, contexts = progress.all_stored(), 0
        else:
            held = contexts = progress.contexts()
            if self.seats.count:
                contexts += self.seats.contexts(progress.clock)
        held += memory.prefill_held
        if memory.windows or allocator.shared_tokens or allocator.state_slots:
            held = held * allocator.slots_per_token - allocator.expired_slots - allocator.shared_tokens
            held += allocator.state_slots
        return held, contexts

    def lengths(self, new: bool = True) -> dict[int, int]:
        """Tokens of each living sequence in the step, including its `new` ones; counted from scratch."""
        return self.batch.lengths(new and not self.step.paused)

    def external_slots(self) -> int:
        """Free slots that cannot serve the head of the queue, or else a request of the mean size so far."""
        if not self.memory.abilities.external_slots:
            return 0
        if self.waiting:
            head = self.waiting[0]
            need = self.allocator.slots_needed(head.known_tokens, self.rules.bound(head))
        else:
            need = self.memory.admitted_slots // max(self.memory.admissions, 1)
        return self.allocator.external_slots(need)

    def after_step(self) -> None:
        """Let the allocator work after a step; what it allocated ahead may never be written."""
        allocator, used, worker = self.allocator, self.allocator.used_slots, self.memory.abilities.after_steps
        if worker is not None:
            worker.after_step(self.lengths(new=False))
        if allocator.used_slots == used:  # it allocated nothing
            return
        for request in self.running.values():
            if request.state is not State.FINISHED:
                self.memory.set_internal(
                    request, max(0, allocator.surplus(request.seq, request.final_tokens))
                )

    def held_slots(self) -> int:
        """Slots with tokens that only requests waiting to be read hold."""
        return 0

    def rest(self) -> Rest:
        """Counters that are zero on most servers."""
        allocator, held = self.allocator, self.held_slots()
        external, cached = self.external_slots(), allocator.cached_slots
        return external, cached, allocator.idle_slots, allocator.shared_tokens, held

    # -- admission and prefill ----------------------------------------------------------------

    def match_head(self, whole: bool = False, budget: int | None = None) -> Match | None:
        """The cached part of the head of the queue, without its last token unless `whole`; None: no cache.

        With a `budget` the head asks for room for the cached tokens and at most `budget` more: its demand
        then depends on what stays cached.
        """
        prefixes, pieces = self.memory.prefixes, self.memory.abilities.pieces
        if prefixes is None:
            return None
        request = self.waiting[0]
        self._fill_streams(request)
        if pieces is not None:
            pieces.introduce(request.own, request.prompt_tokens)
        match = prefixes.match(request.content, request.own, request.known_tokens - (not whole))
        by_cached = budget is not None and match.tokens > 0 and request.known_tokens > budget
        if by_cached or self.step.valid is not None:
            self.step.of_validity().asks_by_cached = by_cached
        return match

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a prompt that are cached here, without its last; also for requests that are elsewhere."""
        prefixes, here = self.memory.prefixes, 0
        self._fill_streams(request)
        if prefixes is not None:
            here = prefixes.match(request.content, request.own, request.prompt_tokens - 1).tokens
        find = self.memory.below.find
        return here if find is None else here + find(request, here)

    def _fill_streams(self, request: Request) -> None:
        """Enter what others have generated of a text so far; a refusal may then end without a release."""
        progress, prefixes = self.progress, self.memory.prefixes
        granted = self.batch.granted(self.step) and not self.rules.known_late
        for stream, _, _ in request.content:
            for author in progress.authors(stream):
                self.step.changed = True
                tokens = progress.tokens(author) if granted else progress.stored(author)
                if prefixes is not None:
                    prefixes.fill(author.seq, tokens)

    def admit_head(
        self,
        tokens: int,
        match: Match | None = None,
        chunk: int | None = None,
        cached: int | None = None,
        charged: int = 0,
    ) -> bool:
        """Admit the head of the queue with `tokens`, and prefill some of them in this step; False: no room.

        What `match_head` found is already computed, or only `cached` tokens of it; `charged` of these count
        against the budget anyway. Of the rest, this step computes all, or `chunk`.
        """
        request, memory, allocator = self.waiting[0], self.memory, self.allocator
        seq = memory.admissions
        bound, copied = self.rules.bound(request), allocator.copied_slots
        if not (
            allocator.admit(seq, tokens, bound)
            if match is None
            else memory.admit_after(match, seq, tokens, bound)
        ):
            self._note_refusal(request, tokens, bound)
            return False
        if self.events:
            hits = match.tokens if match and cached is None else cached or 0
            self.events.admitted(request, self.now_ps, self.steps, tokens, hits)
            self.events.copied(request, self.now_ps, self.steps, allocator.copied_slots - copied)
        self.waiting.popleft()
        memory.admissions += 1
        if memory.abilities.external_slots:
            memory.admitted_slots += allocator.slots_needed(tokens, bound)
        request.move(State.PREFILL)
        request.seq = seq
        self.running[seq] = request
        if request.first_scheduled_ps is None:
            request.first_scheduled_ps = self.now_ps
            request.first_scheduled_step = self.steps
        if (match is not None and match.tokens) or cached:
            hits = request.computed = match.tokens if match and cached is None else cached or 0
            self.memory.prefill_held += hits
            prompts = self.step.of_prompts()
            prompts.hit_tokens += hits
            prompts.charged_hit_tokens += charged
            self.totals.hit_tokens += hits
        self.compute(request, tokens - request.computed if chunk is None else chunk)
        return True

    def most_reserved(self, request: Request) -> int:
        """The largest reservation that a request may ever make."""
        return (
            self.rules.bound.at_last(request)
            if isinstance(self.rules.bound, Predicted)
            else self.rules.bound(request)
        )

    def head_fits(self, tokens: int, match: Match | None = None) -> bool:
        """Whether the head of the queue would fit with all of its `tokens`."""
        request = self.waiting[0]
        bound = self.rules.bound(request)
        fits = self.memory.can_hold(match, tokens, bound)
        if not fits:
            self._note_refusal(request, tokens, bound)
        return fits

    def heads_fit(self, count: int) -> bool:
        """Whether the first `count` of the queue fit together: they are allocated, and released again.

        Only for allocators that reserve: they are left exactly as they were.
        """
        allocator, first = self.allocator, self.memory.admissions
        placed = first
        for request in islice(self.waiting, count):
            tokens, bound = request.known_tokens, self.rules.bound(request)
            if not allocator.admit(placed, tokens, bound):
                self._note_refusal(self.waiting[0], tokens, bound)
                break
            placed += 1
        for seq in reversed(range(first, placed)):
            allocator.release(seq)
        return placed == first + count

    def head_leaves(self, tokens: int, match: Match | None, watermark: float) -> bool:
        """Whether admitting the head with `tokens` leaves the watermark free; always if nothing is running.

        The watermark counts in blocks, and vLLM's pool has one more block than it can use.
        """
        if not self.running:
            return True
        allocator, request = self.allocator, self.waiting[0]
        unit = allocator.block_slots
        least = int(watermark * (allocator.capacity_slots // unit + 1)) * unit
        return allocator.leaves(match, tokens, self.rules.bound(request)) >= least

    def resume_head(self, request: Request) -> bool:
        """Let the head of the queue, which was set aside, decode again; False: no room for its next token."""
        batch = self.batch
        if not self.allocator.grow(request.seq, request.computed + 1):
            self._note_refusal(request, request.computed + 1, self.rules.bound(request))
            return False
        self.waiting.popleft()
        del batch.aside[request.seq]
        self.running[request.seq] = request
        if self.events:
            self.events.resumed(request, self.now_ps, self.steps)
        batch.join(request, self.now_ps)
        self.step.changed = True
        return True

    def begin_loaded(self, request: Request, tokens: int) -> None:
        """Run a request that already holds memory, and prefill `tokens` of it in this step."""
        request.move(State.PREFILL)
        if self.events:
            have = request.computed
            self.events.admitted(request, self.now_ps, self.steps, have + tokens, have)
        self.running[request.seq] = request
        if request.first_scheduled_ps is None:
            request.first_scheduled_ps = self.now_ps
            request.first_scheduled_step = self.steps
        self.compute(request, tokens)

    def continue_prefill(self, request: Request, tokens: int) -> bool:
        """Prefill `tokens` more; preempt the last running request while there is no room for them."""
        if not self.make_room(request, request.computed + tokens, request.computed):
            return False
        self.compute(request, tokens)
        return True

    def compute(self, request: Request, tokens: int) -> None:
        """Compute `tokens` more of a prompt in this step; there is room for them."""
        start, allocator, prefixes = request.computed, self.allocator, self.memory.prefixes
        request.computed = start + tokens
        self.memory.prefill_held += tokens
        self.step.compute(request, start, tokens)
        if prefixes is not None and not self.rules.publishes_late:
            prefixes.fill(request.seq, request.computed)
        surplus = allocator.surplus(request.seq, request.final_tokens)
        if surplus > 0 or request.internal:  # memory that is made anew each time may once have been too much
            self.memory.set_internal(request, max(0, surplus))

    def prompt_done(self, request: Request) -> int | None:
        """The last chunk is computed: the request has a token. Returns the time of its previous token."""
        last_ps = request.last_token_ps if request.first_token_ps is not None else None
        if last_ps is None:
            request.first_token_ps = self.now_ps
            request.first_token_step = self.last_step
        request.generated += 1
        request.last_token_ps = self.now_ps
        self.totals.prompts += 1
        return last_ps

    def refuse_head(self, tokens: int | None = None) -> None:
        """The scheduler finds no room for the head of the queue; with `tokens`: count the refusal."""
        self.step.no_room = True
        if tokens is not None:
            self._note_refusal(self.waiting[0], tokens, self.rules.bound(self.waiting[0]))

    def keep_out(self, tokens: int) -> None:
        """The head of the queue lost its memory in this step: what is left of it is not for its `tokens`."""
        head, self.step.no_room = self.waiting[0], True
        if self.events:
            need = self.allocator.slots_needed(tokens, self.rules.bound(head))
            self.step.of_refusals().head = Refusal(head, need)

    def _note_refusal(self, request: Request, tokens: int, bound: int) -> None:
        allocator = self.allocator
        self.step.no_room = True
        if self.events:
            self.step.of_refusals().head = Refusal(request, allocator.slots_needed(tokens, bound))
        if allocator.most_sequences is not None and len(self.running) >= allocator.most_sequences:
            return
        if not request.fragmented and allocator.slots_needed(tokens, bound) <= allocator.free_slots:
            request.fragmented = True
            self.totals.fragmented_refusals += 1

    # -- decoding -----------------------------------------------------------------------------

    def grow_due(self) -> None:
        """Give every decoding sequence room for this step's tokens; if there is none, preempt the last."""
        unpromised = self.batch.grow_promised(self.step)
        if unpromised is not None:
            self.grow_one_by_one(*unpromised)

    def grow_one_by_one(self, due: list[int], leaving: list[int]) -> None:
        """Like `grow_due`, for sequences without a promise: those that must grow, and that leave slots."""
        batch = self.batch
        self.step.changed = True
        running, tokens, make_room = self.running, self.progress.tokens, self.make_room
        grown = [
            seq
            for seq in (sorted({*due, *leaving}) if leaving else due[:])
            if seq in running and make_room(running[seq], tokens(running[seq]))
        ]
        for seq in leaving:
            if seq in running:
                batch.plan_leaving(running[seq])
        batch.grew(grown)

    def start_decode(self, request: Request) -> None:
        """The prefill is done and gave a token; each decode step will add more."""
        self.batch.join(request, self.now_ps)

    def end_prefill(self, request: Request) -> None:
        """The prefill is done and gave the only token."""
        self.memory.prefill_held -= request.computed

    # -- seats --------------------------------------------------------------------------------

    def await_seat(self, request: Request) -> None:
        """The prefill is done and gave a token, but the request must wait for a free seat to decode."""
        self.seats.waiting[request.seq] = request

    def fill_seats(self, seats: int) -> None:
        """Let requests that wait for one of `seats` decode, first come, first served."""
        seatless = self.seats.waiting
        while seatless and self.progress.size < seats:
            self.start_decode(seatless.pop(next(iter(seatless))))

    def keep_seat(self, request: Request) -> None:
        """A static batch keeps a finished sequence: its memory is dead weight, its seat keeps computing."""
        self.depart(request)
        self.seats.add(request.final_tokens, self.progress.clock, self.progress.spread)

    def clear_seats(self) -> None:
        """The static batch is over: its last seats are free."""
        self.seats.clear(self.progress.spread)

    # -- leaving ------------------------------------------------------------------------------

    def release(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Free the memory of a request that has already left its decode or prefill.

        Its prefix can be found again, except for the last `unknown` tokens.
        """
        self.memory.free(request, comes_back, unknown)
        if request.seq in self.batch.aside:
            del self.batch.aside[request.seq]
        else:
            del self.running[request.seq]

    def depart(self, request: Request) -> None:
        """A finished request keeps its memory, as dead weight, until it is released."""
        self.memory.set_internal(request, self.allocator.retire(request.seq))

    def finish(self, request: Request) -> None:
        """A request has its last token, and the engine knows it: free its memory."""
        self.release(request)

    def depart_late(self, request: Request) -> None:
        """A request is finished, but the engine learns it after the next decision: it runs until then."""
        self.batch.departed[request.seq] = request
        if self.memory.prefixes is not None:
            self.memory.prefixes.fill(request.seq, request.computed - self.unknown_tokens(request))

    def release_departed(self) -> None:
        """The step is decided; now the engine knows which requests finished before it."""
        for request in self.batch.departed.values():
            self.finish(request)
        if self.waiting:  # may enter next time
            self.step.changed = True
            self.step.departures += len(self.batch.departed)
        elif not self.progress.size:
            self.step.departures += len(self.batch.departed)
        self.batch.departed.clear()

    def unknown_tokens(self, request: Request) -> int:
        """Tokens, 0 or 1, that the last step stored by feeding a token that was not known yet."""
        return int(self.rules.known_late and request.computed > request.known_tokens)

    def make_room(self, request: Request, tokens: int, computed: int | None = None) -> bool:
        """Grow a sequence, preempting others until it fits; False: it preempted itself."""
        allocator, seq, copied = self.allocator, request.seq, self.allocator.copied_slots
        while not (
            allocator.grow(seq, tokens) if computed is None else allocator.grow_chunk(seq, computed, tokens)
        ):
            victim = self.rules.victim() if self.rules.victim else self.batch.victim(self.rules.policy)
            if allocator.reserves:  # freeing what the others hold would not help
                victim = request
                request.outgrown += 1
            self.preempt(victim, by=request)
            if victim is request:
                alone = not self.batch.living()
                if alone and self.waiting and self.waiting[0] is request:
                    self._drop_stuck(request, tokens)
                return False
        if self.events:
            self.events.copied(request, self.now_ps, self.steps, allocator.copied_slots - copied)
        return True

    def _drop_stuck(self, request: Request, tokens: int) -> None:
        """Alone in memory it found no room for `tokens`: drop it if it got no further than last time.

        With drafts it may need no more room than then, as its text grew: it was given a token meanwhile.
        """
        before, known = request.stuck_at
        if tokens <= before and request.known_tokens <= known:
            self.drop_head(
                f"finds no room to grow in an empty arena of {self.allocator.capacity_slots:,} slots"
            )
        request.stuck_at = tokens, request.known_tokens

    def drop_head(self, reason: str) -> None:
        """The head of the queue can never be served, nor any other waiting answer to its prompt."""
        index = self.waiting[0].index
        answers = [request for request in self.waiting if request.index == index]
        for request in answers:
            self.waiting.remove(request)
        self.step.reject(index, reason, sum(request.preemptions for request in answers))

    def set_aside(self, request: Request) -> None:
        """A decoding request gives up its seat and goes to the queue, keeping everything it holds."""
        self.batch.leave(request)
        self.memory.prefill_held += request.computed
        request.move(State.ASIDE)
        del self.running[request.seq]
        self.batch.aside[request.seq] = request
        if self.events:
            self.events.left("set_aside", request, self.now_ps, self.steps, None, self.step.displacer)
        self.waiting.appendleft(request)
        self.step.changed = True

    def preempt(self, request: Request, requeue: bool = True, by: Request | None = None) -> None:
        """Preempt by recomputation, to make room for `by`, or for the step's displacer: free everything.

        If `requeue`, put the request back at the head of the queue; one that was set aside is already there.
        """
        if request.state == State.FINISHED:
            self._preempt_departed(request)
            return
        unknown = 0
        if request.state == State.DECODE:
            known_before = request.known_tokens
            self.batch.leave(request)
            if self.rules.known_late:
                unknown = int(request.computed > known_before)
            if by is not None and by.seq > request.seq:
                # its token of this step was already scheduled, and can still be found
                unknown = 0 if self.rules.known_late else -1
        elif request.state == State.ASIDE:
            self.memory.prefill_held -= request.computed
            unknown = int(self.rules.known_late and request.last_token_ps == self.now_ps)
            requeue = False
        else:
            self.memory.prefill_held -= request.computed
            request.known_tokens = request.prompt_tokens + request.generated
            self.seats.waiting.pop(request.seq, None)
        request.move(State.WAITING)
        request.reached = max(request.reached, request.computed)
        request.preemptions += 1
        if self.events:
            self.events.left("preempt", request, self.now_ps, self.steps, by, self.step.displacer)
        self.release(request, comes_back=True, unknown=unknown)
        self.totals.thrown_tokens += request.computed
        request.computed = 0
        if requeue:
            self.waiting.appendleft(request)
        self.step.preempt()
        self._note_preemption(request)

    def _note_preemption(self, request: Request) -> None:
        """Count it; too many preemptions without a new token are an error."""
        totals = self.totals
        totals.preemptions += 1
        tokens = self.progress.clock + totals.prompts
        if tokens != totals.tokens:
            totals.tokens, totals.futile = tokens, 0
        totals.futile += 1
        if totals.futile > MOST_FUTILE + len(self.running) + len(self.waiting):
            raise NoProgress(
                f"requests preempt each other forever: {totals.futile:,} preemptions up to step "
                f"{self.steps:,} without a new token, the last of request {request.index} "
                f"({request.known_tokens:,} tokens, {self.allocator.capacity_slots:,} slots)"
            )

    def note_wait(self) -> None:
        """Time passed until a transfer ended; too many such waits in vain are an error."""
        if self.batch.loading or not self.waiting:
            return
        if self.wakes.note_vain(self.progress.clock + self.totals.prompts):
            head, slots = self.waiting[0], f"{self.allocator.capacity_slots:,} slots"
            why = self.wakes.in_circles or f"for room, or for what another takes the place of ({slots})"
            raise NoProgress(
                f"tiers below the memory move blocks forever: {self.wakes.in_vain:,} waits up to step "
                f"{self.steps:,} without a new token, while request {head.index} "
                f"({head.known_tokens:,} tokens) waits {why}"
            )

    def _preempt_departed(self, request: Request) -> None:
        """Preempt a request whose last token is under way: it finishes anyway."""
        del self.batch.departed[request.seq]
        self.release(request, unknown=self.unknown_tokens(request))
        self.totals.preemptions += 1
        self.step.preempt()
        self.step.of_refusals().preempted_finished.append(request.index)

    def check(self) -> None:
        """Raise InvariantError if the running sums and the allocator's own count disagree."""
        lengths = self.lengths()
        living = self.batch.living()
        finals = {seq: living[seq].final_tokens for seq in lengths}
        counted = self.allocator.ledger(lengths, finals)
        held, internal = self.tokens()[0], self.memory.internal_slots()
        if (counted.token, counted.internal) != (held, internal):
            raise InvariantError(f"step {self.steps}: tokens {held}, internal {internal}, but {counted}")
