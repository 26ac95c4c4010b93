"""Lets a replica sleep on SimPy's clock: until a time, which may be moved, or until a bell rings.

At the same instant arrivals come first: they have SimPy's priority 1, an alarm has 2, or more for later
places in a fleet that shares a tier or a link.
"""

from collections.abc import Generator

import simpy
from simpy.events import EventPriority

AFTER_ARRIVALS = 2


class Alarm:
    """The alarm of one process, which yields its events."""

    def __init__(self) -> None:
        self._set: simpy.Event | None = None  # for the latest time asked for
        self._bell: simpy.Event | None = None  # rung by arrivals at an idle server

    def begin(
        self, env: simpy.Environment, process: Generator[simpy.Event, None, None], place: int = 0
    ) -> None:
        """Start the process. If several are due at one instant, the lowest `place` goes first."""
        self._env, self._priority = env, EventPriority(AFTER_ARRIVALS + place)
        env.process(process)

    def end(self) -> None:
        """The process will not wake again: release it."""
        for event in (self._set, self._bell):
            if event is not None and not event.processed:
                event.callbacks.clear()
        self._bell = self._set = None

    @property
    def now_ps(self) -> int:
        """The time on the clock."""
        return int(self._env.now)

    def at(self, at_ps: int) -> simpy.Event:
        """An event at that time, after all arrivals."""
        env = self._env
        alarm = simpy.Event(env)
        alarm._ok, alarm._value = True, None
        env.schedule(alarm, self._priority, at_ps - int(env.now))
        self._set = alarm
        return alarm

    def move(self, at_ps: int) -> None:
        """Let the process sleep until this time instead: its callbacks move to another alarm."""
        before = self._set
        if before is not None and before.callbacks:
            after = self.at(at_ps)
            before.callbacks, after.callbacks = after.callbacks, before.callbacks

    @property
    def sleeps(self) -> bool:
        """Whether the process waits for the bell."""
        return self._bell is not None

    def set_bell(self) -> simpy.Event:
        """An event for when the bell rings."""
        self._bell = self._env.event()
        return self._bell

    def ring(self) -> bool:
        """Ring the bell; False if the process does not wait for it."""
        if self._bell is None:
            return False
        if not self._bell.triggered:
            self._bell._ok, self._bell._value = True, None
            self._env.schedule(self._bell, self._priority)
        return True

    def take_bell(self) -> None:
        """The process is awake."""
        self._bell = None
