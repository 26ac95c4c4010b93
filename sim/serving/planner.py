"""Extends a decision to a span: as many equal steps as need no new decision, and when each of them ends.

    decided    |==|                      one step, by the scheduler
    planned    |==|==|==|==|==|          the steps that follow from it; none is carried out yet

A span ends at the next finish, before the first step whose memory is not guaranteed, when a row of the
timeline is due, when an observer wants to look, and at the first boundary at or after the next known arrival
or change of a policy's order. The state at its start (what waits, what is external) is noted now, because
more requests may arrive before the span is carried out.
"""

from kvsim.sim.record.limits import limit
from kvsim.sim.record.recorder import Recorder
from kvsim.sim.record.span import Rest, Start
from kvsim.sim.record.timeline import instant_of
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.input_queue import InputQueue
from kvsim.sim.serving.observers import Observer
from kvsim.sim.serving.pricing import Pricing
from kvsim.sim.serving.server import Server


class Planner:
    """Plans the spans of one replica.

    Parameters
    ----------
    observers : list of Observer
        The replica's own list, to which observers may be added later.
    inputs : InputQueue
        While it holds any request, a plan is one step.
    most_steps : int
        Longest span; 1 is step mode.

    Attributes
    ----------
    stands : bool
        Whether the last plan holds even if requests arrive: they would only join the queue.
    start : Start
        State at the start of the last plan.
    late : list of (int, int)
        (time of the last token, sequences) of those that decode in this step but got no token in the one
        before. They are counted when the step is over.
    """

    def __init__(  # noqa: PLR0917 - the parts of a replica
        self,
        server: Server,
        scheduler: Scheduler,
        pricing: Pricing,
        recorder: Recorder,
        observers: list[Observer],
        inputs: InputQueue,
        most_steps: int,
    ) -> None:
        self._server, self._scheduler, self._pricing = server, scheduler, pricing
        self._timeline, self._observers, self._inputs = recorder.timeline, observers, inputs
        self.most_steps = most_steps
        self.stands = False
        self.start: Start = (0, 0, 0, 0, 0, "", None)
        self.late: list[tuple[int, int]] = []
        self._in_turn = scheduler.in_turn
        self._rests = server.memory.abilities.rests or server.batch.shares or server.holds
        self._plain = pricing.plain and not scheduler.forks  # is a step's cost a function of its batch alone?

    def plan(self, step: Decision) -> list[int] | None:
        """When each step that the decision covers ends, counted from now; None if nothing is computed."""
        server = self._server
        held, contexts = server.tokens()
        if server.now_ps >= self._timeline.next_ps:
            self._timeline.add(instant_of(server, held))
        if self._observers:
            self._tell_decided(step)
        decodes, due, alone = step.decodes, False, step.changed
        if decodes and server.progress.late:
            self.late = server.progress.late_tokens(server.now_ps)
            if self.late:  # these tokens are counted individually
                alone, decodes = True, 0
        if self._pricing.beside:
            due = self._pricing.due()
            alone = alone or self._pricing.is_unlike(due)
            contexts = self._pricing.read(contexts)
        if alone:
            if not step.computes():
                return None
            ends = [self._pricing.step_ps(step, contexts, due)]
        elif decodes:
            ends = self._ends(step, contexts, due)
        else:
            return None
        allocator, internal = server.allocator, server.memory.internal
        rest: Rest | None = None
        if self._rests and (
            allocator.shared_tokens
            or allocator.cached_slots
            or allocator.idles
            or server.memory.abilities.external_slots
            or server.holds
        ):
            rest, internal = server.rest(), server.memory.internal_slots()
        used = allocator.used_slots
        if held + internal > used:
            instant_of(server, held)  # raises, with all numbers
        running = len(server.running) - server.seats.count
        held_by = limit(server, self._scheduler)
        self.start = decodes, running, held, used, internal, held_by, rest
        if self._observers:
            self._tell_planned(step, ends, held)
        return ends

    def _tell_decided(self, step: Decision) -> None:
        for observer in self._observers:
            observer.decided(step)

    def _tell_planned(self, step: Decision, ends: list[int], held: int) -> None:
        for observer in self._observers:
            observer.planned(step, ends, held)

    def _ends(self, step: Decision, contexts: int, due: bool) -> list[int]:
        """When each step that needs no new decision ends, counted from now; at least one.

        If `due`, the first step pays for the allocator's other work.
        """
        server, inputs = self._server, self._inputs
        at_most, limit_ps = self.most_steps, self._timeline.next_ps
        if self._observers:
            at_most = min(at_most, *[observer.most_steps for observer in self._observers])
        anybody = len(server.waiting) > 0
        stands, asks_by_cached, repeats = self._in_turn, False, 0
        if (valid := step.valid) is not None:
            limit_ps, repeats = min(limit_ps, valid.until_ps), valid.steps
            stands, asks_by_cached = stands or valid.stands, valid.asks_by_cached
        self.stands = stands = anybody and stands
        if not stands and inputs.coming.next_ps < limit_ps:
            limit_ps = inputs.coming.next_ps
        if inputs.requests:
            at_most = 1
        foreseen = repeats if repeats and repeats < at_most else at_most
        steps = server.batch.guaranteed_steps(foreseen, asks_by_cached, anybody or server.swapped > 0)
        limit_ps -= server.now_ps
        if limit_ps < 1:  # a request may have arrived unheard
            limit_ps = 1
        if self._plain:
            apart = server.progress.spread
            spread = None if apart is None else apart.at(server.progress.clock + 1)
            seats = step.decodes + server.seats.count
            return self._pricing.cost.span_ends(seats, contexts, steps, limit_ps, spread)
        ends = self._pricing.ends(step, steps, limit_ps, contexts, due)
        if repeats and len(ends) >= repeats:
            self._go_on(step, ends, contexts, at_most)
        return ends

    def _go_on(self, step: Decision, ends: list[int], contexts: int, at_most: int) -> None:
        """Extend a span by the steps that are foreseen after those the decision covers."""
        server, progress = self._server, self._server.progress
        until_ps = min(self._timeline.next_ps, self._inputs.coming.next_ps, step.until_ps)
        at_most = min(at_most, progress.next_finish - progress.clock)
        self._pricing.go_on(step, ends, contexts, until_ps - server.now_ps, at_most)
