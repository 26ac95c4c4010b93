"""Servers that fail and come back: when, and what happens to their requests.

    --fail replica=2:at=100:for=60

At that time the server is gone, with its KV memory, its queue and the step in progress. Its requests are sent
again immediately, from their first token on; routers skip it. It comes back empty, or never. While no server
is alive, requests wait at the router; if none will come back, they are rejected.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S


@dataclass(frozen=True)
class Fault:
    """One failure of one replica.

    Attributes
    ----------
    replica : int
        Its place in the fleet.
    at_ps : int
        When it dies.
    back_ps : int or None
        When it serves again; None: never.
    """

    replica: int
    at_ps: int
    back_ps: int | None


@dataclass
class Lost:
    """What faults cost.

    Attributes
    ----------
    deaths : int
        Failures of replicas.
    resent : int
        Requests that were sent again, counted each time.
    kv_tokens : int
        Tokens whose keys and values were lost, including those of the step in progress.
    down_ps : int
        Downtime of all replicas together, up to the last answer.
    """

    deaths: int = 0
    resent: int = 0
    kv_tokens: int = 0
    down_ps: int = 0


NEVER_ALIVE = "no replica is alive, and none comes back"


def faults_of(text: str, replicas: int) -> list[Fault]:
    """Parse the faults of a text, separated by spaces, in order of time; KvsimError for impossible ones."""
    found = sorted((_fault(each, replicas) for each in text.split()), key=lambda fault: fault.at_ps)
    for place in {fault.replica for fault in found}:
        its = [fault for fault in found if fault.replica == place]
        for before, after in pairwise(its):
            if before.back_ps is None or after.at_ps <= before.back_ps:
                raise KvsimError(
                    f"fail: replica {place} cannot die at {after.at_ps / PS_PER_S:g} s, as it is dead then"
                )
    return found


def _fault(text: str, replicas: int) -> Fault:
    parts = dict(each.partition("=")[::2] for each in text.split(":"))
    try:
        place, at_s = int(parts.pop("replica")), float(parts.pop("at"))
        for_s = float(parts.pop("for")) if "for" in parts else None
        possible = not parts and isfinite(at_s) and at_s >= 0 and (for_s is None or 0 < for_s < 1e9)
    except (KeyError, ValueError):
        possible = False
    if not possible:
        raise KvsimError(
            f"fail must be replica=N:at=SECONDS or replica=N:at=SECONDS:for=SECONDS, got {text!r}"
        )
    if not 0 <= place < replicas:
        raise KvsimError(f"fail: replica must be one of 0 to {replicas - 1}, got {place}")
    at_ps = round(at_s * PS_PER_S)
    return Fault(place, at_ps, None if for_s is None else at_ps + round(for_s * PS_PER_S))
