"""Requests that come and can never be served: each is written down once, after the step in which it came.

A plan may be under way, or carried out ahead of the clock, when they come: the step is found from its ends.
"""

from bisect import bisect_left

from kvsim.sim.record.recorder import Recorder
from kvsim.sim.serving.observers import Observer
from kvsim.sim.serving.server import Server


class TurnedAway:
    """Those of one replica.

    Attributes
    ----------
    ends, began_ps : list of int, int
        When the steps ended that were carried out last, counted from the first one's start; when that was.
    noted : list
        Who came during the plan, and is written down after it: (row, when, step, reason).
    """

    def __init__(self, recorder: Recorder, observers: list[Observer]) -> None:
        self.ends: list[int] = []
        self.began_ps = 0
        self.noted: list[tuple[int, int, int, str]] = []
        self._recorder, self._observers = recorder, observers

    def note(self, row: int, now_ps: int, reason: str, server: Server, plan: list[int] | None) -> None:
        """One came now; `plan` is when the steps end that are under way."""
        if plan is not None:
            step = server.steps + bisect_left(plan, now_ps - server.now_ps) + 1
            self.noted.append((row, now_ps, step, reason))
            return
        came_ps = now_ps - self.began_ps
        in_step = bisect_left(self.ends, came_ps) if came_ps > 0 else -1  # heard late: in the step before
        self.write(row, now_ps, server.steps - max(len(self.ends) - in_step - 1, 0), reason)

    def write(self, row: int, now_ps: int, step: int, reason: str) -> None:
        """Write one down."""
        self._recorder.reject(reason)
        self._recorder.log.rejected.add(row)
        for observer in self._observers:
            observer.rejected(row, now_ps, step, reason)

    def write_noted(self) -> None:
        """The plan is carried out."""
        for each in self.noted:
            self.write(*each)
        self.noted.clear()
