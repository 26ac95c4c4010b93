"""What the server holds now: the queue, the running requests and their memory.

Schedulers decide, the engine keeps the time, the server does the bookkeeping of both, in work that
is proportional to changes, not to tokens. All decoding sequences advance in lockstep, one token a
decode step, so a sequence holds `base + clock` tokens and all of them `sum(base) + n * clock`. When
each must grow and when each ends is known beforehand and stands in a calendar keyed by the clock.

Sequence ids count admissions. So ascending id is the order of `running`, the id of a preempted
request never comes back, and the last of `running` is the latest admission.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from allocators.base import Allocator, InvariantError
from sim.cost import StepShape
from sim.growth import GrowthCalendar
from sim.request import Request, State

SEQ_BITS = 40
"""A finish is one integer, clock << SEQ_BITS | seq: the heap sorts by clock, then by admission."""
SEQ_MASK = (1 << SEQ_BITS) - 1
NEVER = 1 << 62


class Server:
    """The state of one simulated engine.

    Parameters
    ----------
    allocator : Allocator
        Lends the memory.
    bound : callable
        Tokens to set aside for a request when it is admitted (the reservation policy).
    """

    def __init__(self, allocator: Allocator, bound: Callable[[Request], int]) -> None:
        self.allocator = allocator
        self.bound = bound
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}
        self.now_ps = 0
        self.step = 0  # engine steps executed
        self.clock = 0  # decode steps executed
        self.decoding = 0  # sequences that decode
        self.idle_seats = 0  # finished sequences that a static batch still computes
        self.prefill_held = 0  # tokens held by sequences that prefill
        self.internal = 0  # slots lent that will never be written
        self.next_finish = NEVER  # the clock at which a decoding sequence ends
        self.max_running = 0
        self.preemptions = 0
        self.fragmented_refusals = 0
        self.chunks: list[Request] = []  # who prefills in this step
        self.chunk_tokens = 0
        self.chunk_pairs = 0
        self.recomputed_tokens = 0
        self.evicted = False  # was anybody evicted in this step?
        self.moved = True  # did anybody prefill, move or leave in it, so that the next step may differ?
        self.has_external = type(allocator).external_slots is not Allocator.external_slots
        self._base_sum = 0
        self._idle_base = 0
        self._growth = GrowthCalendar(allocator.growth_unit)
        self._finishes: list[int] = []
        self._next_seq = 0
        self._admitted_slots = 0
        self._copied_before = 0

    # -- what the step computes ---------------------------------------------------------------

    def begin_step(self) -> None:
        """Forget the last step's prefills and moves."""
        self.moved = self.evicted = False
        self.chunks = []
        self.chunk_tokens = self.chunk_pairs = self.recomputed_tokens = 0
        self._copied_before = self.allocator.copied_slots

    def tokens(self) -> tuple[int, int]:
        """(held, contexts) in the scheduled step, its own new tokens included.

        The slots that hold a token, and the sum of the contexts of all seats that decode.
        """
        clock = self.clock + 1
        contexts = self._base_sum + self.decoding * clock
        held = contexts + self.prefill_held - self.allocator.shared_tokens
        if self.idle_seats:
            contexts += self._idle_base + self.idle_seats * clock
        return held, contexts

    def shape(self, contexts: int) -> StepShape:
        """What the step that was just scheduled computes, for the cost model."""
        copied = self.allocator.copied_slots - self._copied_before
        seats = self.decoding + self.idle_seats
        shape = (self.chunk_tokens, self.chunk_pairs, len(self.chunks), seats, contexts, copied)
        return tuple.__new__(StepShape, shape)  # what StepShape(*shape) does, at a quarter of its price

    def external_slots(self) -> int:
        """Free slots that cannot serve the head of the queue, or a request of the mean size so far."""
        if not self.has_external:
            return 0
        if self.waiting:
            head = self.waiting[0]
            need = self.allocator.slots_needed(head.known_tokens, self.bound(head))
        else:
            need = self._admitted_slots // max(self._next_seq, 1)
        return self.allocator.external_slots(need)

    # -- admission and prefill ----------------------------------------------------------------

    def admit_head(self, tokens: int) -> bool:
        """Place the head of the queue and prefill its first `tokens` in this step; False: no room."""
        request, seq = self.waiting[0], self._next_seq
        bound = self.bound(request)
        if not self.allocator.admit(seq, tokens, bound):
            self._note_refusal(request, tokens, bound)
            return False
        self.waiting.popleft()
        self._next_seq += 1
        if self.has_external:
            self._admitted_slots += self.allocator.slots_needed(tokens, bound)
        request.move(State.PREFILL)
        request.seq = seq
        self.running[seq] = request
        if len(self.running) > self.max_running:
            self.max_running = len(self.running)
        if request.first_scheduled_ps is None:
            request.first_scheduled_ps = self.now_ps
            request.first_scheduled_step = self.step
        self._prefill(request, tokens)
        return True

    def head_fits(self, tokens: int) -> bool:
        """Whether the head of the queue would fit with `tokens`."""
        request = self.waiting[0]
        bound = self.bound(request)
        if self.allocator.can_admit(tokens, bound):
            return True
        self._note_refusal(request, tokens, bound)
        return False

    def head_leaves(self, tokens: int, watermark: float) -> bool:
        """Whether admitting the head with `tokens` leaves the watermark free; anything goes when nobody runs.

        The watermark counts in blocks, of which vLLM's pool has one more than it can use.
        """
        if not self.running:
            return True
        allocator, request = self.allocator, self.waiting[0]
        unit = allocator.growth_unit or 1
        least = int(watermark * (allocator.capacity_slots // unit + 1)) * unit
        return allocator.free_slots - allocator.slots_needed(tokens, self.bound(request)) >= least

    def continue_prefill(self, request: Request, tokens: int) -> bool:
        """Prefill `tokens` more; evicts the last running request while there is no room for them."""
        if not self._make_room(request, request.computed + tokens):
            return False
        self._prefill(request, tokens)
        return True

    def _prefill(self, request: Request, tokens: int) -> None:
        self.moved = True
        start = request.computed
        request.computed = start + tokens
        self.prefill_held += tokens
        self.chunks.append(request)
        self.chunk_tokens += tokens
        self.chunk_pairs += tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            self.recomputed_tokens += min(request.computed, request.reached) - start
        capacity = self.allocator.capacity(request.seq)
        if capacity > request.final_tokens:
            self._set_internal(request, capacity - request.final_tokens)

    def _note_refusal(self, request: Request, tokens: int, bound: int) -> None:
        allocator = self.allocator
        if not request.fragmented and allocator.slots_needed(tokens, bound) <= allocator.free_slots:
            request.fragmented = True
            self.fragmented_refusals += 1

    # -- decode: growing, finishing -----------------------------------------------------------

    def start_decode(self, request: Request) -> None:
        """The prefill is done and gave a token; more are to come, one each decode step."""
        request.move(State.DECODE)
        self.prefill_held -= request.computed
        request.base = request.computed - self.clock
        finish = request.finish_clock = self.clock + request.output_tokens - request.generated
        self.decoding += 1
        self._base_sum += request.base
        heappush(self._finishes, finish << SEQ_BITS | request.seq)
        if finish < self.next_finish:
            self.next_finish = finish
        self._plan_growth(request)

    def grow_due(self) -> None:
        """Give every decoding sequence room for this step's token, evicting the last where none is."""
        clock, running = self.clock, self.running
        due = self._growth.due(clock)
        if not due:  # most often
            return
        if len(due) <= self.allocator.growth_budget():
            self.allocator.grow_many(due)
        else:
            self.moved = True
            due = [
                seq
                for seq in due[:]
                if seq in running and self._make_room(running[seq], running[seq].base + clock + 1)
            ]
        if self._growth.unit:
            for seq in self._growth.pop_full(clock):
                self._set_internal(running[seq], self.allocator.capacity(seq) - running[seq].final_tokens)
        else:
            for seq in due:
                self._plan_growth(running[seq])

    def guaranteed_steps(self, at_most: int) -> int:
        """Decode steps, this one included, in which nobody ends early and all growth is guaranteed."""
        steps = self.next_finish - self.clock
        if steps > at_most:
            steps = at_most
        if steps > 1:
            budget, unit = self.allocator.growth_budget(), self._growth.unit
            if not unit or self.decoding * ((steps - 2) // unit + 1) > budget:  # if all grew at once
                return self._growth.guaranteed_steps(self.clock, steps, budget)
        return steps

    def grow_within(self, ends: Sequence[int]) -> tuple[int, int]:
        """Give the decoding sequences the memory of a span, the i-th step of which ends at `ends[i]`.

        The first step has its memory already. Returns the integrals of the slots lent for the others,
        from then to the end of the span: (used, internal).
        """
        grown, used, full = self._growth.pass_span(self.clock, ends)
        if grown:
            self.allocator.grow_many(grown)
        internal = 0
        for seq, clock, left in full:
            request = self.running[seq]
            request.internal = request.base + clock + self._growth.unit - request.final_tokens
            self.internal += request.internal
            internal += request.internal * left
        return used, internal

    def pop_finished(self) -> list[Request]:
        """The decoding requests whose last token is there, in order of admission."""
        finished: list[Request] = []
        while self.next_finish == self.clock:
            request = self.running[heappop(self._finishes) & SEQ_MASK]
            request.generated = request.output_tokens
            self.decoding -= 1
            self._base_sum -= request.base
            finished.append(request)
            self._find_next_finish()
        return finished

    def release(self, request: Request) -> None:
        """Take back a request's memory: it left the decode or prefill before."""
        self.allocator.release(request.seq)
        del self.running[request.seq]
        self.internal -= request.internal
        request.internal = 0

    def keep_seat(self, request: Request) -> None:
        """A static batch keeps a finished sequence: its memory is dead weight, its seat computes on."""
        self._set_internal(request, self.allocator.capacity(request.seq))
        self.idle_seats += 1
        self._idle_base += request.final_tokens - self.clock

    def clear_seats(self) -> None:
        """The static batch is over: its last seats are free."""
        self.idle_seats = self._idle_base = 0

    def _find_next_finish(self) -> None:
        finishes = self._finishes
        while finishes and finishes[0] & SEQ_MASK not in self.running:  # evicted meanwhile
            heappop(finishes)
        self.next_finish = finishes[0] >> SEQ_BITS if finishes else NEVER

    def _plan_growth(self, request: Request) -> None:
        """Write down when a sequence must grow next, or what it will never fill."""
        capacity = self.allocator.capacity(request.seq)
        clock = capacity - request.base
        if clock < request.finish_clock:
            self._growth.add(request.seq, clock, request.finish_clock)
        else:
            self._set_internal(request, capacity - request.final_tokens)

    def _set_internal(self, request: Request, slots: int) -> None:
        self.internal += slots - request.internal
        request.internal = slots

    # -- eviction -----------------------------------------------------------------------------

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Grow a sequence, evicting the last running one until it fits; False: it evicted itself."""
        while not self.allocator.grow(request.seq, tokens):
            victim = next(r for r in reversed(self.running.values()) if r.state is not State.FINISHED)
            self.evict(victim)
            if victim is request:
                return False
        return True

    def evict(self, request: Request) -> None:
        """Preempt by recomputation: free everything and put the request back at the head."""
        if request.state is State.DECODE:
            self._leave_decode(request)
        else:
            self.prefill_held -= request.computed
        request.move(State.WAITING)
        request.reached = max(request.reached, request.computed)
        request.computed = 0
        request.preemptions += 1
        self.release(request)
        self.waiting.appendleft(request)
        self.preemptions += 1
        self.evicted = self.moved = True
        self._find_next_finish()

    def _leave_decode(self, request: Request) -> None:
        request.computed = request.base + self.clock
        request.generated = request.output_tokens - (request.finish_clock - self.clock)
        request.known_tokens = request.prompt_tokens + request.generated
        request.last_token_ps = self.now_ps
        self.decoding -= 1
        self._base_sum -= request.base
        due = self.allocator.capacity(request.seq) - request.base
        self._growth.remove(request.seq, due, request.finish_clock)

    def check(self) -> None:
        """Raise InvariantError when the running sums and the allocator's own count disagree."""
        lengths = {
            seq: r.computed if r.state is State.PREFILL else r.base + self.clock + 1
            for seq, r in self.running.items()
            if r.state is not State.FINISHED
        }
        finals = {seq: self.running[seq].final_tokens for seq in lengths}
        counted = self.allocator.ledger(lengths, finals)
        held, internal = self.tokens()[0], self.internal
        if (counted.token, counted.internal) != (held, internal):
            raise InvariantError(f"step {self.step}: tokens {held}, internal {internal}, but {counted}")
