"""The part of a server that gives the decoding sequences their memory, step by step or span by span.

When each must grow stands in a calendar (growth.py), so that the work is proportional to changes, not to
tokens. Growth that the allocator promises is given in bulk; where it promises too little, one by one, and
somebody may have to make room.
"""

from abc import abstractmethod

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator
from kvsim.sim.serving.growth import GrowthCalendar
from kvsim.sim.serving.progress import Progress
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.step import Step


@mypyc_attr(allow_interpreted_subclasses=True)
class Decoding:
    """Who runs, who decodes, and the memory that decoding takes.

    Parameters
    ----------
    allocator : Allocator
        Lends the memory.
    progress : Progress
        How far the decoding sequences are.
    """

    margin: int = 0
    """Growth units that must stay free in every step."""

    def __init__(self, allocator: Allocator, progress: Progress) -> None:
        self.allocator = allocator
        self.progress = progress
        self.running: dict[int, Request] = {}
        self.step = Step()
        self.now_ps = 0
        self.internal = 0  # slots lent that will never be written
        self.prefill_held = 0  # tokens held by sequences that do not decode
        self._growth = GrowthCalendar(allocator.growth_unit if progress.linear else 0)
        self._granted_clock = -1  # of the last decode step whose memory was given

    @property
    def decoding(self) -> int:
        """Sequences that decode."""
        return self.progress.size

    # -- in and out ---------------------------------------------------------------------------

    def start_decode(self, request: Request) -> None:
        """The prefill is done and gave a token; more are to come in each decode step."""
        request.move(State.DECODE)
        self.prefill_held -= request.computed
        self.progress.join(request, self.now_ps)
        self._plan_growth(request)

    def end_prefill(self, request: Request) -> None:
        """The prefill is done and gave the only token."""
        self.prefill_held -= request.computed

    def pop_finished(self) -> list[Request]:
        """The decoding requests whose last token is there, in order of admission."""
        return self.progress.finished()

    def _leave_decode(self, request: Request) -> None:
        """Write back the tokens of a sequence that stops decoding before its end."""
        self._growth.remove(request.seq, self._full_clock(request), request.finish_clock)
        self.progress.leave(request)

    # -- growing ------------------------------------------------------------------------------

    def grow_due(self) -> None:
        """Give every decoding sequence room for this step's tokens, evicting the last where none is."""
        clock, running = self.progress.clock, self.running
        self._granted_clock = clock
        growth, allocator = self._growth, self.allocator
        due = growth.residues[clock % growth.unit] if growth.unit else growth.due(clock)
        if not due:  # most often
            return
        if len(due) <= allocator.growth_budget() and growth.unit:
            allocator.grow_many(due)
        else:
            self.step.changed = True
            tokens = self.progress.tokens
            due = [
                seq
                for seq in due[:]
                if seq in running and self._make_room(running[seq], tokens(running[seq]))
            ]
        if growth.unit:
            for seq in growth.pop_full(clock) if clock in growth.last else ():
                self._set_internal(running[seq], self.allocator.capacity(seq) - running[seq].final_tokens)
        else:
            for seq in due:
                if seq in running:  # by priority, who grew may be evicted in the same step
                    self._plan_growth(running[seq])

    def guaranteed_steps(self, at_most: int, keeping_cached: bool = False) -> int:
        """Decode steps, this one included, in which nobody ends early and all growth is guaranteed.

        With `keeping_cached` there is none that might take a block whose text can still be found.
        """
        progress = self.progress
        steps = progress.next_finish - progress.clock
        if steps > at_most:
            steps = at_most
        if steps > 1:
            budget, unit = self.allocator.growth_budget() - self.margin, self._growth.unit
            if keeping_cached and self.allocator.cached_slots:
                budget = 0  # which block goes first is the allocator's secret
            if not unit or progress.size * ((steps - 2) // unit + 1) > budget:  # if all grew at once
                return self._growth.guaranteed_steps(progress.clock, steps, budget)
        return steps

    def grow_within(self, ends: list[int]) -> tuple[int, int, int]:
        """Give the decoding sequences the memory of a span, the i-th step of which ends at `ends[i]`.

        The first step has its memory already. Returns the integrals, from then to the end of the span, of
        the slots lent for the others, of those never to be written, of those that were cached before.
        """
        allocator = self.allocator
        lefts: list[tuple[int, int]] | None = [] if allocator.cached_slots else None
        grown, used, full = self._growth.growth_within(self.progress.clock, ends, lefts)
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
        clock = self.progress.growth_clock(request, self.allocator.capacity(request.seq))
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
        return self.progress.growth_clock(request, capacity)

    def _set_internal(self, request: Request, slots: int) -> None:
        self.internal += slots - request.internal
        request.internal = slots

    @abstractmethod
    def _make_room(self, request: Request, tokens: int) -> bool:
        """Grow a sequence, evicting others until it fits; False: it evicted itself."""
