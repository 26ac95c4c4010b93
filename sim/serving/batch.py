"""The batch of a server: running requests, decoding requests, and the memory that decoding takes.

A calendar says when each must grow (growth.py), so that the work is proportional to changes, not to tokens.
Growth that the allocator promises is granted in bulk; if it promises too little, the server makes room, one
sequence at a time.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import sub

from mypy_extensions import i64, mypyc_attr

from kvsim.allocators.base import InvariantError
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.growth import MANY, SOON_PS, Grown, GrowthCalendar
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.progress import Lockstep, Progress
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.spread import Contexts

PS_PER_NS = 1_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Batch:
    """Running requests, decoding requests, and the memory that decoding takes.

    Parameters
    ----------
    memory : KvMemory
        Holds their keys and values.
    progress : Progress, optional
        How far the decoding sequences are; by default one token per step.

    Attributes
    ----------
    running : dict of Request
        By sequence id, in order of admission.
    departed : dict of Request
        Running requests that finished in the last step, if the engine cannot know it yet.
    loading : dict of Request
        By sequence id, those that hold memory and run only after keys and values are loaded into it.
    moving : dict of Request
        By sequence id, those whose blocks are being copied to or from another server.
    aside : dict of Request
        By sequence id, those that gave up their seat, keep their memory and wait in the queue.
    growth : GrowthCalendar
        When the decoding sequences must grow.
    works_in_spans : bool
        Whether the allocator works after the steps of a span (`grow_mapped`, `pass_steps`).
    """

    may_work_in_spans: bool = True
    """Whether an allocator may work after the steps of a span."""

    shares: bool = False
    """Whether sequences share blocks beyond what is cached."""

    def __init__(self, memory: KvMemory, progress: Progress | None = None) -> None:
        self.memory = memory
        self.allocator = allocator = memory.allocator
        self.progress = progress = Lockstep() if progress is None else progress
        self.running: dict[int, Request] = {}
        self.departed: dict[int, Request] = {}
        self.loading: dict[int, Request] = {}
        self.moving: dict[int, Request] = {}
        self.aside: dict[int, Request] = {}
        unit = allocator.growth_unit or allocator.grows_by
        in_spans = memory.abilities.in_spans is not None
        self.works_in_spans = self.may_work_in_spans and in_spans and progress.linear
        if not self.works_in_spans and allocator.growth_slots != unit * allocator.slots_per_token:
            unit = 0  # it allocates more than its tokens take: the surplus is known growth by growth
        self.growth = GrowthCalendar(unit if progress.linear else 0)
        self._granted: Decision | None = None  # the last one that gave the decoding sequences their memory

    def watch(self, watched: bool, context_tile: int) -> None:
        """Whether every step is observed; and the tile in tokens by which contexts differ, unless 0."""
        if context_tile and self.progress.linear:
            self.progress.spread = Contexts(context_tile)

    def parked(self) -> dict[int, Request]:
        """Requests that hold memory without running: loading, moving or set aside."""
        return self.loading | self.moving | self.aside if self.moving or self.aside else self.loading

    def living(self) -> dict[int, Request]:
        """Requests that hold memory."""
        parked = self.parked()
        return self.running | parked if parked else self.running

    def lengths(self, new: bool) -> dict[int, int]:
        """Tokens of each living sequence in the step, with or without its `new` ones; from scratch."""
        loading = {seq: request.computed for seq, request in self.parked().items()}
        if self.progress.linear:
            clock, decode, finished = self.progress.clock + new, State.DECODE, State.FINISHED
            return loading | {
                seq: r.base + clock if r.state == decode else r.computed
                for seq, r in self.running.items()
                if r.state != finished
            }
        of_decoding = self.progress.tokens if new else self.progress.stored
        return loading | {
            seq: of_decoding(r) if r.state == State.DECODE else r.computed
            for seq, r in self.running.items()
            if r.state != State.FINISHED
        }

    # -- in and out ---------------------------------------------------------------------------

    def join(self, request: Request, now_ps: int) -> None:
        """Let a sequence decode from the next decode step on."""
        request.move(State.DECODE)
        self.memory.prefill_held -= request.computed
        self.progress.join(request, now_ps)
        self.plan_growth(request)

    def finished(self, step: Decision) -> list[Request]:
        """The decoding requests that have their last token after `step`, in order of admission."""
        return self.progress.finished()

    def cut(self, request: Request, output_tokens: int) -> None:
        """End the answer of a decoding sequence sooner: at least one token is still to come."""
        self.growth.remove(request.seq, self._full_clock(request), self._growth_finish(request))
        self.progress.cut(request, output_tokens)
        self.plan_growth(request)

    def leave(self, request: Request) -> None:
        """Write back the tokens of a sequence that stops decoding before its end."""
        growth = self.growth
        finish = self._growth_finish(request) if self.works_in_spans else request.finish_clock
        clock = -request.base if growth.unit else self._full_clock(request)  # all alike modulo `unit`
        growth.remove(request.seq, clock, finish)
        if growth.leaving:
            growth.stay(request.seq)
        self.progress.leave(request)

    def victim(self, policy: str) -> Request:
        """The next request to preempt: the last running one; by priority, the least urgent, as in vLLM V1.

        That is the one with the largest number; of these the last to arrive; of these the first admitted.
        """
        if policy == "priority":
            living = (r for r in self.running.values() if self._may_be_preempted(r))
            return max(living, key=lambda r: (r.priority, r.arrival_ps))
        return next(r for r in reversed(self.running.values()) if self._may_be_preempted(r))

    def _may_be_preempted(self, request: Request) -> bool:
        """Finished seats of a static batch stay; requests not known to be finished can be preempted."""
        return request.state != State.FINISHED or request.seq in self.departed

    def granted(self, step: Decision) -> bool:
        """Whether this step has given the decoding sequences their memory."""
        return self._granted is step

    # -- growing ------------------------------------------------------------------------------

    def due_one_by_one(self, step: Decision) -> list[int]:
        """The sequences that must grow in this step, if each is given its memory individually."""
        self._granted = step
        return self.growth.due(self.progress.clock)

    def grow_promised(self, step: Decision) -> tuple[list[int], list[int]] | None:
        """Give every decoding sequence room for this step's tokens, if all of it is promised.

        Otherwise do nothing and return the sequences that must grow and those that leave slots: the server
        makes room.
        """
        self._granted, clock = step, self.progress.clock
        growth, leaving = self.growth, None
        due = growth.residues[clock % growth.unit] if growth.unit else growth.due(clock)
        if growth.leaving and clock in growth.leaving:
            leaving = growth.pop_leaving(clock)
        if not (due or leaving):
            return None
        allocator = self.allocator
        if self.works_in_spans and self._grow_mapped(due):
            pass
        elif growth.unit and len(due) <= allocator.growth_budget():
            if leaving:
                self._grow_and_leave([], due, leaving, clock)
            else:
                allocator.grow_many(due)
        else:
            return due, leaving or []
        if clock in growth.last or growth.unwritten or not growth.unit:
            self.grew(due)
        return None

    def grew(self, seqs: list[int]) -> None:
        """These grew in the step: note when they grow next, and which slots will never be filled."""
        growth, clock = self.growth, self.progress.clock
        if not growth.unit:
            self._plan_growths(seqs)
            return
        if clock in growth.last:
            for seq in growth.pop_full(clock):
                request = self.running[seq]
                self.memory.set_internal(request, self.allocator.surplus(seq, request.final_tokens))
        if growth.unwritten and clock in growth.unwritten:
            self._leave_unwritten(clock)

    def guaranteed_steps(
        self, at_most: int, keeping_cached: bool = False, anybody_waits: bool = False
    ) -> int:
        """Decode steps, including this one, in which no sequence ends early and all growth is guaranteed.

        With `keeping_cached`, none of them might take a block whose text can still be found.
        """
        progress, growth = self.progress, self.growth
        steps = progress.next_finish - progress.clock
        if steps > at_most:
            steps = at_most
        if growth.leaving and anybody_waits:  # a waiting request may enter once another leaves slots
            steps = min(steps, min(growth.leaving) - progress.clock)
        if steps > 1:
            if self.works_in_spans:
                return steps  # the allocator says later how far it can go
            budget, unit = self.allocator.growth_budget() - growth.margin, growth.unit
            if keeping_cached and self.allocator.cached_slots:
                budget = 0  # only the allocator knows which block goes first
            if not unit or progress.size * ((steps - 2) // unit + 1) > budget:  # if all grew together
                return growth.guaranteed_steps(progress.clock, steps, budget)
        return steps

    def steps_behind(self, done: int, at_most: int, anybody_waits: bool) -> Iterator[tuple[int, int]]:
        """What follows the `done` steps for which the decision holds (`repeats`), up to `at_most` steps.

        Yields (steps, tokens copied in the first of them), one after the other, as far as everything is
        foreseen; `grow_within` then carries it out, or the part of it that is in the span.
        """
        return iter(())

    def grow_within(self, ends: list[int]) -> Grown:
        """Give the decoding sequences the memory of a span whose i-th step ends at `ends[i]`.

        The first step already has its memory. Allocators that work after steps may strike some from `ends`.
        """
        allocator = self.allocator
        if self.works_in_spans:
            return self._work_within(ends)
        if self.growth.leaving:
            return self._grow_and_leave_within(ends)
        lefts: list[tuple[int, int]] | None = [] if allocator.cached_slots else None
        grown, used, full = self.growth.growth_within(self.progress.clock, ends, lefts)
        if grown:
            allocator.grow_many(grown)
        evicted, per_token = 0, allocator.slots_per_token
        internal = self._full(full) if full else 0
        if lefts and allocator.evicted_by:
            each = [left for count, left in lefts for _ in range(count)]
            evicted = sum([each[index] for index in allocator.evicted_by]) * self.growth.unit
        if per_token != 1:
            used *= per_token
        return used, internal, evicted, None, 0, 0

    def close(self) -> None:
        """The run is over: count for unfinished sequences what is otherwise counted when they end."""

    def _work_within(self, ends: list[int]) -> Grown:
        """Like `grow_within`, with the allocator's work after each step but the last.

        Work that a step could not hide is not begun: the steps from there on are struck from `ends`.
        """
        growth, allocator, clock = self.growth, self.allocator, self.progress.clock
        used_before, idle_before = allocator.used_slots, allocator.idle_slots
        counts: list[int] = []
        most_ns = min(map(sub, ends[1:], ends)) // PS_PER_NS
        in_spans = self.memory.abilities.in_spans
        assert in_spans is not None
        idles = in_spans.pass_steps(growth.growths(clock, len(ends) - 1, counts), most_ns)
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
        """Some growths at this clock allocate slots that will never be written: returns how many more."""
        before = self.memory.internal
        for seq, slots in self.growth.unwritten.pop(clock):
            request = self.running.get(seq)
            if request is not None and request.state is State.DECODE:
                self.memory.set_internal(request, slots)
        return self.memory.internal - before

    def _full(self, full: list[tuple[int, int, int]]) -> int:
        """Integral of the slots left empty by sequences that got their last: (sequence, clock, time left)."""
        growth, per_token, internal = self.growth, self.allocator.slots_per_token, 0
        for seq, clock, left in full:
            request = self.running[seq]
            slots = (request.base + clock + growth.unit - request.final_tokens) * per_token
            request.internal = slots
            self.memory.internal += slots
            if left > SOON_PS or slots > MANY:
                internal += slots * left
            else:
                few: i64 = slots
                soon_ps: i64 = left
                left_empty: int = few * soon_ps
                internal += left_empty
        return internal

    def _grow_and_leave_within(self, ends: list[int]) -> Grown:
        """Like `grow_within`, if some sequences leave slots behind a window."""
        growth, allocator, clock, total = self.growth, self.allocator, self.progress.clock, ends[-1]
        unit, slots = growth.unit, growth.unit * allocator.slots_per_token
        grown: list[int] = []  # sequences that grew since one left slots
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
        """Give the sequences that are due at `clock` their slots, as promised, and let others leave some.

        The sequences in `grown` come first: they grew earlier, and have no slots yet.
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
            self.plan_leaving(request)
        if grown:
            allocator.grow_many(grown)

    def _grow_mapped(self, due: list[int]) -> bool:
        """Grow these sequences if that maps nothing."""
        in_spans = self.memory.abilities.in_spans
        return in_spans is not None and in_spans.grow_mapped(due)

    def plan_growth(self, request: Request) -> None:
        """Note when a sequence must grow next, or what it will never fill."""
        allocator, unit = self.allocator, self.growth.unit
        capacity = allocator.capacity(request.seq)
        leaves_behind = self.memory.abilities.leaves_behind
        if leaves_behind is not None:
            if unit:
                self.plan_leaving(request)
            elif leaves_at := leaves_behind.leaves_at(request.seq):
                capacity = min(capacity, leaves_at - 1)
        clock = self.progress.growth_clock(request, capacity)
        if clock < request.finish_clock:
            finish = self._growth_finish(request) if self.works_in_spans else request.finish_clock
            self.growth.add(request.seq, clock, finish)
            if self.works_in_spans:
                surplus = allocator.surplus(request.seq, request.final_tokens)
                self.growth.allocate_more(request.seq, clock, finish, surplus, allocator.growth_slots)
            if unit:
                return
        self.memory.set_internal(request, max(0, allocator.surplus(request.seq, request.final_tokens)))

    def forget_growth(self, request: Request) -> None:
        """A sequence grows now, ahead of time: its next growth must be planned again."""
        self.growth.remove(request.seq, self._full_clock(request), request.finish_clock)

    def _growth_finish(self, request: Request) -> int:
        """The clock from which a sequence no longer grows: its finish, or when it has all it can have."""
        if not self.works_in_spans:
            return request.finish_clock
        return min(request.finish_clock, self.progress.growth_clock(request, self.allocator.growth_end))

    def _plan_growths(self, seqs: Sequence[int]) -> None:
        """Plan the next growth of sequences that just grew one by one, when nothing is promised."""
        if self.memory.abilities.leaves_behind is not None:
            for seq in seqs:
                if seq in self.running:  # by priority, a sequence that grew may be evicted in the same step
                    self.plan_growth(self.running[seq])
            return
        growth_clock, capacity, add = self.progress.growth_clock, self.allocator.capacity, self.growth.add
        for seq in seqs:
            request = self.running.get(seq)
            if request is None:
                continue
            clock, slots = growth_clock(request, capacity(seq)), 0
            if clock < request.finish_clock:
                add(seq, clock, request.finish_clock)
            if (
                clock >= request.finish_clock or self.memory.abilities.surplus
            ):  # else it writes all of its slots
                slots = max(0, self.allocator.surplus(seq, request.final_tokens))
            if slots != request.internal:
                self.memory.set_internal(request, slots)

    def plan_leaving(self, request: Request) -> None:
        """Note when a sequence leaves slots next."""
        leaves_behind = self.memory.abilities.leaves_behind
        leaves_at = leaves_behind.leaves_at(request.seq) if leaves_behind is not None else 0
        if leaves_at:
            clock = self.progress.growth_clock(request, leaves_at - 1)
            if clock < request.finish_clock:
                self.growth.leave_next(request.seq, clock)

    def _full_clock(self, request: Request) -> int:
        """The clock at which a sequence has filled the last block of its table."""
        capacity, unit = self.allocator.capacity(request.seq), self.growth.unit
        if unit:
            capacity += -capacity % unit  # a shared block counts as full before its end
        return self.progress.growth_clock(request, capacity)
