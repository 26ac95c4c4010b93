"""One server on the clock: a SimPy process that decides a step, plans a span, sleeps to its end, commits it.

    decide   the scheduler decides a step; its record is a Decision (decision.py)
    plan     foreseeable steps that need no new decision are added (planner.py)
    sleep    until the last of them ends; an arrival may cut the plan at the next boundary
    commit   the memory of the steps, their tokens, finished requests (commit.py)

A plan changes nothing beyond what the scheduler did for its first step. `max_span=1` is step mode: the same
code, the same result, one step at a time. A replica that gets all requests need not sleep until the next
arrival: up to there it commits ahead of the clock.

Within one instant, arrivals come first, then replicas, so that the step that starts at t sees an arrival
at t, unless an asynchronous engine has already decided it (input_queue.py).
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

import simpy

from kvsim.allocators.base import InvariantError
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.record.events import Events
from kvsim.sim.record.instants import TIMELINE_ROWS
from kvsim.sim.record.limits import limit
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.recorder import Recorder, Result
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.record.span import Integrals, Kept, Rest
from kvsim.sim.record.timeline import instant_of
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.alarm import Alarm
from kvsim.sim.serving.arrivals import Arrivals, Promise
from kvsim.sim.serving.commit import Commit
from kvsim.sim.serving.decision import NEVER_PS, Decision
from kvsim.sim.serving.input_queue import InputQueue
from kvsim.sim.serving.kinds import KindsLedger
from kvsim.sim.serving.observers import Checks, EventLog, MapDrawer, Observer, Pace, StepLog
from kvsim.sim.serving.planner import Planner
from kvsim.sim.serving.pricing import Pricing
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server

Process = Generator[simpy.Event, None, None]


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
    decision : Decision
        The latest decision.
    commit : Commit
        Carries out plans.
    observers : list of Observer
        Observers. They change nothing.
    input_queue : InputQueue
        Requests that have arrived but are not in the server's queue yet.
    until_ps : int
        When it died, or was switched off.
    place : int
        Order of replicas that share a tier or a link and are due at the same instant.
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
        self.decision = server.step
        self.pricing = Pricing(server, cost)
        if scheduler.policy is not None:
            scheduler.policy.cost = cost
        per_token, stack = server.allocator.slots_per_token, server.memory.stack
        self.recorder = Recorder(log, timeline_rows, per_token, stack)
        self.events, self.memory_map = events, memory_map
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
        self._kinds: KindsLedger | None = None
        if groups is not None and len(groups.kinds) > 1:
            self._kinds = KindsLedger(server, groups, kinds_in_words or {})
            self.decide = self._kinds.around(self.decide)
        if server.memory.abilities.after_steps and not server.batch.works_in_spans:
            max_span = 1
        self._planner = Planner(server, scheduler, self.pricing, self.recorder, self.observers, max_span)
        self.commit = Commit(server, scheduler, self.pricing, self.recorder, self._planner, self.observers)
        self._alarm = Alarm()
        self._takes = False  # whether it takes requests from the columns itself
        self.input_queue = InputQueue(server, hears_late)
        self.place = 0
        self._planner.unheard = self.input_queue.requests
        self._current: list[int] | None = None  # the plan, while it sleeps until its end
        self._waits = False  # whether it sleeps until a transfer ends
        self._resting: tuple[str, Rest, Kept] = "", (0, 0, 0, 0, 0), (0, 0, 0, 0)  # while it computes nothing
        self._last: list[tuple[int, int, Rest, Kept]] = []  # from when to when it only stored, in the end
        self.until_ps = NEVER_PS

    def wait_before_steps(self, wait: Callable[[int], None], max_span: int) -> None:
        """For an observer: call `wait` with the time in ps before each step, or every `max_span` steps."""
        self.observers.append(Pace(self.server, wait, max_span))

    # -- on the clock -------------------------------------------------------------------------

    def begin(self, env: simpy.Environment, arrivals: Arrivals, alone: bool) -> None:
        """Start to serve; `alone`: every arrival comes here."""
        server, self._arrivals = self.server, arrivals
        self._takes = takes = alone and not arrivals.wait_for_answers
        self._ahead = Promise() if takes else arrivals if alone else Promise(0)
        if alone:
            self._planner.coming = arrivals
        if server.batch.works_in_spans and not takes:
            self._planner.most_steps = 1  # an arrival could end a span whose work is done
        self.commit.begin(arrivals, self.input_queue, self._kinds)
        self._alarm.begin(env, self._serve(takes), self.place)

    def _serve(self, takes: bool) -> Process:
        """Decide, plan, sleep, commit, until no request is left; `takes`: it fetches them itself."""
        server, batch, arrivals, ahead = self.server, self.server.batch, self._arrivals, self._ahead
        decide, planner, commit, observers = self.decide, self._planner, self.commit, self.observers
        sleeps, inputs, unheard = not takes, self.input_queue, self.input_queue.requests
        while True:
            if arrivals.next_ps <= server.now_ps:
                if takes:
                    arrivals.bring(inputs.known_ps())
                else:  # triggered by an answer just given
                    yield self._alarm.at(server.now_ps)
            if unheard:
                inputs.take()
            if not (
                server.running or server.waiting or server.swapped or batch.loading or server.wakes.works
            ):
                yield from self._idle(takes)
                continue
            if observers:
                self._tell_deciding()
            self.decision = step = decide(server)
            plan = planner.plan(step)
            if step.refused is not None:
                commit.write_facts(step.refused)
            if plan is None:
                yield from self._stall()
                inputs.decided_ps = server.now_ps
                continue
            if sleeps and server.now_ps + plan[-1] >= ahead.next_ps:
                self._current = plan
                yield self._alarm.at(server.now_ps + plan[-1])
                plan = self._awake()
            commit.carry_out(step, plan)

    def _awake(self) -> list[int]:
        """The plan as it is after the sleep."""
        plan, self._current = self._current, None
        if plan is None:
            raise InvariantError(f"step {self.server.steps}: the plan was lost")
        return plan

    def _idle(self, takes: bool) -> Process:
        """Wait for an arrival."""
        server, now_ps = self.server, self.server.now_ps
        self.scheduler.rest(server)
        kept = self._kept()
        self.recorder.timeline.add(instant_of(server, kept[0]))
        for observer in self.observers:
            observer.idle()
        held_by = limit(server, self.scheduler)
        if self._kinds is not None:
            self._kinds.note(held_by == "")
        rest = server.rest()
        self._resting = held_by, rest, kept
        if takes and self._arrivals.next_ps < NEVER_PS:
            yield self._alarm.at(self._arrivals.next_ps)
        else:
            yield self._alarm.set_bell()
            self._alarm.take_bell()
        until_ps = self._on_the_clock(self._alarm.now_ps)
        self.recorder.tally.idle(until_ps - now_ps, held_by, rest, kept)
        server.wait(until_ps)
        server.wakes.before_ps = until_ps - 1  # an idle engine looks again and again
        self.pricing.rest()

    def _stall(self) -> Process:
        """A step that computes nothing because its last request evicted itself or left.

        Asynchronous engines find out one decision later that there is room; the step still takes its time.
        """
        server, step = self.server, self.decision
        late = server.rules.known_late and step.departures and server.waiting
        if server.wakes.beside and step.until_ps < NEVER_PS:
            yield from self._wait_for_transfers()
        elif step.preemptions or step.spent or late:
            duration = self.pricing.step_ps(step, 0, self.pricing.due())
            held_by = limit(server, self.scheduler)
            rest, kept = server.rest(), self._kept()
            self._resting = held_by, rest, kept
            until_ps = self._on_the_clock(server.now_ps + duration)
            if until_ps >= self._ahead.next_ps:
                yield self._alarm.at(until_ps)
            self.recorder.tally.idle(duration, held_by, rest, kept)
            self._note_last(server.now_ps + duration)
            server.wait(until_ps)
        elif step.departures:  # there is room now: decide again
            return
        elif server.batch.moving:  # what keeps the head out belongs to no running request
            yield from self._idle(takes=False)
        elif step.no_room and not server.allocator.used_slots:  # evicted, now longer than on arrival
            server.drop_head(f"finds no room in an empty arena of {server.allocator.capacity_slots:,} slots")
            self.commit.write_facts(step.of_refusals())
        elif server.wakes.outside:
            yield from self._idle(takes=False)
        else:
            raise InvariantError(
                f"step {server.steps}: nobody runs and request {server.waiting[0].index}, the head of "
                f"{len(server.waiting)} waiting, is refused"
            )

    def _wait_for_transfers(self) -> Process:
        """Nothing can be computed before a transfer ends or a request arrives; most wait a step at least."""
        server, step = self.server, self.decision
        least = server.now_ps
        if not server.wakes.polls:
            least += self.pricing.step_ps(step, 0, self.pricing.due())
        held_by = limit(server, self.scheduler)
        until_ps = self._on_the_clock(max(least, min(step.until_ps, self._arrivals.next_ps)))
        rest, start_ps = server.rest(), server.now_ps
        kept = self._kept()
        self._resting = held_by, rest, kept
        if until_ps >= self._ahead.next_ps:
            self._waits = True
            yield self._alarm.at(until_ps)
            self._waits = False
            until_ps = max(start_ps, self._alarm.now_ps)
        self.recorder.tally.idle(until_ps - start_ps, held_by, rest, kept)
        self._note_last(until_ps)
        server.wait(until_ps)
        server.note_wait()
        if until_ps > least:
            server.wakes.before_ps = until_ps - 1

    def _note_last(self, until_ps: int) -> None:
        """Nothing was computed until then; without requests, it only stored in tiers."""
        if self.server.totals.tier is None or self.has_requests:
            return
        last, (_, rest, kept) = self._last, self._resting
        if last and last[0][0] < self.recorder.end_ps:
            last.clear()
        last.append((self.server.now_ps, until_ps, rest, kept))

    def _kept(self) -> Kept:
        server = self.server
        running = len(server.running)
        if not (running or server.batch.parked()):
            return (0, 0, 0, 0)
        return server.tokens()[0], server.allocator.used_slots, server.memory.internal_slots(), running

    def _on_the_clock(self, now_ps: int) -> int:
        """`now_ps`, unless it is beyond the clock's limit."""
        return self.recorder.log.on_the_clock(now_ps, self.server.steps)

    # -- arrivals -----------------------------------------------------------------------------

    def join(self, requests: Iterable[Request]) -> None:
        """Requests arrive, and may enter at the next boundary, or at the one after it."""
        inputs, now_ps = self.input_queue, self._alarm.now_ps
        at_once = self._takes or self._waits or self._alarm.sleeps
        for request in requests:
            if at_once:
                inputs.hear(request)
            else:
                inputs.put(request, now_ps)
        self._end_plan(inputs.late)

    def tell(self, request: Request) -> None:
        """The engine is to do something other than queue a request when it hears of it."""
        self._planner.stands = False
        self.join([request])

    def arrived(self) -> None:
        """Something happened outside that is looked at by the next boundary at the latest."""
        self._end_plan(later=False)

    def _end_plan(self, later: bool) -> None:
        """Wake up, or end the plan at the next boundary, or one boundary `later`."""
        if self._alarm.ring():
            return
        if self._waits:
            self._alarm.move(self._alarm.now_ps)
        elif self._current is not None and not self._planner.stands:
            ends = self._current
            kept = bisect_left(ends, self._alarm.now_ps - self.server.now_ps) + 1 + later
            if kept < len(ends):
                del ends[kept:]
                self._alarm.move(self.server.now_ps + ends[-1])

    @property
    def has_requests(self) -> bool:
        """Whether any request runs, loads, waits, or has arrived without being heard of yet."""
        server = self.server
        held = server.running or server.batch.loading or server.swapped
        return bool(held or server.waiting or self.input_queue.requests or server.batch.moving)

    @property
    def clock_ps(self) -> int:
        """Time on the clock: later than the server's time while it sleeps."""
        return self._alarm.now_ps

    def left(self, request: Request) -> None:
        """A waiting request leaves: end the plan at the next boundary; those behind it may enter there."""
        self.input_queue.remove(request)
        self.look_at_next()

    def look_at_next(self) -> None:
        """Waiting requests may enter, or running ones find less room, at the next boundary: decide there."""
        self._planner.stands = False
        self.arrived()

    def look_again(self, first: bool) -> None:
        """What it shares with other replicas changes now; waiting requests may find it at the next boundary.

        What it has decided so far stands; with `first` also what it decides at this instant.
        """
        if self._current is None or not self.server.waiting:
            return
        self.catch_up(first)
        self.look_at_next()

    def catch_up(self, now_too: bool = False) -> None:
        """Carry out all steps of the plan that have ended by now: the state is then as in step mode.

        `now_too`: also a step that ends at this instant.
        """
        if self._current is None:
            return
        ends = self._current
        over = bisect_left(ends, self._alarm.now_ps - self.server.now_ps + now_too)
        if over:
            del ends[over:]
            self.commit.carry_out(self.decision, ends)
            self.input_queue.take()
            self.decision = step = self.decide(self.server)
            plan = self._planner.plan(step)
            if step.refused is not None:
                self.commit.write_facts(step.refused)
            if plan is None:
                raise InvariantError(f"step {self.server.steps} of a span computes nothing")
            self._current = plan
            self._alarm.move(self.server.now_ps + plan[-1])

    def turn_away(self, row: int, reason: str) -> None:
        """Count an arrival that can never be served; during a plan, after that plan."""
        self.commit.turn_away(row, self._arrivals.now_ps, reason, self._current)

    def _tell_deciding(self) -> None:
        for observer in self.observers:
            observer.deciding()

    # -- death --------------------------------------------------------------------------------

    def die(self, at_ps: int) -> int:
        """The server is gone; what it did until then stays recorded. Returns the tokens that it held.

        One that was switched off earlier has nothing to lose.
        """
        self.catch_up()
        self.commit.turned_away.write_noted()
        if self.server.now_ps < at_ps:
            self._pass_until(at_ps)
        self.until_ps = at_ps
        self._alarm.end()
        self._current = None
        self.observers.clear()
        return self.server.tokens()[0] if self.server.batch.living() else 0

    def _pass_until(self, at_ps: int) -> None:
        """Count the step under way as far as it goes, without its tokens; or the rest."""
        server, tally, passed_ps = self.server, self.recorder.tally, at_ps - self.server.now_ps
        if self._current is not None:
            tally.add(([passed_ps], (0, *self._planner.start[1:]), None))
        else:
            tally.idle(passed_ps, *self._resting)
        server.now_ps = at_ps

    def beyond(self, until_ps: int) -> Integrals:
        """What was counted after that time, while it only stored what its requests had computed."""
        found = Integrals()
        for from_ps, to_ps, rest, kept in self._last:
            if to_ps > until_ps:
                found.add_idle(to_ps - max(from_ps, until_ps), rest, kept)
        return found

    def lost_tokens(self) -> dict[int, int]:
        """By row, the tokens in memory of each request, including those of the step under way."""
        lengths = self.server.lengths()
        found: dict[int, int] = {}
        for seq, request in self.server.batch.living().items():
            found[request.index] = found.get(request.index, 0) + lengths.get(seq, 0)
        return found

    def comes_late(self, row: int) -> None:
        """Record that a request is sent here later than it arrived."""
        if self.events is not None:
            self.events.sent(row, self.clock_ps, self.next_step)

    @property
    def next_step(self) -> int:
        """Number of the first step that starts now or later."""
        if self._current is None:
            return self.server.steps
        return self.server.steps + bisect_left(self._current, self.clock_ps - self.server.now_ps) + 1

    def follow(self, before: "Replica") -> None:
        """Replace a replica that died or is off: empty, and not serving yet."""
        self._arrivals, its = before._arrivals, before.server
        self.server.steps = its.steps
        self.server.now_ps = its.now_ps - before.beyond(before.until_ps).time_ps
        self.note_empty()

    def note_empty(self) -> None:
        """It holds nothing, and does not serve yet."""
        self.recorder.timeline.add(instant_of(self.server, 0))
        if self.memory_map is not None:
            self.memory_map.draw(self.server.now_ps, self.server.allocator, {}, {})

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
        found = self.recorder.result(server.totals, server.allocator, server.steps, totals, server.holds)
        if self._kinds is None:
            return found
        return replace(found, by_kind=self._kinds.counted(found.saturated, found.unsaturated))

    def upto(self, found: Result, end_ps: int) -> Result:
        """Its result, if the run ends then, or if its own end came before."""
        until_ps = min(end_ps, self.until_ps)
        beyond = self.beyond(until_ps)
        if beyond.time_ps:
            found = replace(found, unsaturated=found.unsaturated.less(beyond))
        return found if found.tier is None else replace(found, tier=found.tier.until(until_ps))
