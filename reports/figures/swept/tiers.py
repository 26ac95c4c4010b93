"""tiers: the time to the first token over the size of the tier below the GPU's memory, and what was found.

    left     TTFT, median and 99th per cent; the first point has no tier, where that was asked for
    right    the share of prompt tokens found in the GPU's memory and in the tier, one upon the other

A panel of systems that differ in something else too has a curve for each. The size is vLLM's, or HiCache's:
in GB on each GPU, or as a ratio of the GPU's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import short
from kvsim.reports.palette import number, seconds
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.sweeps.systems import TIER, System, name_of
from kvsim.sim.models.sizes import size_bytes
from kvsim.sim.record.slo import Slo

SIZES = (TIER, "hicache_size", "hicache_ratio")
"""Settings that say how large a tier is."""
GAIN = 0.1
"""Less of the time to the first token is not told as a gain."""

Points = list[tuple[str, System]]
"""(size in words, system), the smallest first."""


def tiers(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """None unless sizes of a tier are compared, at one load."""
    setting = next((name for name in SIZES if all(name in system.settings for system in systems)), None)
    if load is not None or setting is None:
        return None
    curves = _curves(systems, setting)
    if max(len(points) for points in curves.values()) < 2:
        return None
    figure = new_sheet(style, 3.9, headline(curves))
    left, right = figure.subplots(1, 2)
    for place, (name, points) in enumerate(curves.items()):
        _times(left, style, place, name, points)
    _found(right, style, next(iter(curves.values())))
    for axes in (left, right):
        axes.set_xlabel("host memory below the GPU's")
        axes.grid(axis="y")
    one = len(curves) == 1
    left.set_title("time to the first token" if one else "time to the first token, median")
    right.set_title(f"found of the prompts (%){'' if one else f': {short(next(iter(curves)), 40)}'}")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=style.small_pt)
    return figure


def headline(curves: Mapping[str, Points]) -> str:
    """The smallest tier that gains within a tenth of what the best gains, and how much that is."""
    points = next(iter(curves.values()))
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


def _curves(systems: Sequence[System], setting: str) -> dict[str, Points]:
    found: dict[str, list[tuple[float, System]]] = {}
    for system in systems:
        others = {name: value for name, value in system.settings.items() if name != setting}
        size = system.settings[setting]
        number = size_bytes(str(size or 0)) if setting == TIER else float(size)
        found.setdefault(name_of(others), []).append((number, system))
    return {
        name: [(size_words(system, setting), system) for _, system in sorted(sized, key=lambda each: each[0])]
        for name, sized in found.items()
    }


def size_words(system: System, setting: str) -> str:
    """`none`, or the size as it was asked for, as in `64 GiB`; a number alone is of GiB."""
    if setting != TIER:
        unit = " GB" if setting == "hicache_size" else " x"
        return f"{system.settings[setting]:g}{unit}"
    asked = str(system.settings[TIER] or 0).strip()
    if not size_bytes(asked):
        return "none"
    digits = asked.rstrip("ABGIKMTabgikmt ")
    return f"{digits} {asked[len(digits) :].strip() or 'GiB'}"


def _times(axes: Axes, style: Style, place: int, name: str, points: Points) -> None:
    """A curve for each statistic; of several systems, the median alone."""
    shown = [("p50", "median"), ("p99", "p99")] if name == "all" else [("p50", short(name, 40))]
    for at, (statistic, words) in enumerate(shown):
        look, column = style.look(place + at), f"latency.ttft_s.{statistic}"
        found = [(x, system.numbers(column)) for x, (_, system) in enumerate(points)]
        dots = [(x, numbers[0][1]) for x, numbers in found if numbers]
        _plot(axes, style, dots, {"color": look.colour, "linestyle": look.dash, "label": words}, look.marker)
    axes.set_xticks(range(len(points)), [said for said, _ in points])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")


def _plot(axes: Axes, style: Style, dots: Sequence[tuple[int, Interval]], how: Any, marker: str) -> None:  # noqa: ANN401 - matplotlib's
    xs, means = [x for x, _ in dots], [value.mean for _, value in dots]
    axes.plot(xs, means, marker=marker, markersize=2.7 * style.line, linewidth=style.line, **how)
    for x, value in dots:
        if not value.fixed:
            axes.plot([x, x], [value.low, value.high], color=how["color"], linewidth=0.67 * style.line)


def _found(axes: Axes, style: Style, points: Points) -> None:
    """Bars: of the prompts of those who finished, what the GPU's memory had, and what the tier had."""
    bottom = [0.0] * len(points)
    for place, (words, column) in enumerate(
        (("in the GPU's memory", "engine.prefix_hit_tokens"), ("in the tier", "tier.hit_tokens"))
    ):
        shares = [100 * (_share(system, column) or 0.0) for _, system in points]
        axes.bar(range(len(points)), shares, 0.6, bottom=bottom, color=style.look(place).colour, label=words)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axes.set_xticks(range(len(points)), [said for said, _ in points])
    axes.set_ylim(0, 1.35 * max(*bottom, 1.0))  # room for the legend
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 100])


def _share(system: System, column: str) -> float | None:
    """Of the prompt tokens of requests that finished."""

    def share(row: Mapping[str, Any]) -> float | None:
        rates = [number(row.get(f"throughput.{name}_tokens_per_s")) for name in ("total", "output")]
        found, duration_s = number(row.get(column)), number(row.get("duration_s"))
        if found is None or None in (*rates, duration_s):
            return None
        prompts = ((rates[0] or 0) - (rates[1] or 0)) * (duration_s or 0)
        return found / prompts if prompts else None

    found = system.values(share)
    return found[0][1].mean if found else None


def _mean(system: System, column: str) -> float | None:
    found = system.numbers(column)
    return found[0][1].mean if found else None
