"""The syntax of tiers: a name, a size, and in any order a link, a policy, and sharing.

    host:100GiB     ssd:2TiB:nvme:arc     ssd:2TiB:read=6.5GB/s:write=4GB/s     remote:20TiB:100gb:shared

`--tier` takes all tiers, from the host on; `--secondary-tiers` those below it. Link figures are in GB/s,
`6.5/4` if loads and stores differ. `shared` is one tier for the fleet, `shared=4` one for each 4 consecutive
replicas: those of a machine. Host memory belongs to one engine; `uplink=200:shared=4` is a link that engines
share.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.sim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.sim.schedulers.vllm_options import VllmV1Options

HOST: Final = "host"
ALL: Final = "all"
NONE: Final = "none"
"""No tier: the baseline of a sweep."""
OTHERS: Final = (
    "kv_offloading_size",
    "kv_offloading_policy",
    "kv_offloading_link",
    "secondary_tiers",
)
"""Options that `tier` replaces."""
NEED_SIZE: Final = ("kv_offloading_backend", "kv_offloading_policy", "lmcache_chunk_size", "secondary_tiers")
"""Options that need a tier; all but the last may be given with a size of 0, or `none`, as in a sweep."""
OF_TIERS: Final = ("tier", "kv_offloading_size", *NEED_SIZE)
"""Without any of these there is no tier, and no option that needs one."""
RATE: Final = re.compile(r"-?[0-9]*\.?[0-9]+(gb/s)?([/:]-?[0-9]*\.?[0-9]+(gb/s)?)?", re.IGNORECASE)
POSITIVE: Final = re.compile(r"(?=.*[1-9])[0-9]*\.?[0-9]+")
WAYS: Final = frozenset({"read", "write", "uplink"})
UNIT: Final = re.compile(r"(?<=[0-9])gb/s", re.IGNORECASE)
WAY: Final = re.compile(r"(read|write|uplink)=(.*)", re.IGNORECASE)
SHARED: Final = re.compile(r"shared(?:=(.*))?", re.IGNORECASE)
SPELLED: Final = "ssd:2TiB:nvme or ssd:2TiB:6.5/4:arc"


class TierWords(NamedTuple):
    """The description of a tier; `link`, `policy` and `uplink` are None if not given.

    `shared` is the number of replicas that share it (0: all); None for a tier of one replica.
    """

    name: str
    size: str
    link: str | None
    policy: str | None
    shared: int | None
    uplink: str | None = None


def tier_words(text: str, option: str, links: Collection[str]) -> TierWords:
    """Parse a tier's description; KvsimError if it is not one, or gives a part twice."""
    name, *parts = (part.strip() for part in text.split(":"))
    if not name or not parts or not parts[0]:
        raise KvsimError(f"{option} must be as in {SPELLED}, got {text!r}")
    size, *rest = parts
    found: dict[str, str] = {}
    while rest:
        kind, said = _kind(rest.pop(0), links)
        if kind == "policy" and "." in said and rest:
            said = f"{said}:{rest.pop(0)}"  # package.module:Class
        if kind in found:
            raise KvsimError(f"{option} must say one {kind} of a tier, got {text!r}")
        if not said or (kind in {"read", "write"} and not POSITIVE.fullmatch(said)):
            must = "be a rate in GB/s above 0" if kind in WAYS else "not be empty"
            raise KvsimError(f"{option}: {kind} must {must}, got {text!r}")
        found[kind] = said
    if "read" in found or "write" in found:
        if "link" in found:
            raise KvsimError(f"{option} must say one link of a tier, got {text!r}")
        read = found.get("read") or found["write"]
        found["link"] = f"{read}/{found.get('write') or read}"
    shared = _sharers(found["shared"], option, text) if "shared" in found else None
    return TierWords(name, size, found.get("link"), found.get("policy"), shared, found.get("uplink"))


def _sharers(said: str, option: str, text: str) -> int:
    """The number of replicas that share a tier (0: all)."""
    if said == ALL:
        return 0
    if not (said.isascii() and said.isdigit() and int(said) > 1):
        raise KvsimError(f"{option} must be shared by 2 replicas or more, as in shared=4, got {text!r}")
    return int(said)


def _kind(part: str, links: Collection[str]) -> tuple[str, str]:
    """The kind of a part (link, read, write, uplink, policy, shared), and its value."""
    way = WAY.fullmatch(part)
    if way:
        return way[1].lower(), UNIT.sub("", way[2])
    if part in links or RATE.fullmatch(part):
        return "link", UNIT.sub("", part)
    shared = SHARED.fullmatch(part)
    return ("policy", part) if shared is None else ("shared", ALL if shared[1] is None else shared[1])


def either(names: Sequence[str]) -> str:
    """`lru`, `lru or arc`, `lru, mru or lfu`."""
    return " or ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])


def in_flags(own: "VllmV1Options", links: Collection[str], policies: Sequence[str]) -> "VllmV1Options":
    """Express the options with `tier` (or `none`) in vLLM's flags; KvsimError if both are given.

    `policies`
    """
    if own.tier is None:
        return own
    for name in OTHERS:
        if getattr(own, name) != getattr(type(own)(), name):
            raise KvsimError(f"{name} must be left out with tier, got {getattr(own, name)!r}")
    if own.tier.strip() == NONE:
        return replace(own, tier=None)
    first, *below = own.tier.split()
    host = tier_words(first, "tier", links)
    if host.name != HOST:
        raise KvsimError(f"tier must begin with the host of each replica, as in host:100GiB, got {first!r}")
    if host.uplink is not None and host.shared is None:
        raise KvsimError(
            "tier: uplink must say how many replicas share it, as in host:100GiB:uplink=200:shared=8, "
            f"got {first!r}"
        )
    if host.uplink is None and host.shared is not None:
        raise KvsimError(
            "tier must leave each engine its own host memory; what the replicas of a machine share is a "
            "link, as in host:100GiB:uplink=200:shared=8, or a tier below, as in ssd:2TiB:nvme:shared=8, "
            f"got {first!r}"
        )
    if host.policy not in (None, *policies):
        by = f"{either(policies)} with kv_offloading_backend {own.kv_offloading_backend}"
        raise KvsimError(f"tier must evict from the host by {by}, got {first!r}")
    for text in below:
        if tier_words(text, "tier", links).uplink is not None:
            raise KvsimError(f"tier must have an uplink at the host only, got {text!r}")
        if tier_words(text, "tier", links).link is None:
            raise KvsimError(
                f"tier must say the link of what is below the host, as in {SPELLED}, got {text!r}"
            )
    return replace(
        own,
        tier=None,
        kv_offloading_size=host.size,
        kv_offloading_policy=host.policy or own.kv_offloading_policy,
        kv_offloading_link=(host.link or own.kv_offloading_link).replace("/", ":"),
        secondary_tiers="+".join(below) or None,
    )
