"""Colours, names and number formats that all reports share.

The colours suit colour-blind readers; those of the ledger are Okabe and Ito's (2008). Kinds of waste also
differ in lightness, for grey print; tables without colour use glyphs.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]
"""The contents of `summary.json`."""

Shown = Callable[[float | None], str]
"""Formats a number, with its unit."""


@dataclass(frozen=True)
class Kind:
    """The look and the meaning of one kind of slot in the waste ledger."""

    meaning: str
    colour: str
    ink: str  # for text on top of the colour
    glyph: str  # for tables without colour
    hatch: str | None = None


KINDS: dict[str, Kind] = {
    "token": Kind("holds a key and value", "#0072B2", "white", "█"),
    "held": Kind("computed, waits to be read", "#9BC4F2", "black", "=", "\\\\\\\\"),
    "reserved": Kind("empty, will be written", "#F5D76E", "black", "▒"),
    "internal": Kind("empty, never written", "#E69F00", "black", "▚", "////"),
    "external": Kind("free, in pieces too small", "#A63C00", "white", "▓"),
    "cached": Kind("prefix that may be hit again", "#7CCBB0", "black", "+"),
    "idle": Kind("empty, kept by the allocator", "#B79AC8", "black", "o", ".."),
    "free": Kind("room for the next request", "#E8E8E8", "black", "·"),
}
"""In the order in which a bar stacks them: used, wasted, available."""

RARE = ("held", "idle")
"""Kinds that only some servers have: those that hand prompts over, or keep memory mapped."""

ALLOCATED = ("token", "held", "reserved", "internal")
"""The kinds of allocated slots."""

WASTE = ("reserved", "internal", "external")
"""The kinds that hold nothing and cannot be given to the next request."""

SERIES = ("#7A42F4", "#EA2C88", "#53924C", "#3FA3C3", "#848E14", "#750115", "#8A197E", "#3E63BE")
"""The hues of systems (colours.py); they suit colour-blind readers and differ from the ledger's."""

PLAIN = ("#003663", "#875A36", "#2D755A", "#B4A26C", "#7E87A2", "#C09898", "#003F3F", "#363612")
"""The hues of what is no system, such as latencies, clients or models: dull, unlike systems and ledger."""

ROLES: dict[str, int] = {
    "requests": 0,
    "requests_per_s": 0,
    "prompt": 0,
    "answer": 1,
    "simulated": 0,
    "measured": 1,
    "mean": 0,
    "p99": 1,
    "lru": 0,
    "largest free extent": 0,
    "break even": 0,
    "accepted": 1,
    "found in the GPU's memory": 2,
    "found in the tier": 3,
    "prefill": 2,
    "first decode step": 3,
    "wait for room to answer": 0,
    "wait to be read": 1,
    "link": 4,
    "read, not free yet": 5,
    "replicas": 2,
    "attained_share": 4,
}
"""What figures show beside systems -> the place of its colour in `PLAIN`."""

LEAST_SATURATED_SHARE = 0.02
"""Share of the simulated time; shorter saturated parts say little about an allocator."""


def shares(summary: Summary) -> tuple[dict[str, float], bool]:
    """Per cent of the KV memory by kind, and whether they are for the saturated part.

    The saturated part, when requests wait, shows what an allocator can do. If requests hardly waited, the
    mean over the run is used.
    """
    memory = summary["memory"]
    enough = (number(memory.get("saturated_share")) or 0.0) >= LEAST_SATURATED_SHARE
    saturated = memory.get("saturated") if enough else None
    chosen = saturated or memory["average"] or {}
    return {kind: number(chosen.get(kind)) or 0.0 for kind in KINDS}, bool(saturated)


def kinds_of(summaries: Iterable[Summary]) -> list[str]:
    """The kinds of the ledger in these runs; rare ones only if such slots may exist."""
    known = {kind for summary in summaries for kind in summary["memory"].get("average") or ()}
    return [kind for kind in KINDS if kind in known or kind not in RARE]


def meaning(kind: str, summaries: Iterable[Summary]) -> str:
    """What a kind of slot is in these runs: external memory may be free in a pool that other layers have."""
    lost = [summary for summary in summaries if whole_run(summary)["external"]]
    pools = {_has_pools(summary) for summary in lost}
    if kind != "external" or True not in pools:
        return KINDS[kind].meaning
    alone = len(pools) == 1
    return "free, in the pool of other layers" if alone else "free, in pieces too small or another pool"


def _has_pools(summary: Summary) -> bool:
    """Whether kinds of layer have pools of their own: only then something free is theirs."""
    groups = summary["memory"].get("groups") or {}
    return any("free" in (group.get("average") or {}) for group in groups.values())


def whole_run(summary: Summary) -> dict[str, float]:
    """Per cent of the KV memory by kind, averaged over the whole run."""
    average = summary["memory"].get("average") or {}
    return {kind: number(average.get(kind)) or 0.0 for kind in KINDS}


def while_waiting(summary: Summary) -> dict[str, float] | None:
    """Like `whole_run`, over the time when requests waited; None if they never did."""
    saturated = summary["memory"].get("saturated")
    return {kind: number(saturated.get(kind)) or 0.0 for kind in KINDS} if saturated else None


def shares_of_all(summaries: Sequence[Summary]) -> tuple[list[dict[str, float]], bool]:
    """Like `shares`, for several runs over the same part: the saturated one only if all have enough of it."""
    found = [shares(summary) for summary in summaries]
    if all(saturated for _, saturated in found):
        return [percent for percent, _ in found], True
    return [whole_run(summary) for summary in summaries], False


def shares_by_system(systems: Sequence[Sequence[Summary]]) -> tuple[list[list[dict[str, float]]], bool]:
    """Like `shares_of_all`, for the summaries of several systems."""
    found, saturated = shares_of_all([summary for seeds in systems for summary in seeds])
    left = iter(found)
    return [[next(left) for _ in seeds] for seeds in systems], saturated


def waste(percent: Mapping[str, float]) -> float:
    """Per cent of the memory that is reserved, internal or external waste."""
    return sum(percent[kind] for kind in WASTE)


def number(value: object) -> float | None:
    """The value as a float; None if it is missing, null, NaN or a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def figures(value: float | None) -> str:
    """Three significant figures, or all digits before the point: `0.0123`, `1.95`, `30.4`, `1,234`."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if abs(rounded) >= 10 ** (3 - decimals):  # 9.996 became 10.00
        decimals -= 1
    return f"{rounded:,.{max(decimals, 0)}f}" if abs(value) < 100 else f"{value:,.0f}"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return "-" if value is None else f"{value:,.0f}"


def everybody(names: Sequence[str]) -> str:
    """`paged and buddy both`, or `All 12`."""
    return f"{names[0]} and {names[1]} both" if len(names) == 2 else f"All {len(names):,}"


def every(count: int, what: str) -> str:
    """`both seeds`, `all 3 seeds`."""
    return f"both {what}s" if count == 2 else f"all {count:,} {what}s"


def together(names: Sequence[str]) -> str:
    """`paged`, `paged and buddy`, `paged, buddy and slab`; more than three: `paged and 3 others`."""
    first, *others = names
    if len(names) > 3:
        return f"{first} and {len(others):,} others"
    return f"{', '.join(names[:-1])} and {names[-1]}" if others else first


def percent_text(value: float | None) -> str:
    """Per cent with one decimal."""
    return "-" if value is None else f"{value:.1f} %"


def seconds(value: float | None) -> str:
    """A duration in the unit that reads best: `31.5 ms`, `2.10 s`."""
    if value is None:
        return "-"
    return f"{figures(value * 1e3)} ms" if 0 < value < 0.9995 else f"{figures(value)} s"
