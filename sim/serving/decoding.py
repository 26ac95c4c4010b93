"""The part of a server that gives the decoding sequences their memory, step by step or span by span.

When each must grow stands in a calendar (growth.py), so that the work is proportional to changes, not to
tokens. Growth that the allocator promises is given in bulk; where it promises too little, one by one, and
somebody may have to make room.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import sub

from mypy_extensions import i64, mypyc_attr

from kvsim.allocators.base import Allocator, InvariantError
from kvsim.sim.serving.decision import Decision, undecided
from kvsim.sim.serving.growth import MANY, SOON_PS, Grown, GrowthCalendar
from kvsim.sim.serving.progress import Progress
from kvsim.sim.serving.request import Request, State

PS_PER_NS = 1_000
NOBODY: list[int] = []


@dataclass(frozen=True)
class Own:
    """Which parts of the contract an allocator does in a way of its own; the others need not be asked."""

    leaves_at: bool
    surplus: bool
    external_slots: bool
    windows: bool
    knows_prompts: bool
    rests: bool
    """slots that are external, cached, idle or shared"""
    works_in_spans: bool


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

    may_work_in_spans: bool = True
    """Whether an allocator may work after each step of a span (`grow_mapped`, `pass_steps`)."""

    shares: bool = False
    """Whether sequences share blocks beyond what is cached."""

    def __init__(self, allocator: Allocator, progress: Progress) -> None:
        self.allocator = allocator
        self.progress = progress
        self.running: dict[int, Request] = {}
        self.step: Decision = undecided()
        self.now_ps = 0
        self.internal = 0  # allocated slots that will never be written
        self.prefill_held = 0  # tokens held by sequences that do not decode
        unit = allocator.growth_unit or allocator.grows_by
        works_in_spans = self.may_work_in_spans and allocator.works_in_spans and progress.linear
        if not works_in_spans and allocator.growth_slots != unit * allocator.slots_per_token:
            unit = 0  # it allocates more than its tokens take: what is left over is known growth by growth
        self._growth = GrowthCalendar(unit if progress.linear else 0)
        kind = type(allocator)
        external = kind.external_slots is not Allocator.external_slots
        self.own = Own(
            leaves_at=kind.leaves_at is not Allocator.leaves_at,
            surplus=kind.surplus is not Allocator.surplus,
            external_slots=external,
            windows=allocator.windows,
            knows_prompts=allocator.knows_prompts,
            rests=external or allocator.idles or allocator.caches or self.shares,
            works_in_spans=works_in_spans,
        )
        self._granted: Decision | None = None  # the last that gave the decoding sequences their memory

    @property
    def decoding(self) -> int:
        """Sequences that decode."""
        return self.progress.size

    @property
    def margin(self) -> int:
        """Growth units that must stay free in every step."""
        return self._growth.margin

    @margin.setter
    def margin(self, units: int) -> None:
        self._growth.margin = units

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
        self._growth.remove(request.seq, self._full_clock(request), self._growth_finish(request))
        if self._growth.leaving:
            self._growth.stay(request.seq)
        self.progress.leave(request)

    # -- growing ------------------------------------------------------------------------------

    def grow_due(self) -> None:
        """Give every decoding sequence room for this step's tokens, evicting the last where none is."""
        self._granted, clock = self.step, self.progress.clock
        growth, leaving = self._growth, NOBODY
        due = growth.residues[clock % growth.unit] if growth.unit else growth.due(clock)
        if growth.leaving and clock in growth.leaving:
            leaving = growth.pop_leaving(clock)
        if not (due or leaving):  # most often
            return
        allocator = self.allocator
        if self.own.works_in_spans and allocator.grow_mapped(due):
            pass
        elif len(due) <= allocator.growth_budget() and growth.unit:
            if leaving:
                self._grow_and_leave([], due, leaving, clock)
            else:
                allocator.grow_many(due)
        else:
            due = self._grow_one_by_one(due, leaving)
        if not growth.unit:
            self._plan_growths(due)
            return
        if clock in growth.last:
            for seq in growth.pop_full(clock):
                request = self.running[seq]
                self._set_internal(request, allocator.surplus(seq, request.final_tokens))
        if growth.unwritten and clock in growth.unwritten:
            self._leave_unwritten(clock)

    def _grow_one_by_one(self, due: list[int], leaving: list[int]) -> list[int]:
        """Grow those that are due, and those that leave slots, where too little is promised: who grew."""
        self.step.changed = True
        running, tokens = self.running, self.progress.tokens
        grown = [
            seq
            for seq in (sorted({*due, *leaving}) if leaving else due[:])
            if seq in running and self._make_room(running[seq], tokens(running[seq]))
        ]
        for seq in leaving:
            if seq in running:
                self._plan_leaving(running[seq])
        return grown

    def guaranteed_steps(self, at_most: int, keeping_cached: bool = False) -> int:
        """Decode steps, this one included, in which nobody ends early and all growth is guaranteed.

        With `keeping_cached` there is none that might take a block whose text can still be found.
        """
        progress, growth = self.progress, self._growth
        steps = progress.next_finish - progress.clock
        if steps > at_most:
            steps = at_most
        if growth.leaving and self._anybody_waits():  # who may enter as soon as somebody leaves slots
            steps = min(steps, min(growth.leaving) - progress.clock)
        if steps > 1:
            if self.own.works_in_spans:
                return steps  # the allocator says later how far it can go
            budget, unit = self.allocator.growth_budget() - growth.margin, growth.unit
            if keeping_cached and self.allocator.cached_slots:
                budget = 0  # which block goes first is the allocator's secret
            if not unit or progress.size * ((steps - 2) // unit + 1) > budget:  # if all grew at once
                return growth.guaranteed_steps(progress.clock, steps, budget)
        return steps

    def _anybody_waits(self) -> bool:
        """Whether anybody may enter when memory is free."""
        return False

    def grow_within(self, ends: list[int]) -> Grown:
        """Give the decoding sequences the memory of a span, the i-th step of which ends at `ends[i]`.

        The first step has its memory already. Allocators that work after steps may strike some from `ends`.
        """
        allocator = self.allocator
        if self.own.works_in_spans:
            return self._work_within(ends)
        if self._growth.leaving:
            return self._grow_and_leave_within(ends)
        lefts: list[tuple[int, int]] | None = [] if allocator.cached_slots else None
        grown, used, full = self._growth.growth_within(self.progress.clock, ends, lefts)
        if grown:
            allocator.grow_many(grown)
        evicted, per_token = 0, allocator.slots_per_token
        internal = self._full(full) if full else 0
        if lefts and allocator.evicted_by:
            each = [left for count, left in lefts for _ in range(count)]
            evicted = sum([each[index] for index in allocator.evicted_by]) * self._growth.unit
        if per_token != 1:
            used *= per_token
        return used, internal, evicted, None, 0, 0

    def _work_within(self, ends: list[int]) -> Grown:
        """As `grow_within`, with the allocator's work behind each step but the last.

        What could not be hidden behind a step is not begun: the steps from there on are struck from `ends`.
        """
        growth, allocator, clock = self._growth, self.allocator, self.progress.clock
        used_before, idle_before = allocator.used_slots, allocator.idle_slots
        counts: list[int] = []
        most_ns = min(map(sub, ends[1:], ends)) // PS_PER_NS
        idles = allocator.pass_steps(growth.growths(clock, len(ends) - 1, counts), most_ns)
        del ends[len(idles) + 1 :]
        total, slots = ends[-1], allocator.growth_slots
        used = internal = idle = 0
        for step, (start, end) in enumerate(pairwise(ends)):
            used += counts[step] * slots * (total - start)
            idle += (idles[step] - idle_before) * (end - start)
            if clock + step + 1 in growth.unwritten:
                internal += self._leave_unwritten(clock + step + 1) * (total - start)
        grown = allocator.used_slots - used_before
        if grown != sum(counts[: len(idles)]) * slots:
            raise InvariantError(f"{grown} slots were allocated in {len(idles)} steps")
        return used, internal, 0, None, idle, 0

    def _leave_unwritten(self, clock: int) -> int:
        """Some growths of this clock allocate slots that will never be written: returns how many more."""
        before = self.internal
        for seq, slots in self._growth.unwritten.pop(clock):
            request = self.running.get(seq)
            if request is not None and request.state is State.DECODE:
                self._set_internal(request, slots)
        return self.internal - before

    def _full(self, full: list[tuple[int, int, int]]) -> int:
        """Some have their last slots since (sequence, clock, time left): the integral of what stays empty."""
        growth, per_token, internal = self._growth, self.allocator.slots_per_token, 0
        for seq, clock, left in full:
            request = self.running[seq]
            slots = (request.base + clock + growth.unit - request.final_tokens) * per_token
            request.internal = slots
            self.internal += slots
            if left > SOON_PS or slots > MANY:
                internal += slots * left
            else:
                few: i64 = slots
                soon_ps: i64 = left
                left_empty: int = few * soon_ps
                internal += left_empty
        return internal

    def _grow_and_leave_within(self, ends: list[int]) -> Grown:
        """As `grow_within`, where some leave slots behind a window."""
        growth, allocator, clock, total = self._growth, self.allocator, self.progress.clock, ends[-1]
        unit, slots = growth.unit, growth.unit * allocator.slots_per_token
        grown: list[int] = []  # who grew since somebody left
        full: list[tuple[int, int, int]] = []
        left: list[tuple[int, int]] = []
        used = 0
        for step, start in enumerate(ends[:-1], 1):
            clock += 1
            due = growth.residues[clock % unit]
            if clock in growth.leaving:
                held, expired = allocator.used_slots + len(grown) * slots, allocator.expired_slots
                self._grow_and_leave(grown, due, growth.pop_leaving(clock), clock)
                grown = []
                used += (allocator.used_slots - held) * (total - start)
                left.append((step, allocator.expired_slots - expired))
            else:
                grown += due
                used += len(due) * slots * (total - start)
            if clock in growth.last:
                full += [(seq, clock, total - start) for seq in growth.pop_full(clock)]
        if grown:
            allocator.grow_many(grown)
        return used, self._full(full), 0, left, 0, 0

    def _grow_and_leave(self, grown: list[int], due: list[int], leaving: list[int], clock: int) -> None:
        """Give those that are due at `clock` their slots, as promised, and let others leave some.

        First come those who `grown` names: they grew before, and have no slots yet.
        """
        allocator, running, unlike = self.allocator, self.running, set(leaving)
        for seq in sorted(unlike.union(due)):
            if seq not in unlike:
                grown.append(seq)
                continue
            if grown:
                allocator.grow_many(grown)
                grown.clear()
            request = running[seq]
            if not allocator.grow(seq, request.base + clock + 1):
                raise InvariantError(f"sequence {seq} was promised growth at its clock {clock} and got none")
            self._plan_leaving(request)
        if grown:
            allocator.grow_many(grown)

    def _plan_growth(self, request: Request) -> None:
        """Write down when a sequence must grow next, or what it will never fill."""
        allocator, unit = self.allocator, self._growth.unit
        capacity = allocator.capacity(request.seq)
        if self.own.leaves_at:
            if unit:
                self._plan_leaving(request)
            elif leaves_at := allocator.leaves_at(request.seq):
                capacity = min(capacity, leaves_at - 1)
        clock = self.progress.growth_clock(request, capacity)
        if clock < request.finish_clock:
            finish = self._growth_finish(request)
            self._growth.add(request.seq, clock, finish)
            if self.own.works_in_spans:
                surplus = allocator.surplus(request.seq, request.final_tokens)
                self._growth.allocate_more(request.seq, clock, finish, surplus, allocator.growth_slots)
            if unit:
                return
        self._set_internal(request, max(0, allocator.surplus(request.seq, request.final_tokens)))

    def _growth_finish(self, request: Request) -> int:
        """The clock from which on a sequence does not grow: its finish, or when it has all it can have."""
        if not self.own.works_in_spans:
            return request.finish_clock
        return min(request.finish_clock, self.progress.growth_clock(request, self.allocator.growth_end))

    def _plan_growths(self, seqs: Sequence[int]) -> None:
        """The same for those that just grew one by one, where nothing is promised."""
        if self.own.leaves_at:
            for seq in seqs:
                if seq in self.running:  # by priority, who grew may be evicted in the same step
                    self._plan_growth(self.running[seq])
            return
        growth_clock, capacity, add = self.progress.growth_clock, self.allocator.capacity, self._growth.add
        for seq in seqs:
            request = self.running.get(seq)
            if request is None:
                continue
            clock, slots = growth_clock(request, capacity(seq)), 0
            if clock < request.finish_clock:
                add(seq, clock, request.finish_clock)
            if clock >= request.finish_clock or self.own.surplus:  # else it writes all that it has
                slots = max(0, self.allocator.surplus(seq, request.final_tokens))
            if slots != request.internal:
                self._set_internal(request, slots)

    def _plan_leaving(self, request: Request) -> None:
        """Write down when a sequence leaves slots next."""
        leaves_at = self.allocator.leaves_at(request.seq)
        if leaves_at:
            clock = self.progress.growth_clock(request, leaves_at - 1)
            if clock < request.finish_clock:
                self._growth.leave_next(request.seq, clock)

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
