"""Would a tier pay off? The tier sizes that a sweep compares, smallest first, and their gains.

    none, 16, 64, 256 GiB  ->  "A tier of 64 GiB cuts the mean TTFT from 10.0 to 4.20 s (p99: 30.0 to 12.6 s)"

The size is vLLM's or LMCache's, the host's in a stack of `--tier`, or HiCache's: in GB per GPU, or as a ratio
of the GPU's own. Gains are judged by the mean, because the median misses a shrinking tail.
"""

from collections.abc import Mapping, Sequence

from kvsim.reports.palette import seconds
from kvsim.reports.sweeps.systems import TIER, System, name_of
from kvsim.sim.models.sizes import size_bytes

STACK = "tier"
IN_GB, RATIO = "hicache_size", "hicache_ratio"
SIZES = (TIER, STACK, IN_GB, RATIO)
"""Settings that define the size of a tier."""
TIMES = " times the GPU's memory"
GAIN = 0.1
"""Smaller shares of the mean TTFT are not reported as a gain."""

Points = list[tuple[str, System]]
"""(size in words, system), the smallest first."""


def curves(systems: Sequence[System]) -> dict[str, Points]:
    """Systems of different tier sizes, by their other differences; empty unless sizes are compared.

    Each has one load, which may differ between the kinds of traffic of a study.
    """
    setting = next((name for name in SIZES if all(name in system.settings for system in systems)), None)
    if setting is None or any(len(system.points) > 1 for system in systems):
        return {}
    found: dict[str, list[tuple[float, str, System]]] = {}
    for system in systems:
        size = _size(setting, system)
        if size is not None:
            others = {name: value for name, value in system.settings.items() if name != setting}
            found.setdefault(name_of(others), []).append((*size, system))
    by_size = {name: sorted(each, key=lambda point: point[0]) for name, each in found.items()}
    sized = {name: [(said, system) for _, said, system in each] for name, each in by_size.items()}
    return {
        name: points
        for name, points in sized.items()
        if len(points) > 1 and len({load for _, system in points for load in system.points}) < 2
    }


def _size(setting: str, system: System) -> tuple[float, str] | None:
    """The size as a sort key and in words; None if a run does not record it."""
    asked = system.settings[setting]
    if setting == RATIO and isinstance(asked, int | float):
        return asked, f"{asked:g}{TIMES}"
    if setting == IN_GB:
        size = float(str(asked or 0)) or _by_ratio(system)
        return None if size is None else (size, f"{size:.4g} GB")
    text = str(asked or 0).strip()
    if text in ("none", "0"):
        return 0, "none"
    if setting == STACK:
        return size_bytes(text.split()[0].split(":")[1]), text
    digits = text.rstrip("ABGIKMTabgikmt ")
    size = size_bytes(text)
    return size, f"{digits} {text[len(digits) :].strip() or 'GiB'}" if size else "none"


def _by_ratio(system: System) -> float | None:
    """GB per GPU of a HiCache whose size is given as a ratio, as recorded in its run."""
    total, gpus = (_mean(system, column) for column in ("tier.capacity_bytes", "gpus"))
    return total / gpus / 1e9 if total and gpus else None


def gains(by_name: Mapping[str, Points]) -> list[str]:
    """The gain from a tier in each system, which is named if systems differ otherwise."""
    return [gain(points, "" if name == "all" else f" of {name}") for name, points in by_name.items()]


def headline(by_name: Mapping[str, Points]) -> str:
    """What the tier gains where it gains most."""

    def times(name: str) -> float:
        means = [_mean(system, "latency.ttft_s.mean") or 0.0 for _, system in by_name[name]]
        return means[0] / min(means) if min(means) else 0.0

    most = max(by_name, key=times)
    return gains({most: by_name[most]})[0]


def gain(points: Points, whose: str = "") -> str:
    """The smallest tier whose gain is within a tenth of the best, and its gain; `whose`: ` of chat`."""
    times = [
        (said, *(_mean(system, f"latency.ttft_s.{of}") for of in ("mean", "p99"))) for said, system in points
    ]
    known = [(said, mean, p99) for said, mean, p99 in times if mean is not None and p99 is not None]
    if len(known) < 2:
        return f"Would a tier pay? Too few runs{whose} finished"
    (first, before, tail), *others = known
    best = min(others, key=lambda each: each[1])
    compared = "" if first == "none" else f"; compared with {first}"
    if seconds(best[1]) == seconds(before):
        return f"No tier shortens the mean TTFT{whose}: {seconds(before)} (p99: {seconds(tail)}){compared}"
    if best[1] > (1 - GAIN) * before:
        which, mean_s, p99_s = best
        change = f"{_change(before, mean_s)} at best, with {which} (p99: {_change(tail, p99_s)})"
        return f"No tier cuts the mean TTFT{whose} by a tenth: {change}{compared}"
    enough = before - (1 - GAIN) * (before - best[1])
    said, mean_s, p99_s = next(each for each in others if each[1] <= enough)
    tier = said if ":" in said else f"A tier of {said}"
    change = f"from {_change(before, mean_s)} (p99: {_change(tail, p99_s)})"
    return f"{tier} cuts the mean TTFT{whose} {change}{compared}"


def _change(before_s: float, after_s: float) -> str:
    """`19.3 to 2.28 s`, or `1.20 s to 300 ms`."""
    (one, unit), (other, last) = (seconds(each).split(" ") for each in (before_s, after_s))
    return f"{one} to {other} {last}" if unit == last else f"{one} {unit} to {other} {last}"


def _mean(system: System, column: str) -> float | None:
    found = system.numbers(column)
    return found[0][1].mean if found else None
