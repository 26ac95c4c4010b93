"""Requests that can never be served. Each is recorded once, after the step in which it arrived.

A plan may be under way, or carried out ahead of the clock, when one arrives: the plan's ends tell the step.
"""

from bisect import bisect_left

from kvsim.sim.record.recorder import Recorder
from kvsim.sim.serving.observers import Observer


class TurnedAway:
    """The rejected requests of one replica.

    Attributes
    ----------
    noted : list
        Arrivals during the plan, recorded after it: (row, now_ps, step, reason).
    """

    def __init__(self, recorder: Recorder, observers: list[Observer]) -> None:
        self.noted: list[tuple[int, int, int, str]] = []
        self._recorder, self._observers = recorder, observers

    def write(self, row: int, now_ps: int, step: int, reason: str) -> None:
        """Record one."""
        self._recorder.reject(reason)
        self._recorder.log.rejected.add(row)
        for observer in self._observers:
            observer.rejected(row, now_ps, step, reason)

    def write_noted(self) -> None:
        """The plan is carried out: record what was noted."""
        for each in self.noted:
            self.write(*each)
        self.noted.clear()


def steps_behind(came_ps: int, ends: list[int], over_ps: int) -> int:
    """How many of the last steps, which ended by `over_ps`, began after a request had arrived.

    `ends` are the ends of these steps, counted from the start of the first.
    """
    if not ends:
        return 0
    into_ps = came_ps - over_ps + ends[-1]
    in_step = bisect_left(ends, into_ps) if into_ps > 0 else -1  # heard late: in the previous step
    return max(len(ends) - in_step - 1, 0)
