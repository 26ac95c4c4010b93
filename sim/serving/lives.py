"""The replica in each place of a fleet is a succession of lives, each with its own server and record.

Replicas fail (deaths.py), or are switched off and on (scaling.py): the next life in a place begins empty.
"""

from collections.abc import Callable
from typing import Protocol

from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.serving.arrivals import Arrivals
from kvsim.sim.serving.replica import Replica


class Run(Protocol):
    """What code that changes a fleet needs from the engine."""

    arrivals: Arrivals
    log: RequestLog

    def later(self, at_ps: int, act: Callable[[], None]) -> None:
        """Schedule an action at that time."""

    def serve(self, replica: Replica) -> None:
        """Let a replica begin to serve now."""

    def goes_on(self) -> bool:
        """Whether any request is served, waits, or is still to come."""


class Lives:
    """All replicas of a run.

    Parameters
    ----------
    replicas : list of Replica
        The current replica of each place; changed here.
    make : callable, optional
        Makes a new replica for a place, if places may have several lives.

    Attributes
    ----------
    lives : list of list of Replica
        By place, all replicas that ever were there.
    watches : list of callable
        Called with each new replica.
    """

    def __init__(self, replicas: list[Replica], make: Callable[[int], Replica] | None = None) -> None:
        self.replicas, self._make = replicas, make
        self.lives = [[replica] for replica in replicas]
        self.watches: list[Callable[[Replica], None]] = []

    @property
    def every(self) -> list[Replica]:
        """All replicas, past and current."""
        return [life for lives in self.lives for life in lives]

    def renew(self, place: int, until_ps: int) -> tuple[Replica, int]:
        """Put an empty, sleeping replica in this place; returns it, and the tokens that the last one held.

        `until_ps`: when the last one died, or was switched off.
        """
        assert self._make is not None
        before, after = self.replicas[place], self._make(place)
        held = before.die(until_ps)
        after.follow(before)
        for watch in self.watches:
            watch(after)
        self.replicas[place] = after
        self.lives[place].append(after)
        return after, held
