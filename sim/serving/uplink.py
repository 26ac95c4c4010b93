"""A link that the replicas of a machine share behind their own, in one direction: a PCIe switch, host memory.

    own links at 50 GB/s, uplink 80 GB/s

    first     |======== 50 ========|
    second       |== 30 ==|== 50 ====|       what the first leaves, then its own link's rate
              0                     time

A copy gets what earlier ones leave of the rate, up to that of its own link, from when its own link has
begun with it. So its end is known when it is queued, and nothing that comes later changes it.
"""

from bisect import bisect_right

from kvsim.sim.workload import PS_PER_S


class Uplink:
    """One direction of it.

    Parameters
    ----------
    bytes_per_s : int
        Above 0.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self._from_ps, self._left = [0], [bytes_per_s]  # bytes per second that are left, from each time on

    def end_of(self, begin_ps: int, total_bytes: int, most_bytes_per_s: int, now_ps: int) -> int:
        """When a copy ends that is queued at `now_ps` and moves its first byte at `begin_ps`.

        Copies must be queued in order of time.
        """
        self._forget(now_ps)
        work, at_ps, place = total_bytes * PS_PER_S, begin_ps, self._split(begin_ps)
        while work > 0:
            rate = min(most_bytes_per_s, self._left[place])
            lasts = place + 1 == len(self._from_ps)
            if rate:
                ends_ps = at_ps - (-work // rate)
                if lasts or ends_ps <= self._from_ps[place + 1]:
                    self._split(ends_ps)
                    self._left[place] -= rate
                    return ends_ps
                self._left[place] -= rate
                work -= rate * (self._from_ps[place + 1] - at_ps)
            place += 1
            at_ps = self._from_ps[place]
        return at_ps

    def _split(self, at_ps: int) -> int:
        """Begin an interval at that time; returns its place."""
        place = bisect_right(self._from_ps, at_ps) - 1
        if self._from_ps[place] == at_ps:
            return place
        self._from_ps.insert(place + 1, at_ps)
        self._left.insert(place + 1, self._left[place])
        return place + 1

    def _forget(self, now_ps: int) -> None:
        """Forget what lies before now."""
        over = bisect_right(self._from_ps, now_ps) - 1
        del self._from_ps[:over], self._left[:over]
