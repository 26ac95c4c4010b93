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
    noted : list
        Who came during the plan, and is written down after it: (row, when, step, reason).
    """

    def __init__(self, recorder: Recorder, observers: list[Observer]) -> None:
        self.noted: list[tuple[int, int, int, str]] = []
        self._recorder, self._observers = recorder, observers

    def note(self, row: int, now_ps: int, reason: str, server: Server, plan: list[int]) -> None:
        """One came now; `plan` is when the steps end that are under way."""
        step = server.steps + bisect_left(plan, now_ps - server.now_ps) + 1
        self.noted.append((row, now_ps, step, reason))

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


def steps_behind(came_ps: int, ends: list[int], over_ps: int) -> int:
    """How many of the steps that were carried out last, up to `over_ps`, began after somebody had come.

    `ends` says when each ended, counted from when the first began.
    """
    if not ends:
        return 0
    into_ps = came_ps - over_ps + ends[-1]
    in_step = bisect_left(ends, into_ps) if into_ps > 0 else -1  # heard late: in the step before
    return max(len(ends) - in_step - 1, 0)
