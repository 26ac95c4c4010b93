"""The times at which replicas of a fleet were absent: dead (`--fail`), or switched off (`--scale`)."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

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
