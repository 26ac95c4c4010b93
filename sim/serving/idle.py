"""Passes time in which a replica computes nothing, and counts what its memory holds meanwhile.

wait      nobody is there: until a request comes
stall     a step computes nothing: it takes its time, or waits for a transfer
beyond    after its last answer a server may still store in tiers: this counts only while the run goes on
"""

from kvsim.allocators.base import InvariantError
from kvsim.sim.record.limits import limit
from kvsim.sim.record.recorder import Recorder
from kvsim.sim.record.span import Integrals, Kept, Rest
from kvsim.sim.record.timeline import instant_of
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.alarm import Alarm, Process
from kvsim.sim.serving.commit import Commit
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.input_queue import InputQueue
from kvsim.sim.serving.observers import Observer
from kvsim.sim.serving.pricing import Pricing
from kvsim.sim.serving.server import Server


class Idle:
    """The time without steps of one replica."""

    def __init__(  # noqa: PLR0917 - the parts of a replica
        self,
        server: Server,
        scheduler: Scheduler,
        pricing: Pricing,
        recorder: Recorder,
        observers: list[Observer],
        inputs: InputQueue,
        commit: Commit,
        alarm: Alarm,
    ) -> None:
        self._server, self._scheduler, self._pricing = server, scheduler, pricing
        self._recorder, self._observers = recorder, observers
        self._inputs, self._commit, self._alarm = inputs, commit, alarm
        self._held: tuple[str, Rest, Kept] = "", (0, 0, 0, 0, 0), (0, 0, 0, 0)  # since the last begin
        self._last: list[tuple[int, int, Rest, Kept]] = []  # from when to when it only stored, in the end

    def wait(self) -> Process:
        """Wait for an arrival."""
        server, inputs, kinds = self._server, self._inputs, self._recorder.kinds
        self._scheduler.rest(server)
        held_by, _, kept = self._begin()
        self._recorder.timeline.add(instant_of(server, kept[0]))
        for observer in self._observers:
            observer.idle()
        if kinds is not None:
            kinds.note(held_by == "")
        yield from self._alarm.until_rung(inputs.arrivals.next_ps if inputs.fetches else NEVER_PS)
        self._end(self._recorder.log.on_the_clock(self._alarm.now_ps, server.steps))
        server.wakes.before_ps = server.now_ps - 1  # an idle engine looks again and again
        self._pricing.rest()

    def stall(self) -> Process:
        """A step that computes nothing because its last request evicted itself or left.

        Asynchronous engines find out one decision later that there is room; the step still takes its time.
        """
        server, step = self._server, self._server.step
        late = server.rules.known_late and step.departures and server.waiting
        if server.wakes.beside and step.until_ps < NEVER_PS:
            yield from self._wait_for_transfers()
        elif step.preemptions or step.spent or late:
            until_ps = self._recorder.log.on_the_clock(server.now_ps + self._step_ps(), server.steps)
            self._begin()
            if until_ps >= self._inputs.ahead.next_ps:
                yield self._alarm.at(until_ps)
            self._note_last(until_ps)
            self._end(until_ps)
        elif step.departures:  # there is room now: decide again
            return
        elif server.batch.moving:  # what keeps the head out belongs to no running request
            yield from self.wait()
        elif step.no_room and not server.allocator.used_slots:  # evicted, now longer than on arrival
            server.drop_head(f"finds no room in an empty arena of {server.allocator.capacity_slots:,} slots")
            self._commit.write_facts(step.of_refusals())
        elif server.wakes.outside:
            yield from self.wait()
        elif server.waiting:  # else all have left
            raise InvariantError(
                f"step {server.steps}: nobody runs and request {server.waiting[0].index}, the head of "
                f"{len(server.waiting)} waiting, is refused"
            )

    def _wait_for_transfers(self) -> Process:
        """Nothing can be computed before a transfer ends or a request arrives; most wait a step at least."""
        server, inputs = self._server, self._inputs
        least = server.now_ps if server.wakes.polls else server.now_ps + self._step_ps()
        until_ps = max(least, min(server.step.until_ps, inputs.arrivals.next_ps))
        self._recorder.log.on_the_clock(until_ps, server.steps)
        self._begin()
        if until_ps >= inputs.ahead.next_ps:
            yield from self._alarm.until_rung(until_ps)
            until_ps = max(server.now_ps, self._alarm.now_ps)
        self._note_last(until_ps)
        self._end(until_ps)
        server.note_wait()
        if until_ps > least:
            server.wakes.before_ps = until_ps - 1

    def _step_ps(self) -> int:
        """How long the step takes that computes nothing."""
        return self._pricing.step_ps(self._server.step, 0, self._pricing.due())

    # -- what is counted ----------------------------------------------------------------------

    def _begin(self) -> tuple[str, Rest, Kept]:
        """From now on nothing is computed: note, and return, what holds the queue back and what is kept."""
        server, running, kept = self._server, len(self._server.running), (0, 0, 0, 0)
        if running or server.batch.parked():
            used, internal = server.allocator.used_slots, server.memory.internal_slots()
            kept = server.tokens()[0], used, internal, running
        self._held = held = limit(server, self._scheduler), server.rest(), kept
        return held

    def _end(self, until_ps: int) -> None:
        """Nothing was computed until then."""
        self.count(until_ps - self._server.now_ps)
        self._server.wait(until_ps)

    def count(self, duration_ps: int) -> None:
        """Count time in which nothing was computed."""
        self._recorder.tally.idle(duration_ps, *self._held)

    def _note_last(self, until_ps: int) -> None:
        """Nothing was computed until then; without requests, it only stored in tiers."""
        server, last, (_, rest, kept) = self._server, self._last, self._held
        if server.totals.tier is None or self._inputs.has_requests:
            return
        if last and last[0][0] < self._recorder.end_ps:
            last.clear()
        last.append((server.now_ps, until_ps, rest, kept))

    def beyond(self, until_ps: int) -> Integrals:
        """What was counted after that time, while it only stored what its requests had computed."""
        found = Integrals()
        for from_ps, to_ps, rest, kept in self._last:
            if to_ps > until_ps:
                found.add_idle(to_ps - max(from_ps, until_ps), rest, kept)
        return found
