"""How busy the links of tiers were, apart from the GPUs' own: those of lower tiers, and shared ones.

ssd                    the mean over replicas while they are there, if each has its own
ssd of machine 1       shared by the replicas of a machine
remote of all          shared by the fleet
uplink of machine 0    the share of its rate that was in use
"""

from collections.abc import Sequence

from kvsim.sim.serving.absences import Absences
from kvsim.sim.serving.replica import Replica

WAYS = {"load_busy_share": True, "store_busy_share": False}
"""Name of a share -> whether it is of loads."""


def link_shares(
    lives: Sequence[Sequence[Replica]], absences: Absences, end_ps: int
) -> dict[str, dict[str, float | None]]:
    """For each link, the share of time that it was busy in each direction.

    Parameters
    ----------
    lives : sequence of sequence of Replica
        By place, all replicas that were ever there.
    absences : Absences
        When they were not.
    end_ps : int
        When the run ended.
    """
    seen: set[int] = set()
    used: dict[str, list[tuple[int, dict[str, tuple[int, int]]]]] = {}  # the place, and each way's times
    for place, its in enumerate(lives):
        for life in its:
            for link in life.server.memory.below.links:
                if id(link) not in seen:
                    seen.add(id(link))
                    name, goes_on = link.called(place), life is its[-1]
                    until_ps = end_ps if goes_on or _is_shared(name) else life.recorder.end_ps
                    times = {way: link.busy_by(loads, until_ps) for way, loads in WAYS.items()}
                    used.setdefault(name, []).append((place, times))
    kinds = [name.partition(" of ")[0] for name in used]
    names = sorted(used, key=lambda name: kinds.index(name.partition(" of ")[0]))
    return {name: {way: _share(name, used[name], absences, way) for way in WAYS} for name in names}


def _is_shared(name: str) -> bool:
    return " of " in name


def _share(
    name: str, found: Sequence[tuple[int, dict[str, tuple[int, int]]]], absences: Absences, way: str
) -> float | None:
    """The mean share over the places, while a replica is there; what is shared is always there."""
    places, lasted_ps = {place for place, _ in found}, max(times[way][1] for _, times in found)
    there_ps = lasted_ps * len(places)
    if not _is_shared(name):
        there_ps -= sum(absences.ps(place, lasted_ps) for place in places)
    return sum(times[way][0] for _, times in found) / there_ps if there_ps else None
