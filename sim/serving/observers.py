"""Observers of a replica: checks, events, the memory map, the step log, a pace.

    deciding    the scheduler is about to decide
    decided     it has, and the server shows it; no time has passed
    planned     how long the step takes, and how many steps the decision covers
    passed      these steps are over, but not committed
    after       they are committed

They change nothing: with and without them a run gives the same integers. A replica keeps them in one list,
which is usually empty. Each may limit the length of spans (`most_steps`).
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from kvsim.sim.record.events import NO_ROOM, Events
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.recorder import Recorder
from kvsim.sim.record.step_row import end_of_step, start_of_step
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.decision import NO_PROMPTS, Decision
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server

NOBODY: Final[dict[int, Request]] = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """Sees what happens; subclasses act on what interests them."""

    def __init__(self) -> None:
        self.most_steps = 1 << 62

    def deciding(self) -> None:
        """A step is to be decided."""

    def decided(self, step: Decision) -> None:
        """A step is decided."""

    def planned(self, step: Decision, ends: list[int], held: int) -> None:
        """When this step and its equals end; `held` slots hold a token."""

    def passed(self, step: Decision, ends: list[int]) -> None:
        """These steps are over."""

    def after(self) -> None:
        """They are committed: tokens are counted, finished requests have left."""

    def idle(self) -> None:
        """There is nothing to do."""

    def end(self) -> None:
        """The run is over."""

    def prompt_done(self, request: Request) -> None:
        """A prompt, or a recomputation, is computed."""

    def finished(self, request: Request) -> None:
        """A request has its last token."""

    def rejected(self, row: int, now_ps: int, step: int, reason: str) -> None:
        """A request can never be served."""


class Checks(Observer):
    """Recounts the memory from scratch at every decision (slow; for tests)."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self.check = check

    def decided(self, step: Decision) -> None:
        self.check()

    def idle(self) -> None:
        self.check()


class Pace(Observer):
    """Calls `wait` with the time in ps before each decision, at most `most_steps` steps apart."""

    def __init__(self, server: Server, wait: Callable[[int], None], most_steps: int) -> None:
        super().__init__()
        self.most_steps = most_steps
        self._server, self._wait = server, wait

    def deciding(self) -> None:
        self._wait(self._server.now_ps)


class EventLog(Observer):
    """Records what becomes of each request; the server itself records admissions and preemptions."""

    def __init__(self, events: Events, server: Server, scheduler: Scheduler) -> None:
        super().__init__()
        self._events, self._server, self._scheduler = events, server, scheduler

    def decided(self, step: Decision) -> None:
        """Record why the head of the queue still waits."""
        server, events = self._server, self._events
        happened, events.changed = events.changed or step.changed, step.changed
        head = self._scheduler.head(server)
        if head is None:
            return
        refusal = step.refused.head if step.refused is not None else None
        if refusal is not None and refusal.request is head:
            reason, need = NO_ROOM, refusal.need_slots
        else:
            reason = self._scheduler.held_back(server)
            need = server.allocator.slots_needed(head.known_tokens, server.rules.bound(head))
        events.refused(head, server.now_ps, server.steps, reason, need, server.allocator, happened)

    def prompt_done(self, request: Request) -> None:
        self._events.decodes(request, self._server.now_ps, self._server.last_step)

    def finished(self, request: Request) -> None:
        self._events.finished(request, self._server.now_ps, self._server.last_step)

    def rejected(self, row: int, now_ps: int, step: int, reason: str) -> None:
        self._events.rejected(row, now_ps, step, reason)


class MapDrawer(Observer):
    """Draws the memory map when an instant is due; a span ends at the next one."""

    def __init__(self, memory_map: MemoryMap, server: Server) -> None:
        super().__init__()
        self._map, self._server = memory_map, server

    def decided(self, step: Decision) -> None:
        server = self._server
        if self._map.due:
            held = server.batch.loading if server.holds else NOBODY
            self._map.draw(server.now_ps, server.allocator, server.batch.living(), server.lengths(), held)
        self.most_steps = self._map.steps(server.progress.size * server.progress.most_added)

    def passed(self, step: Decision, ends: list[int]) -> None:
        decoded = 0 if step.paused else self._server.progress.added(len(ends))
        self._map.passed(decoded + (step.prompts or NO_PROMPTS).tokens)

    def end(self) -> None:
        """The last picture: the memory is empty."""
        self._map.draw(self._server.now_ps, self._server.allocator, NOBODY, {}, NOBODY)


class StepLog(Observer):
    """Writes a row per step, counting running and waiting requests as the engine does."""

    def __init__(self, recorder: Recorder, server: Server, scheduler: Scheduler) -> None:
        super().__init__()
        self.most_steps = 1
        self._recorder, self._server, self._scheduler = recorder, server, scheduler
        self._rows: list[tuple[int, ...]] = []
        recorder.steps = self._rows

    def planned(self, step: Decision, ends: list[int], held: int) -> None:
        server = self._server
        as_waiting = self._scheduler.counted_as_waiting(server)
        running = len(server.running) - as_waiting
        waiting = len(server.waiting) + server.wakes.loaded + as_waiting
        if step.refused is not None:
            waiting += len(step.refused.preempted_finished)
        self._row, self._waiting = start_of_step(server, step, held, ends[-1], running, waiting), waiting
        self._finished = self._recorder.finished_count

    def after(self) -> None:
        running = len(self._server.running) - self._scheduler.counted_as_waiting(self._server)
        finished = self._recorder.finished_count - self._finished
        running, blocks = end_of_step(self._server, running)
        self._rows.append((*self._row, finished, running, self._waiting, blocks))
