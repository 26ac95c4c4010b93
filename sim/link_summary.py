"""How busy the links of tiers were, apart from the GPUs' own: those of lower tiers, and shared ones.

ssd                    the mean over replicas, if each has its own
ssd of machine 1       shared by the replicas of a machine
remote of all          shared by the fleet
uplink of machine 0    the share of its rate that was in use
"""

from collections.abc import Sequence

from kvsim.sim.serving.replica import Replica

WAYS = {"load_busy_share": True, "store_busy_share": False}
"""Name of a share -> whether it is of loads."""


def link_shares(lives: Sequence[Sequence[Replica]], end_ps: int) -> dict[str, dict[str, float | None]]:
    """For each link, the share of time that it was busy in each direction.

    Parameters
    ----------
    lives : sequence of sequence of Replica
        By place, all replicas that were ever there.
    end_ps : int
        When the run ended.
    """
    seen: set[int] = set()
    used: dict[str, list[tuple[int, dict[str, tuple[int, int]]]]] = {}  # the place, and each way's times
    for place, its in enumerate(lives):
        for life in its:
            until_ps = end_ps if life is its[-1] else life.recorder.end_ps
            for link in life.server.memory.links:
                if id(link) not in seen:
                    seen.add(id(link))
                    times = {name: link.busy_by(loads, until_ps) for name, loads in WAYS.items()}
                    used.setdefault(link.called(place), []).append((place, times))
    kinds = [name.partition(" of ")[0] for name in used]
    names = sorted(used, key=lambda name: kinds.index(name.partition(" of ")[0]))
    return {name: {way: _share(used[name], way) for way in WAYS} for name in names}


def _share(found: Sequence[tuple[int, dict[str, tuple[int, int]]]], way: str) -> float | None:
    """The mean share over the places."""
    places, lasted_ps = {place for place, _ in found}, max(times[way][1] for _, times in found)
    return sum(times[way][0] for _, times in found) / (lasted_ps * len(places)) if lasted_ps else None
