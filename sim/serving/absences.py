"""For how long the replica in a place of a fleet was not there: dead, or switched off.

Means over time leave this time out. A replica that is dead may cost something nevertheless (scaler.py).
"""

from collections.abc import Sequence

Times = tuple[int, int]
"""From when to when, in ps."""


class Absences:
    """The times of one run.

    Parameters
    ----------
    times : sequence of sequence of Times
        By place, in any order; they may overlap.
    """

    def __init__(self, times: Sequence[Sequence[Times]]) -> None:
        self._times = [sorted(its) for its in times]

    def ps(self, place: int, until_ps: int) -> int:
        """For how long it was not there, up to a time."""
        found = over_ps = 0
        for from_ps, to_ps in self._times[place]:
            begin_ps, end_ps = max(from_ps, over_ps), min(to_ps, until_ps)
            found += max(end_ps - begin_ps, 0)
            over_ps = max(over_ps, to_ps)
        return found
