"""The sequences that decode: in lockstep, one token a decode step each.

A sequence holds `base + clock` tokens, and all of them `sum(base) + n * clock`. When each must grow and when
each ends is known beforehand and stands in a calendar keyed by the clock of decode steps, so that the work is
proportional to changes, not to tokens.

Engines that compute prompts and decodes in different steps *pause* the decodes: the clock stands still,
and the time between two tokens is longer than a step.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush

from kvsim.allocators.base import Allocator
from kvsim.sim.growth import GrowthCalendar
from kvsim.sim.request import Request, State
from kvsim.sim.spread import Contexts

SEQ_BITS = 40
"""A finish is one integer, clock << SEQ_BITS | seq: the heap sorts by clock, then by admission."""
SEQ_MASK = (1 << SEQ_BITS) - 1
NEVER = 1 << 62


class Decoding(ABC):
    """The part of a server that holds what decodes.

    Parameters
    ----------
    allocator : Allocator
        Lends the memory.
    pauses : bool
        Whether there are steps in which the decoding sequences stand still.
    """

    def __init__(self, allocator: Allocator, pauses: bool) -> None:
        self.allocator = allocator
        self.pauses = pauses
        self.running: dict[int, Request] = {}
        self.now_ps = 0
        self.clock = 0  # decode steps executed
        self.decoding = 0  # sequences that decode
        self.paused = False  # do they stand still in this step?
        self.prefill_held = 0  # tokens held by sequences that do not decode
        self.internal = 0  # slots lent that will never be written
        self.margin = 0  # growth units that must stay free in every step
        self.next_finish = NEVER  # the clock at which a decoding sequence ends
        self.last_decode_ps = 0  # when the last decode step ended
        self.joined: dict[int, int] = {}  # who began to decode since then: last token, in ps
        self.open_streams: dict[int, list[Request]] = {}  # who generates text that others may share
        self.contexts: Contexts | None = None  # how their contexts differ, where the cost model asks
        self.moved = True  # did anybody prefill, move or leave in this step, so that the next may differ?
        self._base_sum = 0
        self._growth = GrowthCalendar(allocator.growth_unit)
        self._finishes: list[int] = []
        self._seatless: dict[int, Request] = {}

    # -- entering and leaving -----------------------------------------------------------------

    def start_decode(self, request: Request) -> None:
        """The prefill is done and gave a token; more are to come, one each decode step."""
        request.move(State.DECODE)
        self.prefill_held -= request.computed
        self._enter_decode(request)
        self._plan_growth(request)

    def await_seat(self, request: Request) -> None:
        """The prefill is done and gave a token, but the request decodes only when a seat is free."""
        self._seatless[request.seq] = request

    def fill_seats(self, seats: int) -> None:
        """Let those decode that wait for one of `seats`, the first come first."""
        while self._seatless and self.decoding < seats:
            self.start_decode(self._seatless.pop(next(iter(self._seatless))))

    def _enter_decode(self, request: Request) -> None:
        request.base = request.computed - self.clock
        finish = request.finish_clock = self.clock + request.output_tokens - request.generated
        self.decoding += 1
        self._base_sum += request.base
        if self.contexts is not None:
            self.contexts.add(request.base)
        if self.pauses:
            self.joined[request.seq] = request.last_token_ps
        if request.open_stream is not None:
            self.open_streams.setdefault(request.open_stream, []).append(request)
        heappush(self._finishes, finish << SEQ_BITS | request.seq)
        if finish < self.next_finish:
            self.next_finish = finish

    def pop_finished(self) -> list[Request]:
        """The decoding requests whose last token is there, in order of admission."""
        finished: list[Request] = []
        while self.next_finish == self.clock:
            request = self.running[heappop(self._finishes) & SEQ_MASK]
            request.generated = request.output_tokens
            request.computed = request.final_tokens
            self.decoding -= 1
            self._base_sum -= request.base
            if self.contexts is not None:
                self.contexts.remove(request.base)
            if request.open_stream is not None:
                self.open_streams[request.open_stream].remove(request)
            finished.append(request)
            self._find_next_finish()
        return finished

    def _leave_decode(self, request: Request) -> None:
        """Write back the tokens of a sequence that stops decoding before its end."""
        request.computed = request.base + self.clock
        request.generated = request.output_tokens - (request.finish_clock - self.clock)
        request.known_tokens = request.prompt_tokens + request.generated
        if not self.pauses:
            request.last_token_ps = self.now_ps
        elif self.joined.pop(request.seq, None) is None:
            request.last_token_ps = self.last_decode_ps
        self.decoding -= 1
        self._base_sum -= request.base
        if self.contexts is not None:
            self.contexts.remove(request.base)
        if request.open_stream is not None:
            self.open_streams[request.open_stream].remove(request)
        self._growth.remove(request.seq, self._full_clock(request), request.finish_clock)

    def _find_next_finish(self) -> None:
        """Drop the finishes of those that left meanwhile, and may be back with another one."""
        finishes, running = self._finishes, self.running
        while finishes:
            first = finishes[0]
            request = running.get(first & SEQ_MASK)
            if request and request.finish_clock == first >> SEQ_BITS:
                self.next_finish = request.finish_clock
                return
            heappop(finishes)
        self.next_finish = NEVER

    # -- growing ------------------------------------------------------------------------------

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
                if seq in running:  # by priority, who grew may be evicted in the same step
                    self._plan_growth(running[seq])

    def guaranteed_steps(self, at_most: int) -> int:
        """Decode steps, this one included, in which nobody ends early and all growth is guaranteed."""
        steps = self.next_finish - self.clock
        if steps > at_most:
            steps = at_most
        if steps > 1:
            budget, unit = self.allocator.growth_budget() - self.margin, self._growth.unit
            if not unit or self.decoding * ((steps - 2) // unit + 1) > budget:  # if all grew at once
                return self._growth.guaranteed_steps(self.clock, steps, budget)
        return steps

    def grow_within(self, ends: Sequence[int]) -> tuple[int, int, int]:
        """Give the decoding sequences the memory of a span, the i-th step of which ends at `ends[i]`.

        The first step has its memory already. Returns the integrals, from then to the end of the span, of
        the slots lent for the others, of those never to be written, of those that were cached before.
        """
        allocator = self.allocator
        lefts: list[tuple[int, int]] | None = [] if allocator.cached_slots else None
        grown, used, full = self._growth.pass_span(self.clock, ends, lefts)
        if grown:
            allocator.grow_many(grown)
        internal = evicted = 0
        for seq, clock, left in full:
            request = self.running[seq]
            request.internal = request.base + clock + self._growth.unit - request.final_tokens
            self.internal += request.internal
            internal += request.internal * left
        if lefts and allocator.evicted_by:
            each = [left for count, left in lefts for _ in range(count)]
            evicted = sum([each[index] for index in allocator.evicted_by]) * self._growth.unit
        return used, internal, evicted

    def _plan_growth(self, request: Request) -> None:
        """Write down when a sequence must grow next, or what it will never fill."""
        capacity = self.allocator.capacity(request.seq)
        clock = capacity - request.base
        if clock < request.finish_clock:
            self._growth.add(request.seq, clock, request.finish_clock)
            if self._growth.unit:
                return
        self._set_internal(request, max(0, self.allocator.surplus(request.seq, request.final_tokens)))

    def _full_clock(self, request: Request) -> int:
        """The clock at which a sequence has filled the last block of its table."""
        capacity, unit = self.allocator.capacity(request.seq), self._growth.unit
        if unit:
            capacity += -capacity % unit  # a shared block counts as full before its end
        return capacity - request.base

    def _set_internal(self, request: Request, slots: int) -> None:
        self.internal += slots - request.internal
        request.internal = slots

    @abstractmethod
    def _make_room(self, request: Request, tokens: int) -> bool:
        """Grow a sequence, evicting others until it fits; False: it evicted itself."""

    # -- time between tokens ------------------------------------------------------------------

    def pause(self) -> None:
        """Let the decoding sequences stand still in this step."""
        self.paused = self.moved = True

    def late_tokens(self) -> list[tuple[int, int]]:
        """(last token, how many) of the decoding sequences, if any did not decode in the step before.

        Empty when all did: the time between two tokens is then the duration of a step.
        """
        last = Counter(self.joined.values())
        last[self.last_decode_ps] += self.decoding - len(self.joined)
        late = any(count and when != self.now_ps for when, count in last.items())
        return [(when, count) for when, count in last.items() if count] if late else []

    def decoded(self, end_ps: int) -> None:
        """A decode step ended, or several."""
        self.last_decode_ps = end_ps
        self.joined.clear()
