"""The times at which replicas of a fleet were absent: dead (`--fail`), or switched off (`--scale`)."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from kvsim.reports.palette import KINDS
from kvsim.reports.rundir.formats import Columns
from kvsim.sim.record.summary import Summary


class Away(NamedTuple):
    """An interval during which a replica was absent; `to_s` is infinity if it never came back."""

    from_s: float
    to_s: float
    why: str


def away_in(summary: Summary, end_s: float) -> list[list[Away]]:
    """Each replica's absences up to `end_s`, for the fleet of this summary."""
    return [
        [each._replace(to_s=min(each.to_s, end_s)) for each in its if each.from_s < end_s]
        for its in away(summary)
    ]


def away(summary: Summary) -> list[list[Away]]:
    """Each replica's absences in order of time, for the fleet of this summary."""
    found: list[list[Away]] = [[] for _ in summary.get("replicas") or ()]
    for each in (summary.get("faults") or {}).get("times") or ():
        back_s = inf if each["back_s"] is None else each["back_s"]
        found[each["replica"]].append(Away(each["time_s"], back_s, "dead"))
    since: dict[int, float] = {}
    for change in (summary.get("scaling") or {}).get("changes") or ():
        place, at_s = change["replica"], change["time_s"]
        if change["state"] == "off":
            since.setdefault(place, at_s)
        elif place in since:
            found[place] += _apart_from(found[place], since.pop(place), at_s)
    for place, at_s in since.items():
        found[place] += _apart_from(found[place], at_s, inf)
    return [sorted(each) for each in found]


def without_absent(timeline: Columns, absences: Sequence[Sequence[Away]]) -> Columns:
    """A fleet's timeline in which a replica has no slots, not even free ones, while it is absent."""
    if not any(absences):
        return timeline
    time_s, replica = timeline["time_s"], timeline["replica"]
    kinds = [kind for kind in KINDS if kind in timeline]
    slots = np.sum([timeline[kind] for kind in kinds], axis=0)
    copied, at_s, free, gone = [], [], [], np.zeros(len(time_s), dtype=bool)
    for place, its in enumerate(absences):
        rows = np.flatnonzero(replica == place)
        for from_s, to_s, _ in its:
            gone[rows] |= (time_s[rows] >= from_s) & (time_s[rows] < to_s)
            for bound_s, room in ((from_s, 0), (to_s, slots[rows[0]])):
                latest = np.searchsorted(time_s[rows], bound_s, side="right") - 1
                if latest >= 0 and bound_s < time_s[-1]:
                    copied.append(rows[latest])
                    at_s.append(bound_s)
                    free.append(room)
    found = {name: np.concatenate([column[copied], column]) for name, column in timeline.items()}
    new = len(copied)
    found["time_s"][:new] = at_s
    for kind in kinds:
        found[kind][:new] = free if kind == "free" else 0
        found[kind][new:][gone] = 0
    return found


def _apart_from(dead: Sequence[Away], from_s: float, to_s: float) -> list[Away]:
    """The parts of an interval in which a replica was switched off that do not overlap its deaths."""
    found = []
    for each in sorted(dead):
        if each.to_s <= from_s or to_s <= each.from_s:
            continue
        if from_s < each.from_s:
            found.append(Away(from_s, each.from_s, "off"))
        from_s = max(from_s, each.to_s)
    return [*found, Away(from_s, to_s, "off")] if from_s < to_s else found
