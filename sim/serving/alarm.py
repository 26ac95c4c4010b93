"""What lets a replica sleep on SimPy's clock: until a time, which may be moved, or until a bell rings.

At the same instant arrivals come first: they have SimPy's priority 1, an alarm has 2, and more in later
places of a fleet that shares a tier.
"""

from collections.abc import Generator

import simpy
from simpy.events import EventPriority

AFTER_ARRIVALS = 2


class Alarm:
    """Belongs to one process, which yields its events."""

    def __init__(self) -> None:
        self._set: simpy.Event | None = None  # for the time that was asked for last
        self._bell: simpy.Event | None = None  # rung by who comes to an idle server

    def begin(
        self, env: simpy.Environment, process: Generator[simpy.Event, None, None], place: int = 0
    ) -> None:
        """Start the process; of those that are due at one time, that in the first place goes first."""
        self._env, self._priority = env, EventPriority(AFTER_ARRIVALS + place)
        env.process(process)

    def end(self) -> None:
        """The process sleeps for ever: let go of it."""
        for event in (self._set, self._bell):
            if event is not None and not event.processed:
                event.callbacks.clear()
        self._bell = self._set = None

    @property
    def now_ps(self) -> int:
        """What the clock says."""
        return int(self._env.now)

    def at(self, at_ps: int) -> simpy.Event:
        """What happens at that time, after all arrivals."""
        env = self._env
        alarm = simpy.Event(env)
        alarm._ok, alarm._value = True, None
        env.schedule(alarm, self._priority, at_ps - int(env.now))
        self._set = alarm
        return alarm

    def move(self, at_ps: int) -> None:
        """Let the process sleep until this time instead: who waits for the one alarm waits for another."""
        before = self._set
        if before is not None and before.callbacks:
            after = self.at(at_ps)
            before.callbacks, after.callbacks = after.callbacks, before.callbacks

    @property
    def sleeps(self) -> bool:
        """Whether the process waits for somebody to ring."""
        return self._bell is not None

    def set_bell(self) -> simpy.Event:
        """What happens when somebody rings."""
        self._bell = self._env.event()
        return self._bell

    def ring(self) -> bool:
        """Whether the process sleeps until somebody rings, as is done now."""
        if self._bell is None:
            return False
        if not self._bell.triggered:
            self._bell._ok, self._bell._value = True, None
            self._env.schedule(self._bell, self._priority)
        return True

    def take_bell(self) -> None:
        """The process is awake."""
        self._bell = None
