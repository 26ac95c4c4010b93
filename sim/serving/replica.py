"""One server on the clock: a SimPy process that plans a span of steps, sleeps to its end, and carries it out.

    plan     the scheduler decides a step; steps that need no new decision are added, as far as is known
    sleep    until the last of them ends; whoever arrives may cut the plan at the next boundary
    commit   the memory of the steps, their tokens, who is finished

A plan changes nothing but the decision of its first step. It ends at the next finish, before the first step
whose memory is not guaranteed, where a row of the timeline is due, and at the first boundary at or after an
arrival that may enter. `max_span=1` is step mode: the same code, the same result, one step at a time.

A replica that is alone is promised that nobody comes before `arrivals.next_ps`: up to there it plans and
commits ahead of the clock, without sleeping. What a plan says of its beginning (who waits, what is external)
is noted when it is made, as arrivals land before it is carried out.

Same instant, same order: arrivals first, then replicas, so that an arrival at t is seen by the step that
starts at t.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from typing import Final

import simpy

from kvsim.allocators.base import InvariantError
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.record.events import NO_ROOM, Events
from kvsim.sim.record.limits import limit
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.recorder import TIMELINE_ROWS, Instant, Recorder, Result
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.record.span import Rest, Span
from kvsim.sim.record.step_row import end_of_step, start_of_step
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.alarm import Alarm
from kvsim.sim.serving.arrivals import NEVER_PS, Arrivals
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.growth import Grown
from kvsim.sim.serving.pricing import Pricing
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server

LATE_PS: Final = 1 << 61
"""Some way before the clock ends: from here on it is looked at."""

Process = Generator[simpy.Event, None, None]


class Replica:
    """A server, its scheduler and the cost of its steps.

    Parameters
    ----------
    log : RequestLog
        Where its requests are written down.
    max_span : int
        Most decode steps taken as one event; 1 is step mode.
    step_log : bool
        Whether to write a row per step, which takes step mode.
    timeline_rows : int
        At most this many instants are kept; a span also ends where one is due.
    check : bool
        Recount the memory from scratch at every step (slow; for tests).
    events, memory_map : Events, MemoryMap, optional
        Where to write down what happens to each request, and what lies where.

    Attributes
    ----------
    decide : callable
        Decides the step that starts now: the scheduler's own. Who watches may put his own around it.
    decision : Decision
        What was decided last.
    """

    def __init__(
        self,
        server: Server,
        scheduler: Scheduler,
        cost: CostModel,
        log: RequestLog,
        *,
        max_span: int = 1 << 20,
        step_log: bool = False,
        timeline_rows: int = TIMELINE_ROWS,
        check: bool = False,
        events: Events | None = None,
        memory_map: MemoryMap | None = None,
    ) -> None:
        self.server = server
        self.scheduler = scheduler
        self.decide: Callable[[Server], Decision] = scheduler.decide
        self.decision = server.step
        self.pricing = Pricing(server, cost)
        self.recorder = Recorder(log, step_log, timeline_rows, server.allocator.slots_per_token)
        works = server.allocator.works_after_steps
        self._works_in_spans = server.own.works_in_spans
        self.max_span = 1 if step_log or (works and not self._works_in_spans) else max_span
        self.check: Callable[[], None] | None = server.check if check else None
        self._wait: Callable[[int], None] | None = None
        self._in_turn = scheduler.in_turn
        self._linear = server.progress.linear
        # may it have slots that are external, cached, idle or shared?
        self._rests = server.own.external_slots or server.allocator.idles
        self._rests = self._rests or server.allocator.caches or scheduler.forks
        self._after_each = scheduler.forks or step_log or works  # is there anything to do after each step?
        self.events = events
        self.memory_map = memory_map
        server.watch(events, 0 if server.allocator.reads_holes else cost.context_tile)
        self._alarm = Alarm()
        self._span = Span()
        self._current: Span | None = None  # the plan, while it sleeps on it
        self._last_ends = [0]  # of the plan that it carried out last
        self._may_be_cut = False
        self._late: list[tuple[int, int]] = []  # (last token, how many) of those who decode late
        self._turned_away: list[tuple[int, int, int, str]] = []  # arrivals during the plan: see `turn_away`

    def wait_before_steps(self, wait: Callable[[int], None], max_span: int) -> None:
        """For who watches: call `wait` with the time in ps before each step, or each `max_span` of them."""
        self._wait, self.max_span = wait, min(self.max_span, max_span)

    def end(self) -> None:
        """Nobody comes any more: let go of the clock, so that no reference cycle keeps what was recorded."""
        self._alarm.end()

    # -- on the clock -------------------------------------------------------------------------

    def begin(self, env: simpy.Environment, arrivals: Arrivals, alone: bool) -> None:
        """Start to serve; `alone`: all that arrives comes here."""
        self._arrivals, self._alone = arrivals, alone
        self._looked_on = (self.check or self.events or self.memory_map) is not None
        self._plain = self._linear and not self.memory_map  # is a span only to be recorded?
        takes = alone and not arrivals.wait_for_answers  # does it take them from the columns itself?
        if self._works_in_spans and not takes:
            self.max_span = 1  # who comes could end a span whose work is done
        self._alarm.begin(env, self._serve(takes))

    def _serve(self, takes: bool) -> Process:
        """Plan, sleep, commit, until nobody comes any more; `takes`: it fetches them itself."""
        server, arrivals, wait = self.server, self._arrivals, self._wait
        while True:
            if arrivals.next_ps <= server.now_ps:
                if takes:
                    arrivals.bring(server.now_ps)
                else:  # asked for by an answer just given
                    yield self._alarm.at(server.now_ps)
            if not (server.running or server.waiting or server.swapped):
                yield from self._idle(takes)
                continue
            if wait:
                wait(server.now_ps)
            plan = self._plan()
            if plan is None:
                yield from self._stall()
                continue
            if not takes and (not self._alone or server.now_ps + plan.ends[-1] >= arrivals.next_ps):
                self._current = plan
                yield self._alarm.at(server.now_ps + plan.ends[-1])
                plan = self._awake()
            self._commit(plan)

    def _awake(self) -> Span:
        """What has become of the plan meanwhile."""
        plan, self._current, self._may_be_cut = self._current, None, False
        if plan is None:
            raise InvariantError(f"step {self.server.steps}: the plan was lost")
        return plan

    def _idle(self, takes: bool) -> Process:
        """Wait until somebody comes."""
        server, now_ps = self.server, self.server.now_ps
        self.recorder.sample(self._instant(0))
        if self.check:
            self.check()
        rest = server.rest()
        if takes and self._arrivals.next_ps < NEVER_PS:
            yield self._alarm.at(self._arrivals.next_ps)
        else:
            yield self._alarm.set_bell()
            self._alarm.take_bell()
        until_ps = self._on_the_clock(self._alarm.now_ps)
        self.recorder.idle(until_ps - now_ps, "", rest)
        server.wait(until_ps)
        self.pricing.rest()

    def _stall(self) -> Process:
        """A step that computes nothing, as its last request evicted itself, or left.

        Asynchronous engines find out one decision later that there is room, and the step is spent.
        """
        server, step = self.server, self.decision
        if step.evictions or (server.rules.known_late and step.departures and server.waiting):
            duration = self.pricing.step_ps(step, 0, self.pricing.due())
            held_by = limit(server, self.scheduler) if server.waiting or server.swapped else ""
            self.recorder.idle(duration, held_by, server.rest())
            until_ps = self._on_the_clock(server.now_ps + duration)
            if not self._alone:
                yield self._alarm.at(until_ps)
            server.wait(until_ps)
        elif step.departures:  # there is room now: decide again
            return
        elif step.no_room and not server.allocator.used_slots:  # evicted, it is longer than when it came
            server.drop_head(f"finds no room in an empty arena of {server.allocator.capacity_slots:,} slots")
            self._write_facts()
        else:
            raise InvariantError(
                f"step {server.steps}: nobody runs and request {server.waiting[0].index}, the head of "
                f"{len(server.waiting)} waiting, is refused"
            )

    def _on_the_clock(self, now_ps: int) -> int:
        """The same, unless it is later than the clock goes."""
        return self.recorder.log.on_the_clock(now_ps, self.server.steps)

    # -- who comes ----------------------------------------------------------------------------

    def arrived(self) -> None:
        """Somebody came: wake up, or end the plan at the next boundary if it might enter there."""
        if self._alarm.ring():
            return
        if self._may_be_cut and self._current is not None:
            ends = self._current.ends
            last = bisect_left(ends, self._alarm.now_ps - self.server.now_ps)
            if last + 1 < len(ends):
                del ends[last + 1 :]
                self._alarm.move(self.server.now_ps + ends[-1])

    def catch_up(self) -> None:
        """Carry out all steps of the plan that are over by now: its state is then as in step mode."""
        if self._current is None:
            return
        ends = self._current.ends
        over = bisect_left(ends, self._alarm.now_ps - self.server.now_ps)
        if over:
            del ends[over:]
            self._commit(self._current)
            plan = self._plan()
            if plan is None:
                raise InvariantError(f"step {self.server.steps} of a span computes nothing")
            self._current = plan
            self._alarm.move(self.server.now_ps + plan.ends[-1])

    def turn_away(self, row: int, reason: str) -> None:
        """Count a request that came and can never be served; in the course of a plan, after that."""
        now_ps, server = self._arrivals.now_ps, self.server
        if self._current is not None:
            step = server.steps + bisect_left(self._current.ends, now_ps - server.now_ps) + 1
            self._turned_away.append((row, now_ps, step, reason))
            return
        ends = self._last_ends
        after = len(ends) - bisect_left(ends, now_ps - server.now_ps + ends[-1]) - 1
        self._write_rejection(row, now_ps, server.steps - max(after, 0), reason)

    def _write_rejection(self, row: int, now_ps: int, step: int, reason: str) -> None:
        self.recorder.reject(reason)
        if self.events:
            self.events.rejected(row, now_ps, step, reason)

    # -- planning -----------------------------------------------------------------------------

    def _plan(self) -> Span | None:
        """Let the scheduler decide, and say how long that holds; None: there is nothing to compute."""
        server, pricing = self.server, self.pricing
        now_ps, progress, decide = server.now_ps, server.progress, self.decide
        self.decision = step = decide(server)
        held, contexts = server.tokens()
        if now_ps >= self.recorder.next_sample_ps:
            self.recorder.sample(self._instant(held))
        if self._looked_on:
            self._look_on()
        decodes, due, alone = step.decodes, False, step.changed
        late = progress.late and decodes > 0 and self._note_late(now_ps)
        if pricing.beside:
            due = pricing.due()
            alone = alone or pricing.is_unlike(due)
            contexts = pricing.read(contexts)
        if alone or late:
            ends = self._lone_step(step, contexts, due)
        elif decodes:
            ends = self._span_ends(step, contexts, due)
            if step.repeats:
                self._go_on(step, ends, contexts)
        else:
            return None
        if not ends:
            return None
        allocator, internal = server.allocator, server.internal
        rest: Rest | None = None
        if self._rests and (
            allocator.shared_tokens or allocator.cached_slots or allocator.idles or server.own.external_slots
        ):
            rest, internal = server.rest(), server.internal_slots()
        if self.recorder.step_log:
            self._log_start(held, ends[-1])
        running = len(server.running) - server.seats.count
        held_by = limit(server, self.scheduler) if server.waiting or server.swapped else ""
        decoding = 0 if late else decodes
        return self._span.plan(
            ends, decoding, running, held, self._used(held, internal), internal, held_by, rest
        )

    def _lone_step(self, step: Decision, contexts: int, due: bool) -> list[int]:
        """When a step ends that is like none before or behind it; nothing, if it computes nothing."""
        if step.rejected or step.evicted_finished:
            self._write_facts()
        if step.computes:
            return [self.pricing.step_ps(step, contexts, due)]
        return []

    def _span_ends(self, step: Decision, contexts: int, due: bool) -> list[int]:
        """When the steps end, counted from now, that need no new decision; at least one.

        The first has to pay for what the allocator did beside, where that is `due`.
        """
        server, progress = self.server, self.server.progress
        at_most = self.max_span
        if step.repeats:
            at_most = min(at_most, step.repeats)
        if self.memory_map:
            at_most = min(at_most, self.memory_map.steps(progress.size))
        steps = server.guaranteed_steps(at_most, step.asks_by_cached)
        limit_ps = self.recorder.next_sample_ps
        if not (server.waiting and self._in_turn):  # else who comes only joins the queue
            if not self._alone:
                self._may_be_cut = True
            elif self._arrivals.next_ps < limit_ps:
                limit_ps = self._arrivals.next_ps
        return self.pricing.ends(step, steps, limit_ps - server.now_ps, contexts, due)

    def _go_on(self, step: Decision, ends: list[int], contexts: int) -> None:
        """Add to a span what is foreseen of the steps behind those for which the decision holds."""
        server, progress, until_ps = self.server, self.server.progress, self.recorder.next_sample_ps
        if self._alone:
            until_ps = min(until_ps, self._arrivals.next_ps)
        if not self.memory_map:
            at_most = min(self.max_span, progress.next_finish - progress.clock)
            self.pricing.go_on(step, ends, contexts, until_ps - server.now_ps, at_most)

    def _unlike_spans(self, plan: Span) -> Iterator[Span]:
        """The steps of such a plan one by one; what does not hold a decoding sequence stays as it is."""
        later, before, one = self.server.progress.contexts_later, 0, Span()
        others = plan.held - later(0) * (not self.decision.paused)
        for step, end in enumerate(plan.ends):
            held = plan.held if not step else others + later(step)
            yield one.plan(
                [end - before],
                plan.decoding,
                plan.running,
                held,
                plan.used,
                plan.internal,
                plan.held_by,
                plan.rest,
            )
            before = end

    def _note_late(self, now_ps: int) -> bool:
        """Whether some who decode now got no token in the step before; then they are noted one by one."""
        self._late = self.server.progress.late_tokens(now_ps)
        return bool(self._late)

    # -- carrying out -------------------------------------------------------------------------

    def _commit(self, plan: Span) -> None:
        """The steps of a plan are over: memory, tokens, finishes."""
        server, ends, step = self.server, plan.ends, self.decision
        progress = server.progress
        if len(ends) > 1 and self._linear:
            plan.grown = self._work_within(ends) if self._works_in_spans else server.grow_within(ends)
        if self._plain:
            self.recorder.add(plan)
        else:
            self._pass_on(plan)
        self.pricing.carried_out(ends)
        now_ps = server.now_ps + ends[-1]
        if now_ps > LATE_PS:
            self._on_the_clock(now_ps)
        if not plan.decoding and step.decodes:
            for last_ps, count in self._late:
                self.recorder.late(now_ps - last_ps, count)
        server.end_steps(len(ends), now_ps)
        self._last_ends = ends
        if progress.clock == progress.next_finish:
            for request in server.pop_finished():
                self._finish(request)
        if step.chunks:
            self._give_tokens()
        if self._after_each or self._turned_away:
            self._after_steps()

    def _work_within(self, ends: list[int]) -> Grown:
        """Let the allocator work behind each step of a span but the last, as long as nobody waits for it."""
        grown = self.server.work_within(ends)
        self.pricing.pass_steps()
        return grown

    def _pass_on(self, plan: Span) -> None:
        """Let the recorder and the memory map hear of a plan."""
        step, progress = self.decision, self.server.progress
        if self.memory_map:
            decoded = 0 if step.paused else progress.added(len(plan.ends))
            self.memory_map.passed(decoded + step.prefill_tokens)
        if self._linear:
            self.recorder.add(plan)
        else:
            self._record_unlike(plan)

    def _record_unlike(self, plan: Span) -> None:
        """Write down a plan whose steps add different numbers of tokens: tokens of one step come at once."""
        progress, steps = self.server.progress, len(plan.ends)
        for span in self._unlike_spans(plan):
            self.recorder.add(span)
        if self.decision.decodes:
            self.recorder.late(0, progress.added(steps) - progress.size * steps)

    def _give_tokens(self) -> None:
        """Who prefilled and has all of the prompt computed gets a token, and decodes or is done."""
        server, now_ps = self.server, self.server.now_ps
        for request in self.decision.chunks:
            if server.rules.publishes_late:
                server.publish(request)
            if request.computed < request.known_tokens:
                continue
            if self.events:
                self.events.decodes(request, now_ps, server.steps - 1)
            last_ps = server.prompt_done(request)
            if last_ps is not None:
                self.recorder.late(now_ps - last_ps, 1)
            else:
                self.recorder.first_tokens += 1 if request.group is None else request.group.seats
            for done in self.scheduler.start_decode(server, request):
                self._finish(done)

    def _finish(self, request: Request) -> None:
        server, now_ps = self.server, self.server.now_ps
        request.move(State.FINISHED)
        if self.events:
            self.events.finished(request, now_ps, server.steps - 1)
        if self.recorder.finish(request, now_ps, server.steps - 1) and self._arrivals.wait_for_answers:
            self._arrivals.answered(request.index, now_ps)
        self.scheduler.finish(server, request)

    def _after_steps(self) -> None:
        """What few runs ask for: beams, the step log, an allocator's work, arrivals turned away meanwhile."""
        server = self.server
        self.scheduler.choose_beams(server)
        if self.recorder.step_log:
            running = len(server.running) - self.scheduler.counted_as_waiting(server)
            self.recorder.log_end(*end_of_step(server, running))
        self.pricing.after_step()
        if self._turned_away:
            for rejection in self._turned_away:
                self._write_rejection(*rejection)
            self._turned_away.clear()

    # -- looking on ---------------------------------------------------------------------------

    def _look_on(self) -> None:
        """What tests, events and the memory map want to see of a decision."""
        server, memory_map = self.server, self.memory_map
        if self.check:
            self.check()
        if self.events:
            self._tell_refusal(self.events)
        if memory_map and memory_map.due:
            memory_map.draw(server.now_ps, server.allocator, server.running, server.lengths())

    def _tell_refusal(self, events: Events) -> None:
        """Write down why the head of the queue is still there."""
        server, step = self.server, self.decision
        refused = step.refusal
        happened, events.changed = events.changed or step.changed, step.changed
        if not server.waiting:
            return
        head = server.waiting[0]
        if refused and refused.request is head:
            reason, need = NO_ROOM, refused.need_slots
        else:
            reason = self.scheduler.held_back(server)
            need = server.allocator.slots_needed(head.known_tokens, server.bound(head))
        events.refused(head, server.now_ps, server.steps, reason, need, server.allocator, happened)

    def _write_facts(self) -> None:
        """Write down whom the scheduler dropped, and evicted although they had finished."""
        server, step = self.server, self.decision
        for row in step.evicted_finished:
            self.recorder.log.preempted(row)
        for row, reason, preemptions in step.rejected:
            self.recorder.log.preempted(row, preemptions)
            self._write_rejection(row, server.now_ps, server.steps, reason)
            self._arrivals.answered(row, server.now_ps)

    def _log_start(self, held: int, duration_ps: int) -> None:
        """Begin a row of the step log, with who runs and waits as the engine itself counts them."""
        server, step = self.server, self.decision
        as_waiting = self.scheduler.counted_as_waiting(server)
        running = len(server.running) - as_waiting
        waiting = len(server.waiting) + as_waiting + len(step.evicted_finished)
        self.recorder.log_start(start_of_step(server, step, held, duration_ps, running, waiting), waiting)

    def _used(self, held: int, internal: int) -> int:
        """Slots in use: InvariantError unless they are at least those that hold a token or never will."""
        used = self.server.allocator.used_slots
        if held + internal > used:
            self._instant(held)  # raises, with all numbers
        return used

    def _instant(self, held: int) -> Instant:
        """The row of the timeline for now, when so many slots hold a token."""
        server, allocator = self.server, self.server.allocator
        used, cached, external = allocator.used_slots, allocator.cached_slots, server.external_slots()
        internal = server.internal_slots()
        free = allocator.free_slots - cached - external - allocator.idle_slots
        found = Instant(
            server.now_ps,
            held,
            used - held - internal,
            internal,
            cached,
            external,
            free,
            len(server.running),
            len(server.waiting),
            allocator.largest_free_extent(),
            server.totals.preemptions + server.totals.swap_outs,
            allocator.idle_slots,
        )
        if min(found) < 0:
            raise InvariantError(f"no kind of slot can be negative, got {found} of {used} slots in use")
        return found

    def result(self) -> Result:
        """What was written down; the last picture of the memory map is drawn."""
        server = self.server
        if self.memory_map:
            self.memory_map.draw(server.now_ps, server.allocator, {}, {})
        return self.recorder.result(server.totals, server.allocator, server.steps, self.pricing.totals)
