"""One server on the clock: a SimPy process that decides a step, plans a span, sleeps to its end, commits it.

    decide   the scheduler decides a step; its record is a Decision (decision.py)
    plan     foreseeable steps that need no new decision are added (planner.py)
    sleep    until the last of them ends; an arrival may cut the plan at the next boundary (alarm.py)
    commit   the memory of the steps, their tokens, finished requests (commit.py)
    idle     a step that computes nothing, or time without a step (idle.py)

A plan changes nothing beyond what the scheduler did for its first step. `max_span=1` is step mode: the same
code, the same result, one step at a time. A replica that gets all requests need not sleep until the next
arrival: up to there it commits ahead of the clock.

Within one instant, arrivals come first, then ends of steps, then requests that follow these answers at once
(alarm.py), so that the step that starts at t sees an arrival at t, unless an asynchronous engine has already
decided it (input_queue.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import simpy

from kvsim.allocators.base import InvariantError
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.record.events import Events
from kvsim.sim.record.instants import TIMELINE_ROWS
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.recorder import Recorder, Result
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.record.timeline import instant_of
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.alarm import Alarm, Process
from kvsim.sim.serving.arrivals import Arrivals
from kvsim.sim.serving.commit import Commit
from kvsim.sim.serving.decision import NEVER_PS, Decision
from kvsim.sim.serving.idle import Idle
from kvsim.sim.serving.input_queue import InputQueue
from kvsim.sim.serving.kinds import KindsLedger
from kvsim.sim.serving.observers import Checks, EventLog, MapDrawer, Observer, StepLog
from kvsim.sim.serving.planner import Planner
from kvsim.sim.serving.pricing import Pricing
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


class Replica:
    """A server, its scheduler and the cost of its steps.

    Parameters
    ----------
    log : RequestLog
        Records its requests.
    max_span : int
        Most decode steps taken as one event; 1 is step mode.
    step_log : bool
        Whether to write a row per step; needs step mode.
    timeline_rows : int
        At most this many instants are kept; a span also ends when one is due.
    check : bool
        Recount the memory from scratch at every step (slow; for tests).
    hears_late : bool
        Whether a step is decided when the previous one begins (input_queue.py).
    events, memory_map : Events, MemoryMap, optional
        Record what happens to each request, and where everything lies in memory.
    kinds_in_words : dict of str, optional
        What the results call each kind of layers, if they are kept in groups.

    Attributes
    ----------
    decide : callable
        Decides the step that starts now: the scheduler's method, which an observer may wrap.
    commit : Commit
        Carries out plans.
    observers : list of Observer
        Observers. They change nothing.
    input_queue : InputQueue
        Requests that have arrived but are not in the server's queue yet.
    until_ps : int
        When it died, or was switched off.
    place : int
        Order of replicas that act on each other and are due at the same instant.
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
        hears_late: bool = False,
        events: Events | None = None,
        memory_map: MemoryMap | None = None,
        kinds_in_words: dict[str, str] | None = None,
    ) -> None:
        self.server = server
        self.scheduler = scheduler
        self.decide: Callable[[Server], Decision] = scheduler.decide
        self.pricing = Pricing(server, cost)
        if scheduler.policy is not None:
            scheduler.policy.cost = cost
        per_token, stack = server.allocator.slots_per_token, server.memory.below.stack
        self.recorder = Recorder(log, timeline_rows, per_token, stack)
        self.recorder.memory_map = memory_map
        tile = int(getattr(cost, "context_tile", 0))  # a class may say so in its body, compiled or not
        server.watch(events, 0 if server.memory.abilities.reads_holes else tile)
        self.observers: list[Observer] = []
        if check:
            self.observers.append(Checks(server.check))
        if events:
            self.observers.append(EventLog(events, server, scheduler))
        if memory_map:
            self.observers.append(MapDrawer(memory_map, server))
        if step_log:
            self.observers.append(StepLog(self.recorder, server, scheduler))
        groups = server.memory.abilities.in_groups
        if groups is not None and len(groups.kinds) > 1:
            self.recorder.kinds = kinds = KindsLedger(server, groups, kinds_in_words or {})
            self.decide = kinds.around(self.decide)
        if server.memory.abilities.after_steps and not server.batch.works_in_spans:
            max_span = 1
        self.input_queue, self._alarm = InputQueue(server, hears_late), Alarm()
        parts = server, scheduler, self.pricing, self.recorder, self.observers
        self._planner = Planner(*parts, self.input_queue, max_span)
        self.commit = Commit(*parts, self._planner)
        self._idle = Idle(*parts, self.input_queue, self.commit, self._alarm)
        self.place, self.until_ps = 0, NEVER_PS

    # -- on the clock -------------------------------------------------------------------------

    def begin(self, env: simpy.Environment, arrivals: Arrivals, alone: bool) -> None:
        """Start to serve; `alone`: every arrival comes here."""
        self.input_queue.begin(arrivals, alone)
        if self.server.batch.works_in_spans and not self.input_queue.fetches:
            self._planner.most_steps = 1  # an arrival could end a span whose work is done
        self.commit.begin(self.input_queue)
        self._alarm.begin(env, self._serve(), self.place)

    def _serve(self) -> Process:
        """Decide, plan, sleep, commit, until no request is left."""
        server, batch, inputs, alarm = self.server, self.server.batch, self.input_queue, self._alarm
        decide, planner, commit, observers = self.decide, self._planner, self.commit, self.observers
        arrivals, ahead, fetches, unheard = inputs.arrivals, inputs.ahead, inputs.fetches, inputs.requests
        meets = inputs.meets
        while True:
            if arrivals.next_ps <= server.now_ps:
                if fetches:
                    arrivals.bring(inputs.known_ps())
                else:  # triggered by an answer just given
                    yield alarm.decision(server.now_ps)
            elif meets and alarm.anything_now:
                yield alarm.decision(server.now_ps)
            if unheard:
                inputs.take()
            if not (
                server.running or server.waiting or server.swapped or batch.loading or server.wakes.works
            ):
                yield from self._idle.wait()
                continue
            if observers:
                for observer in observers:
                    observer.deciding()
            step = decide(server)
            plan = planner.plan(step)
            if step.refused is not None:
                commit.write_facts(step.refused)
            if plan is None:
                yield from self._idle.stall()
                inputs.decided_ps = server.now_ps
                continue
            if not fetches and server.now_ps + plan[-1] >= ahead.next_ps:
                yield alarm.at(alarm.through(server.now_ps, plan, planner.stands))
                plan = alarm.end_plan()
            commit.carry_out(plan)

    # -- arrivals -----------------------------------------------------------------------------

    def join(self, requests: Iterable[Request]) -> None:
        """Requests arrive, and may enter at the next boundary, or at the one after it."""
        inputs, now_ps = self.input_queue, self._alarm.now_ps
        at_once = self._alarm.interrupt(inputs.late) or inputs.fetches
        for request in requests:
            if at_once:
                inputs.hear(request)
            else:
                inputs.put(request, now_ps)

    def tell(self, request: Request) -> None:
        """The engine is to do something other than queue a request when it hears of it."""
        self._alarm.stands = False
        self.join([request])

    def arrived(self) -> None:
        """Something happened outside that is looked at by the next boundary at the latest."""
        self._alarm.interrupt(later=False)

    @property
    def clock_ps(self) -> int:
        """Time on the clock: later than the server's time while it sleeps."""
        return self._alarm.now_ps

    def meet(self) -> None:
        """A request comes at once after an answer: a step that ends now is over before it comes."""
        self._alarm.meet()

    def look_at_next(self) -> None:
        """Waiting requests may enter, or running ones find less room, at the next boundary: decide there."""
        self._alarm.stands = False
        self.arrived()

    def look_again(self, first: bool) -> None:
        """What it shares with other replicas changes now; waiting requests may find it at the next boundary.

        What it has decided so far stands; with `first` also what it decides at this instant.
        """
        if self._alarm.plan is not None and self.server.waiting:
            self.catch_up(first)
            self.look_at_next()

    def catch_up(self, now_too: bool = False) -> None:
        """Carry out all steps of the plan that have ended by now: the state is then as in step mode.

        `now_too`: also a step that ends at this instant.
        """
        alarm, over = self._alarm, self._alarm.over(now_too)
        if over:
            self.commit.carry_out(alarm.end_plan()[:over])
            self.input_queue.take()
            step = self.decide(self.server)
            plan = self._planner.plan(step)
            if step.refused is not None:
                self.commit.write_facts(step.refused)
            if plan is None:
                raise InvariantError(f"step {self.server.steps} of a span computes nothing")
            alarm.move(alarm.through(self.server.now_ps, plan, self._planner.stands))

    def turn_away(self, row: int, now_ps: int, reason: str) -> None:
        """Count an arrival that can never be served; during a plan, after that plan."""
        if self._alarm.plan is None:
            self.commit.turn_away(row, now_ps, reason)
        else:
            self.commit.turned_away.noted.append((row, now_ps, self.next_step, reason))

    # -- death --------------------------------------------------------------------------------

    def die(self, at_ps: int) -> int:
        """The server is gone; what it did until then stays recorded. Returns the tokens that it held.

        One that was switched off earlier has nothing to lose.
        """
        self.catch_up()
        self.commit.turned_away.write_noted()
        if (passed_ps := at_ps - self.server.now_ps) > 0:
            self.server.now_ps = at_ps
            if self._alarm.plan is None:
                self._idle.count(passed_ps)
            else:  # the step under way as far as it goes, without its tokens
                self.recorder.tally.add(([passed_ps], (0, *self._planner.start[1:]), None))
        self.until_ps = at_ps
        self._alarm.end()
        self.observers.clear()
        return self.server.tokens()[0] if self.server.batch.living() else 0

    def lost_tokens(self) -> dict[int, int]:
        """By row, the tokens in memory of each request, including those of the step under way."""
        lengths = self.server.lengths()
        found: dict[int, int] = {}
        for seq, request in self.server.batch.living().items():
            found[request.index] = found.get(request.index, 0) + lengths.get(seq, 0)
        return found

    def comes_late(self, row: int) -> None:
        """Record that a request is sent here later than it arrived."""
        if self.server.events is not None:
            self.server.events.sent(row, self.clock_ps, self.next_step)

    @property
    def next_step(self) -> int:
        """Number of the first step that starts now or later."""
        steps = self.server.steps
        return steps if self._alarm.plan is None else steps + self._alarm.over() + 1

    def follow(self, before: "Replica") -> None:
        """Replace a replica that died or is off: empty, and not serving yet."""
        self.server.steps = before.server.steps
        self.server.now_ps = before.server.now_ps - before._idle.beyond(before.until_ps).time_ps
        self.note_empty()

    def note_empty(self) -> None:
        """It holds nothing, and does not serve yet."""
        self.recorder.timeline.add(instant_of(self.server, 0))
        if self.recorder.memory_map is not None:
            self.recorder.memory_map.draw(self.server.now_ps, self.server.allocator, {}, {})

    def wait_until(self, now_ps: int) -> None:
        """Time has passed before it began to serve."""
        server = self.server
        self.recorder.tally.idle(now_ps - server.now_ps, "", server.rest())
        server.wait(now_ps)

    # -- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """No more arrivals: let go of the clock, so that no reference cycle keeps what was recorded."""
        self._alarm.end()
        self.commit.end()

    def result(self) -> Result:
        """What was recorded."""
        server = self.server
        for observer in self.observers:
            observer.end()
        server.batch.close()
        tier, totals = server.totals.tier, self.pricing.totals
        if tier is not None:
            most_tokens = self.scheduler.config.max_num_batched_tokens
            tier.saved_ps = self.pricing.prompts_ps(tier.hit_tokens, tier.hit_pairs, most_tokens)
        return self.recorder.result(server.totals, server.allocator, server.steps, totals, server.holds)

    def upto(self, found: Result, end_ps: int) -> Result:
        """Its result, if the run ends then, or if its own end came before."""
        until_ps = min(end_ps, self.until_ps)
        beyond = self._idle.beyond(until_ps)
        if beyond.time_ps:
            found = replace(found, unsaturated=found.unsaturated.less(beyond))
        return found if found.tier is None else replace(found, tier=found.tier.until(until_ps))
