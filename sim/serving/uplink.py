"""A link that the replicas of a machine share behind their own, in one direction: a PCIe switch, host memory.

    own links at 50 GB/s, uplink 80 GB/s

    first     |======== 50 ========|
    second       |== 30 ==|== 50 ====|       what the first leaves, then its own link's rate
              0                     time

A copy gets what earlier ones leave of the rate, up to that of its own link, from when its own link has
begun with it. So its end is known when it is queued, and nothing that comes later changes it.
"""

from bisect import bisect_right
from collections.abc import Mapping

from kvsim.sim.workload import PS_PER_S


class Uplink:
    """One direction of it.

    Parameters
    ----------
    bytes_per_s : int
        Above 0.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._from_ps, self._left = [0], [bytes_per_s]  # bytes per second that are left, from each time on
        self._moved = self._asked_ps = 0  # bytes x ps per second before the first of them; the last copy came

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

    def busy_by(self, end_ps: int) -> tuple[int, int]:
        """For how long all of it was in use until `end_ps`, or until the last copy came; and until when."""
        until_ps, moved = max(end_ps, self._asked_ps), self._moved
        for place, (from_ps, left) in enumerate(zip(self._from_ps, self._left, strict=True)):
            lasts = place + 1 == len(self._from_ps)
            to_ps = until_ps if lasts else min(until_ps, self._from_ps[place + 1])
            moved += (self.bytes_per_s - left) * max(0, to_ps - from_ps)
        return moved // self.bytes_per_s, until_ps

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
        over, self._asked_ps = bisect_right(self._from_ps, now_ps) - 1, now_ps
        for place in range(over):
            lasted_ps = self._from_ps[place + 1] - self._from_ps[place]
            self._moved += (self.bytes_per_s - self._left[place]) * lasted_ps
        del self._from_ps[:over], self._left[:over]


class Uplinks:
    """Both directions of it.

    Parameters
    ----------
    ways : dict of Uplink
        By whether it loads.
    replicas : int
        How many share it; 0: all.
    """

    def __init__(self, ways: Mapping[bool, Uplink], replicas: int) -> None:
        self.ways, self.replicas = ways, replicas

    def called(self, place: int) -> str:
        """What the replica in this place of a fleet calls it."""
        return f"uplink of {shared_by(self.replicas, place)}"

    def busy_by(self, loads: bool, end_ps: int) -> tuple[int, int]:
        """See `Uplink.busy_by`."""
        return self.ways[loads].busy_by(end_ps)


def shared_by(replicas: int, place: int) -> str:
    """Who shares what each `replicas` replicas share, 0: all; of these, those with the one in this place."""
    return f"machine {place // replicas}" if replicas else "all"
