"""Carries out what faults.py describes: replicas die, others stand in their place, requests are sent again.

    at     old replica: its last whole step is written down, then it is let go of
           new replica: empty, in the same place, asleep; routers pass over it
           its requests: sent again at once, in the order in which they came
    back   the new replica serves, and so are those who waited while nobody was alive

A replica in a place is thus a succession of lives, each with a server and a record of its own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.serving.arrivals import Arrivals
from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.faults import Fault, Lost
from kvsim.sim.serving.replica import Replica


class Run(Protocol):
    """What it needs of the engine."""

    arrivals: Arrivals
    log: RequestLog

    def later(self, at_ps: int, act: Callable[[], None]) -> None:
        """Let something happen at that time."""

    def serve(self, replica: Replica) -> None:
        """Let a replica begin to serve now."""

    def goes_on(self) -> bool:
        """Whether anybody is served, waits, or is still to come."""


class Deaths:
    """The faults of a run.

    Parameters
    ----------
    make : callable
        A new replica for a place.
    replicas : list of Replica
        Those that live, or are to live, by place: changed here.

    Attributes
    ----------
    lives : list of list of Replica
        By place, all that ever lived there.
    lost : Lost
        What was lost so far.
    """

    def __init__(
        self, faults: Sequence[Fault], make: Callable[[int], Replica], replicas: list[Replica]
    ) -> None:
        self._faults, self._make, self._replicas = faults, make, replicas
        self.lives = [[replica] for replica in replicas]
        self.lost = Lost()
        self._died: list[Fault] = []  # that came to pass
        self.watches: list[Callable[[Replica], None]] = []

    def begin(self, run: Run, dispatcher: Dispatcher) -> None:
        """Let the clock know of all of them."""
        self._run, self._dispatcher = run, dispatcher
        dispatcher.remember()
        for fault in self._faults:
            run.later(fault.at_ps, partial(self._die, fault))

    def _die(self, fault: Fault) -> None:
        """A replica is gone; another, which is empty, stands in its place."""
        if not self._run.goes_on():
            return
        place, log, lost = fault.replica, self._run.log, self.lost
        before, after = self._replicas[place], self._make(place)
        lost.kv_tokens += before.die()
        after.follow(before)
        for watch in self.watches:
            watch(after)
        self._replicas[place] = after
        self.lives[place].append(after)
        self._died.append(fault)
        returns = [each.back_ps for each in self._died if each.back_ps is not None]
        rows = self._dispatcher.shut(place, after, max(returns, default=0) > fault.at_ps)
        if fault.back_ps is not None:
            self._run.later(fault.back_ps, partial(self._come_back, fault))
        lost.deaths += 1
        lost.resent += len(rows)
        for row in rows:
            if log.output_tokens[row] < log.workload.output_tokens[row]:
                before.recorder.truncated -= 1  # it is cut again where it goes
            log.send_again(row)
        for row in rows:
            self._run.arrivals.again(row)

    def _come_back(self, fault: Fault) -> None:
        """A replica that died serves again."""
        if not self._run.goes_on():
            return
        place = fault.replica
        self._run.serve(self._replicas[place])
        self._dispatcher.open(place)
        self._run.arrivals.opened()

    def end(self, end_ps: int) -> None:
        """The last answer was given."""
        for fault in self._died:
            back_ps = end_ps if fault.back_ps is None else min(fault.back_ps, end_ps)
            self.lost.down_ps += max(back_ps - fault.at_ps, 0)
