"""Carries out a plan: the memory of its steps, their tokens, finished requests, and all records.

hear      cost, transfers, input queue and observers learn how the steps went
record    the span goes into the log, the timeline and the latencies
advance   the batch gets its tokens; finished requests leave
chunks    prompts that are computed to their end yield their first token
after     the scheduler and the allocator do what follows a step
"""

from collections.abc import Callable
from typing import Final

from kvsim.sim.record.recorder import Recorder
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.decision import Decision, Refused
from kvsim.sim.serving.input_queue import InputQueue
from kvsim.sim.serving.observers import Observer
from kvsim.sim.serving.planner import Planner
from kvsim.sim.serving.pricing import Pricing
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.turned_away import TurnedAway, steps_behind

LATE_PS: Final = 1 << 61
"""Close to the clock's limit: later times are checked against it."""


class Commit:
    """Carries out the plans of one replica.

    Attributes
    ----------
    turned_away : TurnedAway
        Requests that came and can never be served.
    """

    def __init__(  # noqa: PLR0917 - the parts of a replica
        self,
        server: Server,
        scheduler: Scheduler,
        pricing: Pricing,
        recorder: Recorder,
        observers: list[Observer],
        planner: Planner,
    ) -> None:
        self._server, self._scheduler, self._pricing = server, scheduler, pricing
        self._recorder, self._planner, self._observers = recorder, planner, observers
        self._tally = recorder.tally
        self.turned_away = TurnedAway(recorder, observers)
        self._passed: tuple[list[int], int] = ([], 0)  # the last steps, and when they ended
        self._hear_of: list[Callable[[list[int]], None]] = []
        self._after_steps: list[Callable[[], None]] = []
        self._kinds = recorder.kinds if server.memory.abilities.leaves_behind else None

    def begin(self, inputs: InputQueue) -> None:
        """The replica starts to serve: collect who hears of steps, and who acts after them."""
        server, pricing, scheduler, observers = self._server, self._pricing, self._scheduler, self._observers
        self._arrivals = inputs.arrivals
        if observers:
            self._hear_of.append(self._tell_passed)
        if pricing.hears:
            self._hear_of.append(pricing.carried_out)
        if server.wakes.beside:
            self._hear_of.append(self._look_within)
        if inputs.late:
            self._hear_of.append(inputs.carried_out)
        if not server.progress.linear:
            self._hear_of.append(self._count_unlike)
        if scheduler.ends_steps:
            self._after_steps.append(lambda: scheduler.end_step(server))
        if scheduler.forks:
            self._after_steps.append(lambda: scheduler.choose_beams(server))
        self._after_steps += [observer.after for observer in observers]
        if server.memory.abilities.after_steps:
            self._after_steps.append(pricing.after_step)

    def end(self) -> None:
        """No more requests arrive: drop what would keep a reference cycle alive."""
        self._after_steps, self._hear_of = [], []

    def carry_out(self, ends: list[int]) -> None:
        """The steps of a plan are over; `ends` are in ps after the server's time."""
        server, planner = self._server, self._planner
        step, progress, batch = server.step, server.progress, server.batch
        grown = batch.grow_within(ends) if len(ends) > 1 else None  # the allocator may strike some steps
        if grown is not None and self._kinds is not None:
            self._kinds.add_left(ends, grown)
        steps = len(ends)
        if self._hear_of:
            for hear in self._hear_of:
                hear(ends)
        self._tally.add((ends, planner.start, grown))
        server.now_ps = now_ps = server.now_ps + ends[-1]
        if now_ps > LATE_PS:
            self._recorder.log.on_the_clock(now_ps, server.steps)
        if planner.late:
            self._count_late(now_ps)
        server.steps += steps
        if step.decodes:
            progress.advance(steps, now_ps)
        elif step.paused:
            progress.pause()
        self._passed = ends, now_ps
        done = batch.finished(step) if progress.clock == progress.next_finish else []
        if step.prompts is not None:
            done = self._give_tokens(step, done)
        for request in done:
            self._finish(request)
        if self._after_steps or self.turned_away.noted:
            self._follow_up()

    def _follow_up(self) -> None:
        for act in self._after_steps:
            act()
        self.turned_away.write_noted()

    def _count_late(self, now_ps: int) -> None:
        """Count the tokens whose gap to the previous one is longer than their step."""
        for last_ps, count in self._planner.late:
            self._tally.late(now_ps - last_ps, count)
        self._planner.late = []

    def _look_within(self, ends: list[int]) -> None:
        """The engine looked for ended transfers before each step of a span."""
        if len(ends) > 1:
            self._server.wakes.before_ps = self._server.now_ps + ends[-2]

    def _count_unlike(self, ends: list[int]) -> None:
        """Count what differs in steps that add different numbers of tokens; those of a step come together."""
        progress, tally, steps = self._server.progress, self._tally, len(ends)
        if steps > 1:
            contexts = self._pricing.contexts
            if len(contexts) > steps:
                del contexts[steps:]
            added = contexts[-1] - progress.all_stored()
            tally.add_unlike(ends, self._planner.start, contexts)
        else:
            added = progress.added(1)
        if self._server.step.decodes:
            tally.together(added - progress.size * steps)

    def _give_tokens(self, step: Decision, done: list[Request]) -> list[Request]:
        """A request whose prompt is now computed gets a token, then decodes or is finished.

        Those `done` that were admitted before it finish first; returns the others.
        """
        server = self._server
        for request in step.chunks:
            if server.rules.publishes_late:
                server.memory.publish(request, step)
            if request.computed < request.known_tokens:
                continue
            while done and done[0].seq < request.seq:
                self._finish(done[0])
                done = done[1:]
            self.give_token(request)
        return done

    def give_token(self, request: Request) -> None:
        """A prompt is computed, here or elsewhere: its request has a token."""
        server = self._server
        for observer in self._observers:
            observer.prompt_done(request)
        last_ps = server.prompt_done(request)
        if last_ps is not None:
            self._tally.late(server.now_ps - last_ps, 1)
        else:
            self._tally.first_tokens += 1 if request.group is None else request.group.seats
        for done in self._scheduler.start_decode(server, request):
            self._finish(done)

    def _finish(self, request: Request) -> None:
        server, now_ps = self._server, self._server.now_ps
        request.move(State.FINISHED)
        for observer in self._observers:
            observer.finished(request)
        if self._recorder.finish(request, now_ps, server.last_step) and self._arrivals.wait_for_answers:
            self._arrivals.answered(request.index, now_ps)
        self._scheduler.finish(server, request)

    def _tell_passed(self, ends: list[int]) -> None:
        for observer in self._observers:
            observer.passed(self._server.step, ends)

    # -- requests that are not served ---------------------------------------------------------

    def turn_away(self, row: int, now_ps: int, reason: str) -> None:
        """Record a request that can never be served; no plan is under way."""
        step = self._server.steps - steps_behind(now_ps, *self._passed)
        self.turned_away.write(row, now_ps, step, reason)

    def write_facts(self, refused: Refused) -> None:
        """Record requests that the scheduler dropped, or preempted although they had finished."""
        server, log = self._server, self._recorder.log
        for row in refused.preempted_finished:
            log.preempted(row)
        for row, reason, preemptions in refused.rejected:
            log.preempted(row, preemptions)
            self.turned_away.write(row, server.now_ps, server.steps, reason)
            self._arrivals.answered(row, server.now_ps)
