"""The replica in each place of a fleet is a succession of lives, each with a server and a record of its own.

Replicas die (deaths.py), or are switched off and on (scaling.py): the next life in a place begins empty.
"""

from collections.abc import Callable
from typing import Protocol

from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.serving.arrivals import Arrivals
from kvsim.sim.serving.replica import Replica


class Run(Protocol):
    """What those who change a fleet need of the engine."""

    arrivals: Arrivals
    log: RequestLog

    def later(self, at_ps: int, act: Callable[[], None]) -> None:
        """Let something happen at that time."""

    def serve(self, replica: Replica) -> None:
        """Let a replica begin to serve now."""

    def goes_on(self) -> bool:
        """Whether anybody is served, waits, or is still to come."""


class Lives:
    """All replicas of a run.

    Parameters
    ----------
    replicas : list of Replica
        The present one of each place: changed here.
    make : callable, optional
        A new replica for a place, where any place may have several.

    Attributes
    ----------
    lives : list of list of Replica
        By place, all that ever lived there.
    watches : list of callable
        What is done to each new one.
    """

    def __init__(self, replicas: list[Replica], make: Callable[[int], Replica] | None = None) -> None:
        self.replicas, self._make = replicas, make
        self.lives = [[replica] for replica in replicas]
        self.watches: list[Callable[[Replica], None]] = []

    @property
    def every(self) -> list[Replica]:
        """All of them."""
        return [life for lives in self.lives for life in lives]

    def renew(self, place: int) -> tuple[Replica, int]:
        """An empty replica stands in this place, asleep; and how many tokens the one before it held."""
        assert self._make is not None
        before, after = self.replicas[place], self._make(place)
        held = before.die()
        after.follow(before)
        for watch in self.watches:
            watch(after)
        self.replicas[place] = after
        self.lives[place].append(after)
        return after, held
