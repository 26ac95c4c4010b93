"""What the server holds now: the queue, the running requests and their memory.

A scheduler decides by calling the operations here. Each is carried out at once, or refused, and entered in
`step`, the decision (decision.py); the replica keeps the time. What decodes is in decoding.py and
progress.py; here are the queue, admission, prefill and eviction.

Sequence ids count admissions. So ascending id is the order of `running`, the id of a preempted
request never comes back, and the last of `running` is the latest admission.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator, InvariantError, Match
from kvsim.sim.record.events import Events, Refusal
from kvsim.sim.serving.decoding import Decoding
from kvsim.sim.serving.progress import Lockstep, Progress
from kvsim.sim.serving.queues import Queue, queue_named
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.reservation import Predicted
from kvsim.sim.serving.seats import Seats
from kvsim.sim.serving.spread import Contexts
from kvsim.sim.serving.totals import Totals


@dataclass(frozen=True)
class Rules:
    """What holds for a server as long as it runs.

    Attributes
    ----------
    policy : str
        The order of the queue, see sim/serving/queues.py.
    publishes_late : bool
        Whether a prefix can be found by others only after the step that computes it.
    known_late : bool
        Whether a step is decided before it is known what the one before generated (asynchronous scheduling).
    """

    policy: str
    publishes_late: bool
    known_late: bool


@mypyc_attr(allow_interpreted_subclasses=True)
class Server(Decoding):
    """The state of one simulated engine.

    Parameters
    ----------
    allocator : Allocator
        Lends the memory.
    bound : callable
        Tokens to set aside for a request when it is admitted (the reservation policy).
    policy, publishes_late, known_late
        Its `Rules`.
    progress : Progress, optional
        How many tokens a step adds to a sequence; one, if it is left out.
    """

    def __init__(  # noqa: PLR0917 - its parts, then its manners
        self,
        allocator: Allocator,
        bound: Callable[[Request], int],
        policy: str = "fcfs",
        publishes_late: bool = False,
        progress: Progress | None = None,
        known_late: bool = False,
    ) -> None:
        super().__init__(allocator, Lockstep() if progress is None else progress)
        self.bound = bound
        self.rules = Rules(policy, publishes_late, known_late)
        self.waiting: Queue = queue_named(policy)
        self.swapped = 0  # sequences in the host pool
        self.seats = Seats()
        self.steps = 0  # engine steps executed
        self.totals = Totals()
        self.events: Events | None = None
        self.departed: dict[int, Request] = {}  # who finished in the last step, if the engine cannot know
        self._next_seq = 0

    def watch(self, events: Events | None, context_tile: int) -> None:
        """Write down events; and how contexts differ, in tiles of so many tokens, unless that is 0."""
        self.events = events
        if context_tile and self.progress.linear:
            self.progress.spread = Contexts(context_tile)

    # -- the step -----------------------------------------------------------------------------

    def _anybody_waits(self) -> bool:
        return len(self.waiting) > 0 or self.swapped > 0

    def wait(self, until_ps: int) -> None:
        """Time passes without a step."""
        self.now_ps = until_ps

    def end_steps(self, count: int, now_ps: int) -> None:
        """So many steps like the one that was decided are over; the last ended now."""
        progress = self.progress
        self.now_ps = now_ps
        self.steps += count
        if self.step.paused:
            progress.pause()
        elif progress.size:
            progress.advance(count, now_ps)

    def pause(self) -> None:
        """Let the decoding sequences stand still in this step."""
        self.step.paused = self.step.changed = True

    def hold_for(self, steps: int) -> None:
        """Let the scheduler decide again after so many steps at the latest, even if nothing happens."""
        self.step.repeats = steps

    def ask_again(self) -> None:
        """The next step may find what this one did not: let the scheduler decide again before it."""
        self.step.changed = True

    def tokens(self) -> tuple[int, int]:
        """(held, contexts) in the step, its own new tokens included.

        The slots that hold a token, and the sum of the contexts of all seats that decode.
        """
        progress = self.progress
        if self.step.paused:
            held, contexts = progress.all_stored(), 0
        else:
            held = contexts = progress.contexts()
            if self.seats.count:
                contexts += self.seats.contexts(progress.clock)
        held += self.prefill_held
        if self.own.windows or self.allocator.shared_tokens:
            allocator = self.allocator
            held = held * allocator.slots_per_token - allocator.expired_slots - allocator.shared_tokens
            held += allocator.state_slots
        return held, contexts

    def lengths(self, new: bool = True) -> dict[int, int]:
        """The tokens of each living sequence in the step, its `new` ones included; from scratch."""
        new = new and not self.step.paused
        if self.progress.linear:
            clock, decode, finished = self.progress.clock + new, State.DECODE, State.FINISHED
            return {
                seq: r.base + clock if r.state == decode else r.computed
                for seq, r in self.running.items()
                if r.state != finished
            }
        of_decoding = self.progress.tokens if new else self.progress.stored
        return {
            seq: of_decoding(r) if r.state == State.DECODE else r.computed
            for seq, r in self.running.items()
            if r.state != State.FINISHED
        }

    def steps_behind(self, done: int, at_most: int) -> Iterator[tuple[int, int]]:
        """What follows the `done` steps for which the decision holds (`step.repeats`), at most to so many.

        That is (steps, tokens copied in the first of them), one after the other, as far as all of it is
        foreseen; `grow_within` then carries it out, or as much of it as is in the span.
        """
        return iter(())

    def internal_slots(self) -> int:
        """Allocated slots that will never be written, or not before somebody owns them alone."""
        if self.allocator.shared_tokens:
            return self.internal + self.allocator.shared_tail_slots()
        return self.internal

    def external_slots(self) -> int:
        """Free slots that cannot serve the head of the queue, or a request of the mean size so far."""
        if not self.own.external_slots:
            return 0
        if self.waiting:
            head = self.waiting[0]
            need = self.allocator.slots_needed(head.known_tokens, self.bound(head))
        else:
            need = self.totals.admitted_slots // max(self._next_seq, 1)
        return self.allocator.external_slots(need)

    def after_step(self) -> None:
        """The allocator works after a step; what it allocated ahead may never be written."""
        allocator, used = self.allocator, self.allocator.used_slots
        allocator.after_step(self.lengths(new=False))
        if allocator.used_slots == used:  # it allocated nothing
            return
        for request in self.running.values():
            if request.state is not State.FINISHED:
                self._set_internal(request, max(0, allocator.surplus(request.seq, request.final_tokens)))

    def rest(self) -> tuple[int, int, int, int]:
        """External, cached and idle slots, and tokens saved by sharing: what most allocators never have."""
        allocator = self.allocator
        return self.external_slots(), allocator.cached_slots, allocator.idle_slots, allocator.shared_tokens

    # -- admission and prefill ----------------------------------------------------------------

    def match_head(self, whole: bool = False, budget: int | None = None) -> Match | None:
        """What of the head of the queue is cached: not its last token, or that too. None without a cache.

        A `budget` says that the head asks for room for what is cached and at most so many tokens more: what
        it asks for then depends on what stays cached.
        """
        allocator = self.allocator
        if not allocator.caches:
            return None
        request = self.waiting[0]
        self._fill_streams(request)
        if self.own.knows_prompts:
            allocator.introduce(request.own, request.prompt_tokens)
        match = allocator.match(request.content, request.own, request.known_tokens - (not whole))
        self.step.asks_by_cached = budget is not None and match.tokens > 0 and request.known_tokens > budget
        return match

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a prompt that are cached here, but for its last; for requests that are elsewhere, too."""
        self._fill_streams(request)
        return self.allocator.match(request.content, request.own, request.prompt_tokens - 1).tokens

    def _fill_streams(self, request: Request) -> None:
        """Enter what others have generated by now of a text; a refusal may then end without a release."""
        progress = self.progress
        granted = self._granted is self.step and not self.rules.known_late
        for stream, _, _ in request.content:
            for author in progress.authors(stream):
                self.step.changed = True
                tokens = progress.tokens(author) if granted else progress.stored(author)
                self.allocator.fill(author.seq, tokens)

    def admit_head(
        self,
        tokens: int,
        match: Match | None = None,
        chunk: int | None = None,
        cached: int | None = None,
        charged: int = 0,
    ) -> bool:
        """Place the head of the queue with `tokens`, and prefill some of them in this step; False: no room.

        What `match_head` found is computed already, or only `cached` tokens of it; `charged` of these take up
        budget all the same. Of the rest, this step computes all, or `chunk`.
        """
        request, seq, allocator = self.waiting[0], self._next_seq, self.allocator
        bound, copied = self.bound(request), allocator.copied_slots
        if not (
            allocator.admit(seq, tokens, bound)
            if match is None
            else allocator.admit_after(match, seq, tokens, bound)
        ):
            self._note_refusal(request, tokens, bound)
            return False
        if self.events:
            hits = match.tokens if match and cached is None else cached or 0
            self.events.admitted(request, self.now_ps, self.steps, tokens, hits)
            self.events.copied(request, self.now_ps, self.steps, allocator.copied_slots - copied)
        self.waiting.popleft()
        self._next_seq += 1
        if self.own.external_slots:
            self.totals.admitted_slots += allocator.slots_needed(tokens, bound)
        request.move(State.PREFILL)
        request.seq = seq
        self.running[seq] = request
        if request.first_scheduled_ps is None:
            request.first_scheduled_ps = self.now_ps
            request.first_scheduled_step = self.steps
        if match is not None and match.tokens:
            hits = request.computed = match.tokens if cached is None else cached
            self.prefill_held += hits
            self.step.hit_tokens += hits
            self.step.charged_hit_tokens += charged
            self.totals.hit_tokens += hits
        self._prefill(request, tokens - request.computed if chunk is None else chunk)
        return True

    def most_reserved(self, request: Request) -> int:
        """The largest reservation that a request may ever make."""
        return self.bound.at_last(request) if isinstance(self.bound, Predicted) else self.bound(request)

    def head_fits(self, tokens: int, match: Match | None = None) -> bool:
        """Whether the head of the queue would fit all the way to `tokens`."""
        request = self.waiting[0]
        bound = self.bound(request)
        if match is None:
            fits = self.allocator.can_hold(tokens, bound)
        else:
            fits = self.allocator.can_hold_after(match, tokens, bound)
        if not fits:
            self._note_refusal(request, tokens, bound)
        return fits

    def heads_fit(self, count: int) -> bool:
        """Whether the first `count` of the queue fit together: they are placed, and taken back.

        Only of allocators that reserve: they are left exactly as they were.
        """
        allocator, placed = self.allocator, self._next_seq
        for request in islice(self.waiting, count):
            tokens, bound = request.known_tokens, self.bound(request)
            if not allocator.admit(placed, tokens, bound):
                self._note_refusal(self.waiting[0], tokens, bound)
                break
            placed += 1
        for seq in reversed(range(self._next_seq, placed)):
            allocator.release(seq)
        return placed == self._next_seq + count

    def head_leaves(self, tokens: int, match: Match | None, watermark: float) -> bool:
        """Whether admitting the head with `tokens` leaves the watermark free; anything goes when nobody runs.

        The watermark counts in blocks, of which vLLM's pool has one more than it can use.
        """
        if not self.running:
            return True
        allocator, request = self.allocator, self.waiting[0]
        unit = allocator.block_slots
        least = int(watermark * (allocator.capacity_slots // unit + 1)) * unit
        return allocator.leaves(match, tokens, self.bound(request)) >= least

    def continue_prefill(self, request: Request, tokens: int) -> bool:
        """Prefill `tokens` more; evicts the last running request while there is no room for them."""
        if not self._make_room(request, request.computed + tokens, request.computed):
            return False
        self._prefill(request, tokens)
        return True

    def _prefill(self, request: Request, tokens: int) -> None:
        start, allocator = request.computed, self.allocator
        request.computed = start + tokens
        self.prefill_held += tokens
        self.step.compute(request, start, tokens)
        if allocator.caches and not self.rules.publishes_late:
            allocator.fill(request.seq, request.computed)
        surplus = allocator.surplus(request.seq, request.final_tokens)
        if surplus > 0 or request.internal:  # memory that is made anew each time may have been too much, once
            self._set_internal(request, max(0, surplus))

    def prompt_done(self, request: Request) -> int | None:
        """A chunk is computed and was the last: the request has a token. Returns when it had the last one."""
        last_ps = request.last_token_ps if request.first_token_ps is not None else None
        if last_ps is None:
            request.first_token_ps = self.now_ps
            request.first_token_step = self.steps - 1
        request.generated += 1
        request.last_token_ps = self.now_ps
        return last_ps

    def publish(self, request: Request) -> None:
        """A chunk is computed: from now on its prefix can be found."""
        self.allocator.fill(request.seq, request.computed)

    def refuse_head(self, tokens: int | None = None) -> None:
        """There is no room for the head of the queue, as its scheduler reckons; for `tokens`: count it."""
        self.step.no_room = True
        if tokens is not None:
            self._note_refusal(self.waiting[0], tokens, self.bound(self.waiting[0]))

    def _note_refusal(self, request: Request, tokens: int, bound: int) -> None:
        allocator = self.allocator
        self.step.no_room = True
        if self.events:
            self.step.refusal = Refusal(request, allocator.slots_needed(tokens, bound))
        if allocator.most_sequences is not None and len(self.running) >= allocator.most_sequences:
            return
        if not request.fragmented and allocator.slots_needed(tokens, bound) <= allocator.free_slots:
            request.fragmented = True
            self.totals.fragmented_refusals += 1

    # -- seats --------------------------------------------------------------------------------

    def await_seat(self, request: Request) -> None:
        """The prefill is done and gave a token, but the request decodes only when a seat is free."""
        self.seats.waiting[request.seq] = request

    def fill_seats(self, seats: int) -> None:
        """Let those decode that wait for one of `seats`, the first come first."""
        seatless = self.seats.waiting
        while seatless and self.progress.size < seats:
            self.start_decode(seatless.pop(next(iter(seatless))))

    def keep_seat(self, request: Request) -> None:
        """A static batch keeps a finished sequence: its memory is dead weight, its seat computes on."""
        self.depart(request)
        self.seats.add(request.final_tokens, self.progress.clock, self.progress.spread)

    def clear_seats(self) -> None:
        """The static batch is over: its last seats are free."""
        self.seats.clear(self.progress.spread)

    # -- leaving ------------------------------------------------------------------------------

    def release(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Take back a request's memory: it left the decode or prefill before.

        Its prefix can be found again, but for the last `unknown` tokens.
        """
        allocator = self.allocator
        if allocator.caches:
            allocator.fill(request.seq, request.computed - unknown)
        if comes_back:
            allocator.evict(request.seq)
        else:
            allocator.release(request.seq)
        del self.running[request.seq]
        self.internal -= request.internal
        request.internal = 0

    def depart(self, request: Request) -> None:
        """A finished request keeps its memory, as dead weight, until it is released."""
        self._set_internal(request, self.allocator.retire(request.seq))

    def depart_late(self, request: Request) -> None:
        """A request is finished, as the engine will know after the next decision: until then it runs on."""
        self.departed[request.seq] = request
        if self.allocator.caches:
            self.allocator.fill(request.seq, request.computed - self._unknown(request))

    def release_departed(self) -> None:
        """The step is decided; now it is known who finished before it."""
        for request in self.departed.values():
            self.release(request)
        if self.waiting:  # may enter next time
            self.step.changed = True
            self.step.departures += len(self.departed)
        elif not self.progress.size:
            self.step.departures += len(self.departed)
        self.departed.clear()

    def _unknown(self, request: Request) -> int:
        """Tokens stored by the last step, which fed a token that was not known yet: none or one."""
        return int(self.rules.known_late and request.computed > request.known_tokens)

    def _make_room(self, request: Request, tokens: int, computed: int | None = None) -> bool:
        """Grow a sequence, evicting others until it fits; False: it evicted itself."""
        allocator, seq, copied = self.allocator, request.seq, self.allocator.copied_slots
        while not (
            allocator.grow(seq, tokens) if computed is None else allocator.grow_chunk(seq, computed, tokens)
        ):
            victim = self._victim()
            if allocator.reserves:  # what the others hold would not help
                victim = request
                request.outgrown += 1
            self.evict(victim, by=request)
            if victim is request:
                if not self.running and self.waiting and self.waiting[0] is request:
                    self._drop_stuck(request, tokens)
                return False
        if self.events:
            self.events.copied(request, self.now_ps, self.steps, allocator.copied_slots - copied)
        return True

    def _drop_stuck(self, request: Request, tokens: int) -> None:
        """It found no room for so many tokens, alone in the memory: a second time, no further, is enough."""
        if tokens <= request.stuck_at:
            self.drop_head(
                f"finds no room to grow in an empty arena of {self.allocator.capacity_slots:,} slots"
            )
        request.stuck_at = tokens

    def drop_head(self, reason: str) -> None:
        """The head of the queue can never be served, and with it no other answer to its prompt that waits."""
        index = self.waiting[0].index
        answers = [request for request in self.waiting if request.index == index]
        for request in answers:
            self.waiting.remove(request)
        self.step.reject(index, reason, sum(request.preemptions for request in answers))

    def _victim(self) -> Request:
        """The last running request; by priority, the least urgent."""
        if self.rules.policy == "priority":
            living = (r for r in self.running.values() if self._may_be_evicted(r))
            return max(living, key=lambda r: (r.priority, r.index))
        return next(r for r in reversed(self.running.values()) if self._may_be_evicted(r))

    def _may_be_evicted(self, request: Request) -> bool:
        """Finished seats of a static batch stay; who is not known to be finished is evicted like others."""
        return request.state != State.FINISHED or request.seq in self.departed

    def evict(self, request: Request, requeue: bool = True, by: Request | None = None) -> None:
        """Preempt by recomputation, for the room that `by` needs: free everything.

        If `requeue`, put the request back at the head of the queue.
        """
        if request.state == State.FINISHED:
            self._evict_departed(request)
            return
        unknown = 0
        if request.state == State.DECODE:
            known_before = request.known_tokens
            self._leave_decode(request)
            unknown = int(self.rules.known_late and request.computed > known_before)
        else:
            self.prefill_held -= request.computed
            request.known_tokens = request.prompt_tokens + request.generated
            self.seats.waiting.pop(request.seq, None)
        request.move(State.WAITING)
        request.reached = max(request.reached, request.computed)
        request.preemptions += 1
        if self.events:
            self.events.left("preempt", request, self.now_ps, self.steps, by)
        self.release(request, comes_back=True, unknown=unknown)
        request.computed = 0
        if requeue:
            self.waiting.appendleft(request)
        self.totals.preemptions += 1
        self.step.evict()

    def _evict_departed(self, request: Request) -> None:
        """Evict a request whose last token is under way: it finishes all the same."""
        del self.departed[request.seq]
        self.release(request, unknown=self._unknown(request))
        self.totals.preemptions += 1
        self.step.evict()
        self.step.evicted_finished += (request.index,)

    def check(self) -> None:
        """Raise InvariantError when the running sums and the allocator's own count disagree."""
        lengths = self.lengths()
        finals = {seq: self.running[seq].final_tokens for seq in lengths}
        counted = self.allocator.ledger(lengths, finals)
        held, internal = self.tokens()[0], self.internal_slots()
        if (counted.token, counted.internal) != (held, internal):
            raise InvariantError(f"step {self.steps}: tokens {held}, internal {internal}, but {counted}")
