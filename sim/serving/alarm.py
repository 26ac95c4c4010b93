"""Lets a replica sleep on SimPy's clock: until a time, until a bell rings, or through a plan.

    at           nothing wakes it before that time
    until_rung   it wakes up when something happens, or at that time
    through      the plan may end early, at a boundary between two of its steps

What happens at one instant, in order:

    arrivals              SimPy's priority 1
    ends of steps         2, or more for later places in a fleet whose replicas act on each other
    follow-ups            requests sent at once when another is answered: after all ends
    decisions             of the next steps, where such requests may still come
"""

from bisect import bisect_left
from collections.abc import Generator

import simpy
from simpy.events import EventPriority

from kvsim.sim.serving.decision import NEVER_PS

AFTER_ARRIVALS, AFTER_ENDS, AFTER_ANSWERS = 2, 1 << 20, (1 << 20) + 1

Process = Generator[simpy.Event, None, None]


def happening(env: simpy.Environment, at_ps: int, priority: int) -> simpy.Event:
    """An event at that time, after those of the same instant with a lower priority."""
    event = simpy.Event(env)
    event._ok, event._value = True, None
    env.schedule(event, EventPriority(priority), at_ps - int(env.now))
    return event


class Alarm:
    """The alarm of one process, which yields its events.

    Attributes
    ----------
    plan : list of int, or None
        While it sleeps through a plan, the ends of its steps, counted from its start.
    stands : bool
        Whether the plan holds whatever happens: requests that arrive would only join the queue.
    """

    def __init__(self) -> None:
        self._set: simpy.Event | None = None  # for the latest time asked for
        self._bell: simpy.Event | None = None
        self.plan: list[int] | None = None
        self.stands, self._start_ps = False, 0

    def begin(self, env: simpy.Environment, process: Process, place: int) -> None:
        """Start the process. If several are due at one instant, the lowest `place` goes first."""
        self._env, self._place, self._priority = env, place, EventPriority(AFTER_ARRIVALS + place)
        env.process(process)

    def end(self) -> None:
        """The process will not wake again: release it."""
        for event in (self._set, self._bell):
            if event is not None and not event.processed:
                event.callbacks.clear()
        self._bell = self._set = self.plan = None

    @property
    def now_ps(self) -> int:
        """The time on the clock."""
        return int(self._env.now)

    def at(self, at_ps: int) -> simpy.Event:
        """An event at that time, after all arrivals."""
        self._set = alarm = happening(self._env, at_ps, self._priority)
        return alarm

    def decision(self, at_ps: int) -> simpy.Event:
        """An event at that time, after all steps that end then, and all requests that follow at once."""
        self._set = alarm = happening(self._env, at_ps, AFTER_ANSWERS + self._place)
        return alarm

    @property
    def anything_now(self) -> bool:
        """Whether anything else happens at this instant."""
        return bool(self._env.peek() <= self._env.now)

    def move(self, at_ps: int) -> None:
        """Let the process sleep until this time instead: its callbacks move to another alarm."""
        before = self._set
        if before is not None and before.callbacks:
            after = self.at(at_ps)
            before.callbacks, after.callbacks = after.callbacks, before.callbacks

    def until_rung(self, at_ps: int) -> Process:
        """Sleep until the bell rings, or until that time."""
        self._bell = self._env.event() if at_ps == NEVER_PS else self.at(at_ps)
        yield self._bell
        self._bell = None

    def through(self, start_ps: int, plan: list[int], stands: bool) -> int:
        """The end of a plan that starts at that time; the process sleeps until then."""
        self.plan, self.stands, self._start_ps = plan, stands, start_ps
        return start_ps + plan[-1]

    def over(self, now_too: bool = False) -> int:
        """How many steps of the plan have ended; `now_too`: also one that ends at this instant."""
        return 0 if self.plan is None else bisect_left(self.plan, self.now_ps - self._start_ps + now_too)

    def meet(self) -> None:
        """If a step of the plan ends at this instant, let the plan end with it."""
        if self.plan is not None:
            kept = self.over(now_too=True)
            if kept and kept < len(self.plan) and self._start_ps + self.plan[kept - 1] == self.now_ps:
                del self.plan[kept:]
                self.move(self.now_ps)

    def end_plan(self) -> list[int]:
        """The plan is over, or what is left of it."""
        plan, self.plan = self.plan, None
        assert plan is not None
        return plan

    def interrupt(self, later: bool) -> bool:
        """Something happens: ring the bell, or end the plan at the next boundary, or one boundary `later`.

        Returns whether the process waits for the bell.
        """
        if self._bell is not None:
            if self._bell.callbacks:  # the first to ring at this instant
                self._set = self._bell
                self.move(self.now_ps)
            return True
        if self.plan is not None and not self.stands:
            kept = self.over() + 1 + later
            if kept < len(self.plan):
                del self.plan[kept:]
                self.move(self._start_ps + self.plan[-1])
        return False
