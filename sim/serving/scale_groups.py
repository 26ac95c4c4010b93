"""Which replicas each policy scales: all of a fleet, those of a role, or those of one pool.

    threshold:queue=4                               all; with prefill and decode pools, each side by itself
    prefill=threshold:queue=2 decode=slo:tpot=0.05  each side by its own policy
    1=schedule:0=1,60=3                             pool 1 alone, the second; the others are always there

A policy without a name is for all replicas.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from kvsim.sim.errors import KvsimError
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.serving.scale_policy import ScalePolicy
from kvsim.sim.serving.scaling import policy_of

GOAL_OF_OTHER = {"prefill": "tpot", "decode": "ttft"}
"""The goal that a planner of this role alone does not look at."""


class Scaled(NamedTuple):
    """Replicas that one policy scales.

    Attributes
    ----------
    name : str
        `prefill`, `decode`, or the number of a pool; empty: all replicas of a fleet.
    """

    name: str
    policy: ScalePolicy
    places: tuple[int, ...]


def policies_by_name(text: str) -> dict[str, str]:
    """The policies of a text, separated by spaces; the name of one without a name is empty."""
    found: dict[str, str] = {}
    for each in re.split(r"(?<!,)\s+", text.strip()):
        head, colon, rest = each.partition(":")
        name, equals, kind = head.rpartition("=")
        if equals and not name:
            raise KvsimError(f"scale must name a pool in front of =, got {each!r}")
        if name in found or "" in found:
            raise KvsimError(
                "scale must have one policy for all replicas, or one per name (a sweep separates policies "
                f"by ;), got {text!r}"
            )
        found[name] = kind + colon + rest
    return found


def scaled_of(text: str, pools: Sequence[tuple[str, int]], log: RequestLog | None = None) -> list[Scaled]:
    """Who scales which replicas; KvsimError if two scale one, or for a name that no pool has.

    Parameters
    ----------
    pools : sequence of (str, int)
        Role and replicas of each pool; a single one if all servers are equal.
    log : RequestLog, optional
        Where policies find finished requests; omitted to only check the text.
    """
    numbers = [pool for pool, (_, count) in enumerate(pools) for _ in range(count)]
    roles = [pools[pool][0] for pool in numbers]
    sides = list(dict.fromkeys(roles))
    named = policies_by_name(text)
    if "" in named and len(sides) > 1:
        named = dict.fromkeys(sides, named[""])
    elif "" not in named:
        for name, policy in named.items():
            _check_name(name, policy, pools, sides)
    found: list[Scaled] = []
    for name, policy in named.items():
        places = tuple(
            place
            for place, (role, pool) in enumerate(zip(roles, numbers, strict=True))
            if name in ("", role, str(pool))
        )
        twice = {place for each in found for place in each.places} & {*places}
        if twice:
            raise KvsimError(f"scale must have one policy per replica, got two for replica {min(twice)}")
        replicas = "replica" if len(places) == 1 else "replicas"
        replicas = f"{replicas} of pool {name}" if name.isdigit() else f"{name} {replicas}".strip()
        role = roles[places[0]]
        found.append(Scaled(name, policy_of(policy, len(places), log, role, replicas), places))
    return found


def _check_name(name: str, policy: str, pools: Sequence[tuple[str, int]], sides: Sequence[str]) -> None:
    """Check that a role or a pool has this name, and that its policy has no goal of the other side."""
    numbers = {str(pool): role for pool, (role, _) in enumerate(pools)}
    role = name if name in sides else numbers.get(name)
    if role is None and len(pools) == 1:
        raise KvsimError(f"scale must not name a pool, as there is one, got {name!r}")
    if role is None:
        raise KvsimError(f"scale must name one of {', '.join([*sides, *numbers])}, got {name!r}")
    if policy == "none":
        raise KvsimError(f"scale: replicas without a policy do not scale; leave out '{name}=none'")
    other = GOAL_OF_OTHER.get(role)
    if other and policy.startswith("slo:") and re.search(rf"\b{other}\s*=", policy):
        raise KvsimError(f"scale: {other} must be left out for {role} replicas, got {policy!r}")
