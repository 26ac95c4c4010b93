"""The colour of a system, chosen by the name of its allocator, else its scheduler, else its GPU.

    systems (allocator, scheduler, GPU) --> the part that distinguishes them --> a place for each
                                                                              (hue, shade)

Families share a hue, members differ in shade, dash and marker. The hues differ from those of the waste
ledger. Systems with the same three names get colours in order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvsim.reports.palette import SERIES

HUES = 8
DASHES: tuple[tuple[float, ...], ...] = (
    *((), (4, 1.4), (1, 1), (6, 1.4, 1, 1.4)),
    *((9, 2), (3, 1, 1, 1, 1, 1), (2, 2), (9, 2, 3, 2)),
)
"""Dashes and gaps of a line by shade, in line widths; (): solid."""
_OWN_SHADE = 7
"""A light shade that no family reaches."""
PARTS = ("allocator", "scheduler", "gpu")
"""The parts that may determine a system's colour: the first one in which systems differ."""

_ALLOCATORS = (
    ("paged", "sglang", "mlc", "tensorrt-llm", "tgi"),
    ("contiguous", "dynamic", "buddy"),
    ("radix", "lightllm", "llama-contiguous", "llama-scattered"),
    (
        *("vattention", "vattention-128k", "vattention-256k", "vattention-2m"),
        *("vattention-best", "vattention-eager", "kvcached"),
    ),
    ("tlsf", "offset", "offset-exact", "segregated", "slab"),
    ("dynamic-cache", "static-cache"),
    ("hybrid", "jenga", "jenga-packed", "split", "sglang-dual", "sglang-unified"),
    ("streaming-llm", "h2o", "kivi"),
)
"""Families in the order of the hues, members in the order of the shades."""
_SCHEDULERS = (
    ("vllm-v1", "vllm-v0", "nano-vllm"),
    ("orca", "static", "s3"),
    ("sglang",),
    ("lightllm", "past-future"),
    ("tensorrt-llm",),
    ("sarathi", "splitfuse"),
    ("vtc-artifact",),
)
_GPUS = (
    ("h100", "h100-pcie", "h100-nvl", "h200", "h20"),
    ("a100-80gb", "a100-40gb", "a10g", "a10"),
    ("l40s", "l4", "rtx-4090"),
    ("b200", "b300", "gb200", "rtx-pro-6000", "rtx-5090"),
    ("t4",),
    ("mi300x", "mi325x"),
)
"""By generation."""
FAMILIES = {"allocator": _ALLOCATORS, "scheduler": _SCHEDULERS, "gpu": _GPUS}


class Place(NamedTuple):
    """A hue and one of its shades."""

    hue: int
    shade: int


def places(systems: Sequence[Mapping[str, str]]) -> list[Place]:
    """A distinct place for each system; `systems`: their PARTS by name, as far as known."""
    part = next((each for each in PARTS if len({system.get(each) for system in systems}) > 1), None)
    if part is None and len(systems) > 1:
        return [Place(at % HUES, at // HUES) for at in range(len(systems))]
    found: list[Place] = []
    for system in systems:
        place = place_of(part or PARTS[0], system.get(part or PARTS[0], ""))
        while place in found:
            place = Place(place.hue, place.shade + 1)
        found.append(place)
    return found


def parts_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Allocator, scheduler and GPU of a run, as its config names them."""
    server = config.get("scenario") or {}
    engine, gpu = server.get("engine") or {}, server.get("gpu") or {}
    named = {part: engine.get(part) for part in PARTS}
    named["gpu"] = gpu.get("name") if isinstance(gpu, dict) else gpu
    return {part: str(name) for part, name in named.items() if name}


def summary_parts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Like `parts_of`, for a summary, which names no GPU."""
    return {part: str(summary["engine"][part]) for part in PARTS if part in summary["engine"]}


def place_of(part: str, name: str) -> Place:
    """The place of an allocator, scheduler or GPU; a user's own gets one derived from its name."""
    families = FAMILIES[part]
    plain = name.partition("@")[0].partition(":")[0]
    known = [each for family in families for each in family if plain == each or plain.startswith(f"{each}-")]
    if not known:
        return Place(sum(name.encode()) % HUES, _OWN_SHADE)
    longest = max(known, key=len)
    hue = next(at for at, family in enumerate(families) if longest in family)
    return Place(hue, families[hue].index(longest))


def colours_of(systems: Sequence[Mapping[str, str]]) -> list[str]:
    """The colours of systems on a white background."""
    return [shaded(SERIES[place.hue], place.shade, "#FFFFFF") for place in places(systems)]


def dashes_of(systems: Sequence[Mapping[str, str]]) -> list[tuple[float, ...]]:
    """The dash patterns of systems."""
    return [DASHES[place.shade % len(DASHES)] for place in places(systems)]


def shaded(colour: str, shade: int, sheet_colour: str) -> str:
    """The nth shade of a colour `#rrggbb`: itself, then alternately nearer the sheet and its opposite."""
    mixed, sheet = _MIXED[shade % len(_MIXED)]
    other = sheet_colour if sheet else "#000000" if int(sheet_colour[1:3], 16) > 127 else "#FFFFFF"
    pairs = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round((1 - mixed) * own + mixed * end):02X}" for own, end in pairs)


_MIXED = ((0.0, True), (0.4, False), (0.3, True), (0.65, False), (0.15, True))
"""By shade: how much of the background colour (True) or its opposite to mix in."""
