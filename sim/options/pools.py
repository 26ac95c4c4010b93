"""Pools of a fleet as users describe them: servers with a role and their own settings.

    both:2:gpu=h100,tp=2 both:4:gpu=l40s    -->    a Deployment of two pools, six replicas

A pool is ROLE:REPLICAS or ROLE:REPLICAS:SETTING=VALUE,... with option names; settings left out are those of
the whole run. A single pool makes a fleet of equal servers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kvsim.sim.deployment.deployment import ROLES, Deployment, Pool, check_roles
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.option import Named, options_of
from kvsim.sim.parts import KINDS, known_options

WAYS = {"tp": "tensor_parallel_size", "dp": "data_parallel_size", "pp": "pipeline_parallel_size"}
"""Short names of settings."""
OF_FLEET = (
    "model",
    "replicas",
    "pool",
    "router",
    "sticky",
    "fail",
    "scale",
    "migrate",
    "startup_time",
    "load_bandwidth",
    "direct_decode",
    "mixed_pool",
    "frontend_latency",
    "frontend_load",
)
"""Options that cannot differ between pools."""
_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


class Wanted(NamedTuple):
    """A pool as the user describes it: settings are texts, by option name."""

    text: str
    role: str
    replicas: int
    settings: Mapping[str, str]


def pools_of(text: str) -> list[Wanted]:
    """Parse pools, separated by spaces; KvsimError for anything else."""
    found = [_pool(each) for each in text.split()]
    if not found:
        raise KvsimError("pool must be ROLE:REPLICAS:SETTING=VALUE,..., got nothing")
    return found


def _pool(text: str) -> Wanted:
    role, _, rest = text.partition(":")
    count, _, settings = rest.partition(":")
    if role not in ROLES or not (count.isascii() and count.isdecimal() and int(count)):
        raise KvsimError(
            f"pool must be ROLE:REPLICAS:SETTING=VALUE,... with a role of {', '.join(ROLES)}, got {text!r}"
        )
    found: dict[str, str] = {}
    for each in settings.split(",") if settings else ():
        name, equals, value = each.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        name = WAYS.get(name, name)
        if not equals or not value:
            raise KvsimError(f"pool {text} must have settings as SETTING=VALUE, got {each!r}")
        if name in OF_FLEET:
            raise KvsimError(f"{name} must be left out of pool {text}: it is that of the whole fleet")
        if name in found:
            raise KvsimError(f"pool {text} must have {name} once")
        found[name] = value
    return Wanted(text, role, int(count), found)


def typed(wanted: Wanted, described: type, chosen: Mapping[str, object]) -> dict[str, object]:
    """The settings of a pool, each converted to its option's type.

    Parameters
    ----------
    described : type
        Dataclass whose fields are the common options.
    chosen : mapping
        Kind of part -> the part of the whole run, whose options may also be set.
    """
    known = {each.name: each for each in options_of(described)}
    if wanted.settings.keys() - known:
        parts = [(kind, wanted.settings.get(kind, name)) for kind, name in chosen.items()]
        known = {**known_options(parts), **known}
    for name in wanted.settings:
        if name not in known:
            raise unknown("option", name, list(known))
    return {name: _value(known[name], value) for name, value in wanted.settings.items()}


def fleet_of(wanted: Sequence[Wanted], servers: Sequence[Deployment], whole: Mapping[str, Any]) -> Deployment:
    """The fleet of these pools with their servers; `whole`: settings of the whole fleet."""
    check_roles([each.role for each in wanted])
    fleet = replace(servers[0].fleet, replicas=sum(each.replicas for each in wanted), **whole)
    pools = tuple(
        Pool(name, each.role, each.replicas, server)
        for name, each, server in zip(_names(wanted, servers), wanted, servers, strict=True)
    )
    return replace(servers[0], fleet=fleet, pools=pools if len(pools) > 1 else ())


def _value(named: Named, text: str) -> object:
    """A setting, converted to the option's type."""
    try:
        found: object = _WORDS[text.lower()] if named.type is bool else named.type(text)
    except (KeyError, ValueError):
        kind = {bool: "on or off", int: "a whole number", float: "a number"}[named.type]
        raise KvsimError(f"{named.name} of a pool must be {kind}, got {text!r}") from None
    return found


def _names(wanted: Sequence[Wanted], servers: Sequence[Deployment]) -> Iterator[str]:
    """The name of each pool: its GPUs and other settings, plus role or place if two are equal."""
    names = [" ".join(_words(*each)) for each in zip(wanted, servers, strict=True)]
    for place, (name, each) in enumerate(zip(names, wanted, strict=True)):
        roles = [other.role for its, other in zip(names, wanted, strict=True) if its == name]
        if len(roles) == 1:
            yield name
        else:
            yield f"{name} {each.role}" if roles.count(each.role) == 1 else f"{name} pool {place}"


def _words(wanted: Wanted, server: Deployment) -> Iterator[str]:
    yield server.gpu.name
    for short, name in WAYS.items():
        if getattr(server, name) > 1:
            yield f"{short}{getattr(server, name)}"
    for name, value in wanted.settings.items():
        if name not in ("gpu", *WAYS.values()):
            yield value if name in KINDS else f"{name}={value}"
