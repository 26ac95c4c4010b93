"""What each tier of a stack holds over time: the timeline columns, by name.

tier_held_bytes                  the host's memory, or the only tier
tier_ssd_held_bytes              a lower tier of one replica
tier_remote_of_all_held_bytes    a tier that the whole fleet shares; all replicas have the same values
tier_ssd_of_4_held_bytes         a tier shared by each 4 replicas, in order: those of one machine
"""

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from kvsim.reports.rundir.formats import Columns

HELD: Final = "tier_held_bytes"
LOWER: Final = re.compile(r"tier_(?P<name>.+?)(_of_(?P<replicas>all|[1-9]\d*))?_held_bytes")

Numbers = npt.NDArray[np.int64]


def held_by(timeline: Columns) -> dict[str, str]:
    """Tier name for readers -> its column, from the top."""
    found = {"host": HELD} if HELD in timeline else {}
    for column in timeline:
        if match := LOWER.fullmatch(column):
            name = match["name"] if match["replicas"] is None else f"{match['name']}, shared"
            found[name] = column
    return found


def owners(column: str, replica: Numbers, values: Numbers) -> Numbers:
    """The owner of each row's value: a replica, a tier that several share, or -1: none.

    Replicas without such a tier have zeros in its column.
    """
    match = LOWER.fullmatch(column)
    if match is None or match["replicas"] is None:
        return replica
    owner = np.zeros_like(replica) if match["replicas"] == "all" else replica // int(match["replicas"])
    has = np.zeros(int(replica.max(initial=0)) + 1, bool)
    has[replica[values > 0]] = True
    return np.where(has[replica], owner, -1)


def is_told_by(column: str, place: int | None) -> bool:
    """Whether a replica reports a column; the first replica reports shared ones."""
    match = LOWER.fullmatch(column)
    if place is None or match is None or match["replicas"] is None:
        return True
    return place == 0 if match["replicas"] == "all" else place % int(match["replicas"]) == 0
