"""Would a tier pay? The sizes of a tier that a sweep compares, smallest first, and what they gain.

    none, 16, 64, 256 GiB  ->  "64 GiB below the GPU's memory: the median TTFT is 4 s, 10 s without a tier"

The size is vLLM's or LMCache's, that of the host in a stack of `--tier`, or HiCache's: in GB on each GPU, or
as a ratio of the GPU's own.
"""

from collections.abc import Sequence

from kvsim.reports.palette import seconds
from kvsim.reports.sweeps.systems import TIER, System, name_of
from kvsim.sim.models.sizes import size_bytes

STACK = "tier"
SIZES = (TIER, STACK, "hicache_size", "hicache_ratio")
"""Settings that say how large a tier is."""
GAIN = 0.1
"""Less of the time to the first token is not told as a gain."""

Points = list[tuple[str, System]]
"""(size in words, system), the smallest first."""


def curves(systems: Sequence[System]) -> dict[str, Points]:
    """By what else sets systems apart: those of unlike sizes; nothing unless sizes are compared."""
    setting = next((name for name in SIZES if all(name in system.settings for system in systems)), None)
    if setting is None:
        return {}
    found: dict[str, list[tuple[float, str, System]]] = {}
    for system in systems:
        others = {name: value for name, value in system.settings.items() if name != setting}
        found.setdefault(name_of(others), []).append((*_size(setting, system.settings[setting]), system))
    by_size = {name: sorted(sized, key=lambda each: each[0]) for name, sized in found.items()}
    several = {name: [(said, system) for _, said, system in sized] for name, sized in by_size.items()}
    return several if max(map(len, several.values()), default=0) > 1 else {}


def _size(setting: str, asked: object) -> tuple[float, str]:
    """How large, as a number that only orders, and in words: `none`, or as it was asked for."""
    if isinstance(asked, int | float) and setting != TIER:
        return asked, f"{asked:g} GB" if setting == "hicache_size" else f"{asked:g} x"
    text = str(asked or 0).strip()
    if text in ("none", "0"):
        return 0, "none"
    if setting == STACK:
        host = text.split()[0].split(":")[1]
        return size_bytes(host), text.removeprefix("host:") if " " not in text else text
    digits = text.rstrip("ABGIKMTabgikmt ")
    size = size_bytes(text)
    return size, f"{digits} {text[len(digits) :].strip() or 'GiB'}" if size else "none"


def gain(points: Points) -> str:
    """The smallest tier that gains within a tenth of what the best gains, and how much that is."""
    times = [(said, _mean(system, "latency.ttft_s.p50")) for said, system in points]
    known = [(said, time) for said, time in times if time is not None]
    if len(known) < 2:
        return "Would a tier pay? Too few runs finished"
    (first, before), *others = known
    best = min(time for _, time in others)
    what = "without a tier" if first == "none" else f"with {first}"
    if best > (1 - GAIN) * before:
        return f"No size gains a tenth: the median TTFT is {seconds(before)} {what}, {seconds(best)} at best"
    said, time = next((said, time) for said, time in others if before - time >= (1 - GAIN) * (before - best))
    return f"{said} below the GPU's memory: the median TTFT is {seconds(time)}, {seconds(before)} {what}"


def _mean(system: System, column: str) -> float | None:
    found = system.numbers(column)
    return found[0][1].mean if found else None
