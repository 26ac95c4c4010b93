"""The loop: admit -> form batch -> cost -> wait -> apply, on SimPy's clock in whole picoseconds.

SimPy runs whatever brings requests (sim/arrivals.py). `_serve` runs the engine's steps: it lets SimPy
catch up, lets the scheduler decide, asks the cost model how long the step takes, and applies it.

A decode step that changes nobody's place is repeated: a *span* of such steps is taken at once. It ends at
the next finish, before the first step whose memory is not guaranteed, and, while the queue is empty,
at the first step boundary at or after the next event that SimPy knows of (an arrival; nothing else can
happen before it). `max_span=1` is step mode: the same code, the same result, one step at a time.

Same instant, same order: SimPy catches up with all that is due at t before the step that starts at t
is decided, so an arrival at t is seen by it.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

import simpy

from kvsim.allocators.base import InvariantError
from kvsim.sim.arrivals import Arrivals
from kvsim.sim.errors import KvsimError
from kvsim.sim.events import NO_ROOM, Events
from kvsim.sim.load import limit
from kvsim.sim.memory_map import MemoryMap
from kvsim.sim.recorder import SPANS_AT_ONCE, TIMELINE_ROWS, Integrals, Recorder, Result
from kvsim.sim.request import Request, State
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.server import Server
from kvsim.sim.spread import Contexts
from kvsim.sim.step_cost import CostModel
from kvsim.sim.workload import LATEST_PS, PS_PER_S, Workload

UNLIMITED = 1 << 40


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """Pause the search for reference cycles: a run makes none, and it would take a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Engine:
    """One server under one workload.

    Parameters
    ----------
    max_model_len : int
        Tokens of the longest sequence; longer answers are cut, prompts that leave no room refused.
    max_span : int
        Most decode steps taken as one event; 1 is step mode.
    timeline_rows : int
        At most this many instants are kept; a span also ends where one is due.
    check : bool
        Recount the memory from scratch at every step (slow; for tests).
    events, memory_map : Events, MemoryMap, optional
        Where to write down what happens to each request, and what lies where.
    """

    def __init__(
        self,
        workload: Workload,
        server: Server,
        scheduler: Scheduler,
        cost: CostModel,
        max_model_len: int,
        *,
        max_span: int = 1 << 20,
        step_log: bool = False,
        timeline_rows: int = TIMELINE_ROWS,
        check: bool = False,
        events: Events | None = None,
        memory_map: MemoryMap | None = None,
    ) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.workload = workload
        self.server = server
        self.scheduler = scheduler
        self.cost = cost
        if cost.context_tile:
            server.contexts = Contexts(cost.context_tile)
        self.max_span = 1 if step_log else max_span
        self._waits = workload.waits is not None
        self.check = check
        self._wait: Callable[[int], None] | None = None
        self.events = server.events = events
        self._anew = True  # did anything happen in the last step, or since, that may change a refusal?
        self.memory_map = memory_map
        self.recorder = Recorder(workload, step_log, timeline_rows, server.allocator.slots_per_token)
        longest = max_model_len if scheduler.limits_length else UNLIMITED
        self.arrivals = Arrivals(self.env, workload, server, scheduler, self.recorder, longest)

    def run(self) -> Result:
        """Serve every request and return what was written down."""
        self.arrivals.begin()
        with _no_cycle_collection():
            self._serve()
        return self.recorder.result(self.server)

    def wait_before_steps(self, wait: Callable[[int], None], max_span: int) -> None:
        """For who watches: call `wait` with the time in ps before each step, or each `max_span` of them."""
        self._wait, self.max_span = wait, min(self.max_span, max_span)

    # -- steps --------------------------------------------------------------------------------

    def _serve(self) -> None:  # noqa: PLR0912, PLR0915 (the loop, on one page)
        env, server, schedule, recorder = self.env, self.server, self.scheduler.schedule, self.recorder
        pauses, beams, wait = server.pauses, self.workload.beam is not None, self._wait
        late: list[tuple[int, int]] = []
        now = 0
        while True:
            next_event = env.peek()
            while next_event <= now:
                env.step()
                next_event = env.peek()
            if not (server.waiting or server.running or server.swapped):
                recorder.sample(server, now, 0)
                if next_event == inf:
                    if self.memory_map:
                        self.memory_map.draw(now, server.allocator, {}, {})
                    return
                self._record_empty(recorder.unsaturated, int(next_event) - now)
                now = self._on_the_clock(int(next_event))
                continue
            if wait:
                wait(now)
            server.now_ps = now
            if server.moved:
                server.begin_step()
            server.no_room = False
            schedule(server)
            held, contexts = server.tokens()
            if now >= recorder.next_sample_ps:
                recorder.sample(server, now, held)
            if self.check:
                server.check()
            if self.events:
                self._tell_refusal()
            if self.memory_map and self.memory_map.due:
                self.memory_map.draw(now, server.allocator, server.running, server.lengths())
            decodes = server.decoding
            if pauses:
                if server.rejected:
                    self._reject()
                decodes = 0 if server.paused else decodes
                late = server.late_tokens() if decodes else []
            if decodes and not server.moved and not late:
                ends = self._span(now, contexts, next_event)
            elif decodes or server.chunks or any(server.swapped_blocks()):
                shape = server.shape(contexts)
                ends = [self.cost.step_ps(shape)]
                if self.cost.flags:
                    self.cost.carried_out(shape, ends[0])
            else:
                now = self._on_the_clock(now + self._stall())
                continue
            if now + ends[-1] > LATEST_PS:
                self._on_the_clock(now + ends[-1])
            self._record(ends, held, decodes, late)
            now += ends[-1]
            server.now_ps = now
            server.step += len(ends)
            if decodes:
                server.clock += len(ends)
                if pauses:
                    server.decoded(now)
                if server.clock == server.next_finish:
                    for request in server.pop_finished():
                        self._finish(request, now)
            if server.chunks:
                self._give_tokens(now)
            if beams:
                self.scheduler.choose_beams(server)
            if recorder.step_log:
                recorder.log_end(server)

    def _on_the_clock(self, now_ps: int) -> int:
        """The same, unless it is later than the clock goes."""
        if now_ps > LATEST_PS:
            finished, count = self.recorder.finished_count, len(self.workload)
            raise KvsimError(
                f"the simulation takes too long: with {finished:,} of {count:,} requests served and "
                f"{self.server.step:,} steps done it goes to {now_ps / PS_PER_S:,.0f} s, the clock only to "
                f"{LATEST_PS / PS_PER_S:,.0f} s (106 days); take fewer requests, or another gpu or cost"
            )
        return now_ps

    def _reject(self) -> None:
        """Write down whom the scheduler dropped."""
        for row, reason in self.server.rejected:
            self.recorder.reject(reason)
            if self.events:
                self.events.rejected(row, self.server.now_ps, self.server.step, reason)
            self.arrivals.answered(row, self.server.now_ps)
        self.server.rejected.clear()

    def _tell_refusal(self) -> None:
        """Write down why the head of the queue is still there."""
        server, refused = self.server, self.server.refused
        server.refused = None
        anew, self._anew = self._anew or server.moved, server.moved
        if not server.waiting or self.events is None:
            return
        head = server.waiting[0]
        if refused and refused.request is head:
            reason, need = NO_ROOM, refused.need_slots
        else:
            reason = self.scheduler.held_back(server)
            need = server.allocator.slots_needed(head.known_tokens, server.bound(head))
        self.events.refused(head, server.now_ps, server.step, reason, need, server.allocator, anew)

    def _stall(self) -> int:
        """A step that computes nothing, as its last request evicted itself; returns its duration."""
        server = self.server
        if server.evicted:
            shape = server.shape(0)
            duration = self.cost.step_ps(shape)
            if self.cost.flags:
                self.cost.carried_out(shape, duration)
            waits = server.waiting or server.swapped
            if waits:
                self.recorder.held_ps[limit(server, self.scheduler)] += duration
            self._record_empty(self.recorder.saturated if waits else self.recorder.unsaturated, duration)
            return duration
        if server.cleared:  # who left made room: decide again
            return 0
        raise InvariantError(
            f"step {server.step}: nobody runs and the head of {len(server.waiting)} waiting is refused"
        )

    def _record_empty(self, sums: Integrals, duration: int) -> None:
        """Write down time in which nobody holds memory."""
        sums.time_ps += duration
        external, cached = self.server.external_slots(), self.server.allocator.cached_slots
        sums.add_rest(duration, external, cached, 0)

    def _span(self, now: int, contexts: int, next_event: float) -> list[int]:
        """When the steps end, counted from now, that need no new decision; at least one."""
        server = self.server
        at_most = self.max_span
        if self.memory_map:
            at_most = min(at_most, self.memory_map.steps(server.decoding))
        steps = server.guaranteed_steps(at_most)
        seats, apart = server.decoding + server.idle_seats, server.contexts
        limit = self.recorder.next_sample_ps
        if next_event < limit and (not server.waiting or server.policy != "fcfs"):
            limit = int(next_event)
        spread = None if apart is None else apart.spread(server.clock + 1, steps)
        ends = self.cost.span_ends(seats, contexts, steps, limit - now, spread)
        if self.cost.flags:
            self.cost.span_carried_out(seats, contexts, ends)
        return ends

    def _record(self, ends: list[int], held: int, decodes: int, late: list[tuple[int, int]]) -> None:
        """Write down a span of steps, and give it the memory that it was promised."""
        server, recorder, allocator = self.server, self.recorder, self.server.allocator
        if self.events:
            self.events.stepped(server.step, server.now_ps, ends)
        if self.memory_map:
            self.memory_map.passed(decodes * len(ends) + server.chunk_tokens)
        if server.waiting or server.swapped:
            spans, sums = recorder.saturated_spans, recorder.saturated
            recorder.held_ps[limit(server, self.scheduler)] += ends[-1]
        else:
            spans, sums = recorder.unsaturated_spans, recorder.unsaturated
        if late:  # a single step, as the time between two tokens is longer than it
            end_ps = server.now_ps + ends[0]
            recorder.other_gaps += [(end_ps - last_ps, count) for last_ps, count in late]
            decodes = 0
        running = len(server.running) - server.idle_seats
        internal = server.internal
        if server.special or server.has_external:
            shared = allocator.shared_tokens
            if shared:
                internal += allocator.idle_slots()
            sums.add_rest(ends[-1], server.external_slots(), allocator.cached_slots, shared)
        spans.append((ends, decodes, running, held, allocator.used_slots, internal))
        if len(spans) == SPANS_AT_ONCE:
            recorder.flush()
        if recorder.step_log:
            recorder.log_start(server, held, ends[-1])
        if len(ends) > 1:
            used, internal, evicted = server.grow_within(ends)
            sums.used += used
            sums.internal += internal
            sums.cached -= evicted

    def _give_tokens(self, now: int) -> None:
        """Who prefilled and has all of the prompt computed gets a token, and decodes or is done."""
        server = self.server
        for request in server.chunks:
            if server.fills_late:
                server.allocator.fill(request.seq, request.computed)
            if request.computed < request.known_tokens:
                continue
            if self.events:
                self.events.decodes(request, now, server.step - 1)
            if request.first_token_ps is None:
                request.first_token_ps = now
                request.first_token_step = server.step - 1
            else:
                self.recorder.other_gaps.append((now - request.last_token_ps, 1))
            request.generated += 1
            request.last_token_ps = now
            for done in self.scheduler.start_decode(server, request):
                self._finish(done, now)

    def _finish(self, request: Request, now: int) -> None:
        request.move(State.FINISHED)
        if self.events:
            self._anew = True
            self.events.finished(request, now, self.server.step - 1)
        if self.recorder.finish(request, now, self.server.step - 1) and self._waits:
            self.arrivals.answered(request.index, now)
        self.scheduler.finish(self.server, request)
