"""What the server holds now: the queue, the running requests and their memory.

Schedulers decide, the engine keeps the time, the server does the bookkeeping of both. What decodes is in
sim/decoding.py; here are the queue, admission, prefill and eviction.

Sequence ids count admissions. So ascending id is the order of `running`, the id of a preempted
request never comes back, and the last of `running` is the latest admission.
"""

from collections.abc import Callable
from itertools import islice

from kvsim.allocators.base import Allocator, InvariantError, Match
from kvsim.sim.decoding import Decoding
from kvsim.sim.events import Events, Refusal
from kvsim.sim.queues import Queue, queue_named
from kvsim.sim.request import Request, State
from kvsim.sim.step_cost import StepShape


class Server(Decoding):
    """The state of one simulated engine.

    Parameters
    ----------
    allocator : Allocator
        Lends the memory.
    bound : callable
        Tokens to set aside for a request when it is admitted (the reservation policy).
    policy : str
        The order of the queue, see sim/queues.py.
    fills_late : bool
        Whether a prefix can be found by others only after the step that computes it.
    pauses : bool
        Whether there are steps in which the decoding sequences stand still.
    """

    def __init__(
        self,
        allocator: Allocator,
        bound: Callable[[Request], int],
        policy: str = "fcfs",
        fills_late: bool = False,
        pauses: bool = False,
    ) -> None:
        super().__init__(allocator, pauses)
        self.bound = bound
        self.policy = policy
        self.fills_late = fills_late
        self.waiting: Queue = queue_named(policy)
        self.step = 0  # engine steps executed
        self.idle_seats = 0  # finished sequences that a static batch still computes
        self.unready = 0  # running sequences that the engine still counts as waiting
        self.swapped = 0  # sequences in the host pool
        self.rejected: list[tuple[int, str]] = []  # rows dropped since the engine last looked, and why
        self.has_external = type(allocator).external_slots is not Allocator.external_slots
        self.special = allocator.caches or allocator.windows  # are there more books to keep than most have?
        self.events: Events | None = None  # where to write down what happens to each request
        self.refused: Refusal | None = None  # who last found no room, where events are written down
        # in this step
        self.chunks: list[Request] = []  # who prefills
        self.chunk_tokens = 0
        self.chunk_pairs = 0
        self.recomputed_tokens = 0
        self.hit_tokens = 0  # prompt tokens of admissions that were cached
        self.skipped_tokens = 0  # those of them that count against the budget all the same
        self.cow_copies_before = 0
        self.evicted = False  # was anybody evicted?
        self.cleared = False  # did anybody leave the memory while the step was decided, evicted or not?
        self.no_room = False  # was the head of the queue refused memory? reset before every decision
        # since the start
        self.preemptions = 0  # by recomputation
        self.swap_outs = 0  # preemptions by swapping
        self.swapped_in_blocks = 0
        self.swapped_out_blocks = 0
        self.fragmented_refusals = 0
        self.hit_tokens_total = 0
        self._idle_base = 0
        self._idle_bases: list[int] = []
        self._next_seq = 0
        self._admitted_slots = 0
        self._copied_before = 0
        self._swapped_before = (0, 0)

    # -- what the step computes ---------------------------------------------------------------

    def begin_step(self) -> None:
        """Forget the last step's prefills and moves."""
        self.moved = self.evicted = self.cleared = self.paused = False
        self.chunks = []
        self.chunk_tokens = self.chunk_pairs = self.recomputed_tokens = 0
        self.hit_tokens = self.skipped_tokens = 0
        self._copied_before = self.allocator.copied_slots
        self.cow_copies_before = self.allocator.cow_copies
        self._swapped_before = (self.swapped_in_blocks, self.swapped_out_blocks)

    def tokens(self) -> tuple[int, int]:
        """(held, contexts) in the scheduled step, its own new tokens included.

        The slots that hold a token, and the sum of the contexts of all seats that decode.
        """
        contexts = self._base_sum + self.decoding * (self.clock + 1)
        if self.paused:
            contexts -= self.decoding
        held = contexts + self.prefill_held
        if self.special:
            allocator = self.allocator
            held = held * allocator.slots_per_token - allocator.expired_slots - allocator.shared_tokens
            if self.idle_seats:
                contexts += self._idle_base + self.idle_seats * (self.clock + 1)
        return held, 0 if self.paused else contexts

    def lengths(self) -> dict[int, int]:
        """The tokens of each living sequence in the scheduled step, its new one included; from scratch."""
        clock = self.clock if self.paused else self.clock + 1
        return {
            seq: r.base + clock if r.state is State.DECODE else r.computed
            for seq, r in self.running.items()
            if r.state is not State.FINISHED
        }

    def shape(self, contexts: int) -> StepShape:
        """What the step that was just scheduled computes, for the cost model."""
        copied = self.allocator.copied_slots - self._copied_before
        seats = 0 if self.paused else self.decoding + self.idle_seats
        blocks_in, blocks_out = self.swapped_blocks() if self.pauses else (0, 0)
        unit = self.allocator.growth_unit
        longest = rounded = 0
        if self.contexts is not None and seats:
            longest, rounded = self.contexts.at(self.clock + 1)
        shape = (
            self.chunk_tokens,
            self.chunk_pairs,
            len(self.chunks),
            seats,
            contexts,
            copied,
            blocks_in,
            blocks_in * unit,
            blocks_out,
            blocks_out * unit,
            longest,
            rounded,
        )
        return tuple.__new__(StepShape, shape)  # what StepShape(*shape) does, at a quarter of its price

    def swapped_blocks(self) -> tuple[int, int]:
        """Blocks that come from the host pool and go there in this step."""
        before_in, before_out = self._swapped_before
        return self.swapped_in_blocks - before_in, self.swapped_out_blocks - before_out

    def internal_slots(self) -> int:
        """Slots lent that will never be written, or not before somebody owns them alone."""
        if self.allocator.shared_tokens:
            return self.internal + self.allocator.idle_slots()
        return self.internal

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

    def match_head(self, whole: bool = False) -> Match | None:
        """What of the head of the queue is cached: not its last token, or that too. None without a cache."""
        allocator = self.allocator
        if not allocator.caches:
            return None
        request = self.waiting[0]
        if self.open_streams:
            self._fill_streams(request)
        return allocator.match(request.content, request.own, request.known_tokens - (not whole))

    def _fill_streams(self, request: Request) -> None:
        """Enter what others have generated by now of a text; a refusal may then end without a release."""
        clock = self.clock if self.pauses else self.clock + 1
        for stream, _, _ in request.content:
            for author in self.open_streams.get(stream, ()):
                self.moved = True
                self.allocator.fill(author.seq, author.base + clock)

    def admit_head(
        self, tokens: int, match: Match | None = None, chunk: int | None = None, cached: int | None = None
    ) -> bool:
        """Place the head of the queue with `tokens`, and prefill some of them in this step; False: no room.

        What `match_head` found is computed already, or only `cached` tokens of it. Of the rest, this step
        computes all, or `chunk`.
        """
        request, seq, allocator = self.waiting[0], self._next_seq, self.allocator
        bound = self.bound(request)
        if not (
            allocator.admit(seq, tokens, bound)
            if match is None
            else allocator.admit_after(match, seq, tokens, bound)
        ):
            self._note_refusal(request, tokens, bound)
            return False
        if self.events:
            hits = match.tokens if match and cached is None else cached or 0
            self.events.admitted(request, self.now_ps, self.step, tokens, hits)
        self.waiting.popleft()
        self._next_seq += 1
        if self.has_external:
            self._admitted_slots += allocator.slots_needed(tokens, bound)
        request.move(State.PREFILL)
        request.seq = seq
        self.running[seq] = request
        if request.first_scheduled_ps is None:
            request.first_scheduled_ps = self.now_ps
            request.first_scheduled_step = self.step
        if match is not None and match.tokens:
            hits = request.computed = match.tokens if cached is None else cached
            self.prefill_held += hits
            self.hit_tokens += hits
            self.hit_tokens_total += hits
        self._prefill(request, tokens - request.computed if chunk is None else chunk)
        return True

    def head_fits(self, tokens: int, match: Match | None = None) -> bool:
        """Whether the head of the queue would fit all the way to `tokens`."""
        request = self.waiting[0]
        bound = self.bound(request)
        if match is None:
            fits = self.allocator.can_hold(tokens, bound)
        else:
            fits = self.allocator.can_admit_after(match, tokens, bound)
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
        for seq in range(self._next_seq, placed):
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
        needed = allocator.peak_slots(tokens, self.bound(request))
        if match is not None:
            needed += match.woken_slots - match.tokens
        return allocator.free_slots - needed >= least

    def continue_prefill(self, request: Request, tokens: int) -> bool:
        """Prefill `tokens` more; evicts the last running request while there is no room for them."""
        if not self._make_room(request, request.computed + tokens, request.computed):
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
        allocator = self.allocator
        if allocator.caches and not self.fills_late:
            allocator.fill(request.seq, request.computed)
        surplus = allocator.surplus(request.seq, request.final_tokens)
        if surplus > 0:
            self._set_internal(request, surplus)

    def _note_refusal(self, request: Request, tokens: int, bound: int) -> None:
        allocator = self.allocator
        self.no_room = True
        if self.events:
            self.refused = Refusal(request, allocator.slots_needed(tokens, bound))
        if not request.fragmented and allocator.slots_needed(tokens, bound) <= allocator.free_slots:
            request.fragmented = True
            self.fragmented_refusals += 1

    # -- leaving ------------------------------------------------------------------------------

    def release(self, request: Request, comes_back: bool = False) -> None:
        """Take back a request's memory: it left the decode or prefill before."""
        allocator = self.allocator
        if allocator.caches:
            allocator.fill(request.seq, request.computed)
        if comes_back:
            allocator.evict(request.seq)
        else:
            allocator.release(request.seq)
        del self.running[request.seq]
        self.internal -= request.internal
        request.internal = 0

    def depart(self, request: Request) -> None:
        """A finished request keeps its seat, and its memory as dead weight, until it is released."""
        self._set_internal(request, self.allocator.retire(request.seq))

    def keep_seat(self, request: Request) -> None:
        """A static batch keeps a finished sequence: its memory is dead weight, its seat computes on."""
        self._set_internal(request, self.allocator.retire(request.seq))
        self.special = True
        self.idle_seats += 1
        self._idle_base += request.final_tokens - self.clock
        if self.contexts is not None:
            self.contexts.add(request.final_tokens - self.clock)
            self._idle_bases.append(request.final_tokens - self.clock)

    def clear_seats(self) -> None:
        """The static batch is over: its last seats are free."""
        self.idle_seats = self._idle_base = 0
        for base in self._idle_bases:
            if self.contexts is not None:
                self.contexts.remove(base)
        self._idle_bases.clear()

    # -- eviction -----------------------------------------------------------------------------

    def _make_room(self, request: Request, tokens: int, computed: int | None = None) -> bool:
        """Grow a sequence, evicting others until it fits; False: it evicted itself."""
        allocator, seq, copied = self.allocator, request.seq, self.allocator.copied_slots
        while not (
            allocator.grow(seq, tokens) if computed is None else allocator.grow_chunk(seq, computed, tokens)
        ):
            victim = self._victim()
            self.evict(victim, by=request)
            if victim is request:
                return False
        if self.events:
            self.events.copied(request, self.now_ps, self.step, allocator.copied_slots - copied)
        return True

    def _victim(self) -> Request:
        """The last running request; by priority, the least urgent."""
        if self.policy == "priority":
            living = (r for r in self.running.values() if r.state is not State.FINISHED)
            return max(living, key=lambda r: (r.priority, r.index))
        return next(r for r in reversed(self.running.values()) if r.state is not State.FINISHED)

    def evict(self, request: Request, requeue: bool = True, by: Request | None = None) -> None:
        """Preempt by recomputation, for the room that `by` needs: free everything.

        If `requeue`, put the request back at the head of the queue.
        """
        if request.state is State.DECODE:
            self._leave_decode(request)
        else:
            self.prefill_held -= request.computed
            request.known_tokens = request.prompt_tokens + request.generated
            self._seatless.pop(request.seq, None)
        request.move(State.WAITING)
        request.reached = max(request.reached, request.computed)
        request.preemptions += 1
        if self.events:
            self.events.left("preempt", request, self.now_ps, self.step, by)
        self.release(request, comes_back=True)
        request.computed = 0
        if requeue:
            self.waiting.appendleft(request)
        self.preemptions += 1
        self.evicted = self.moved = True
        self._find_next_finish()

    def check(self) -> None:
        """Raise InvariantError when the running sums and the allocator's own count disagree."""
        lengths = self.lengths()
        finals = {seq: self.running[seq].final_tokens for seq in lengths}
        counted = self.allocator.ledger(lengths, finals)
        held, internal = self.tokens()[0], self.internal_slots()
        if (counted.token, counted.internal) != (held, internal):
            raise InvariantError(f"step {self.step}: tokens {held}, internal {internal}, but {counted}")
