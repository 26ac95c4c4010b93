"""tiers: time to first token over the size of the tier below GPU memory, and the hit rates.

    left     TTFT, mean and 99th percentile; the first point is without a tier, if that was run
    right    the shares of prompt tokens found in GPU memory and in the tier, stacked

If systems also differ in something else, such as the traffic of a study, both panels have a curve for each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.swept.pieces import parts_in
from kvsim.reports.figures.systems import short
from kvsim.reports.palette import number, seconds
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.sweeps.systems import System
from kvsim.reports.sweeps.tier_gain import TIMES, Points, curves, headline
from kvsim.sim.record.slo import Slo

APART = 30
"""Times that are this many times apart are drawn on a logarithmic axis."""


def tiers(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """Draw the figure; None unless sizes of a tier are compared, each at one load."""
    found = curves(systems)
    if not found:
        return None
    one = len(found) == 1
    figure = new_sheet(style, (3.9 if one else 4.2) * (1.6 if style.narrow else 1), headline(found))
    left, right = figure.subplots(2, 1, sharex=True) if style.narrow else figure.subplots(1, 2)
    looks = style.looks([parts_in(points[0][1].settings) for points in found.values()])
    for look, (name, points) in zip(looks, found.items(), strict=True):
        _times(left, style, look, name, points)
    if one:
        left.set_ylim(bottom=0)
        _found(right, style, next(iter(found.values())))
    else:
        _scale(left)
        _all_found(right, style, found, looks)
    for axes in (left, right):
        axes.grid(axis="y")
    for axes in (right,) if style.narrow else (left, right):
        axes.set_xlabel(
            "host memory below the GPU's" if not _ratios(found) else "host memory / the GPU's memory"
        )
    left.set_title("time to the first token" if one else "time to the first token, mean")
    right.set_title("found of the prompts (%)")
    if one:
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=style.small_pt)
    else:
        figure.legend(loc="outside lower center", ncols=min(len(found), 5), fontsize=style.small_pt)
    return figure


def _scale(axes: Axes) -> None:
    """From 0, or logarithmic where a linear axis would hide the lower curves."""
    times = [time for line in axes.get_lines() for time in line.get_ydata() if time > 0]
    if times and max(times) > APART * min(times):
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: seconds(value))
    else:
        axes.set_ylim(bottom=0)


def _ratios(found: Mapping[str, Points]) -> bool:
    """Whether sizes are multiples of the GPU's memory."""
    return all(said.endswith(TIMES) for points in found.values() for said, _ in points)


def _times(axes: Axes, style: Style, own: Look, name: str, points: Points) -> None:
    """A curve per statistic; with several systems, only the mean, in the system's `own` look."""
    alone = [(statistic, statistic, style.role(statistic)) for statistic in ("mean", "p99")]
    for statistic, words, look in alone if name == "all" else [("mean", short(name, 40), own)]:
        column = f"latency.ttft_s.{statistic}"
        found = [(x, system.numbers(column)) for x, (_, system) in enumerate(points)]
        dots = [(x, numbers[0][1]) for x, numbers in found if numbers]
        _plot(axes, style, dots, {"color": look.colour, "linestyle": look.dash, "label": words}, look.marker)
    axes.set_xticks(range(len(points)), [said.removesuffix(TIMES) for said, _ in points])
    axes.yaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")


def _plot(axes: Axes, style: Style, dots: Sequence[tuple[int, Interval]], how: Any, marker: str) -> None:  # noqa: ANN401 - matplotlib's
    xs, means = [x for x, _ in dots], [value.mean for _, value in dots]
    axes.plot(xs, means, marker=marker, markersize=2.7 * style.line, linewidth=style.line, **how)
    for x, value in dots:
        if not value.fixed:
            axes.plot([x, x], [value.low, value.high], color=how["color"], linewidth=0.67 * style.line)


def _found(axes: Axes, style: Style, points: Points) -> None:
    """Bars: shares of finished requests' prompt tokens found in GPU memory and in the tier."""
    bottom = [0.0] * len(points)
    for words, column in (
        ("in the GPU's memory", "engine.prefix_hit_tokens"),
        ("in the tier", "tier.hit_tokens"),
    ):
        colour = style.role(f"found {words}").colour
        shares = [100 * (_share(system, column) or 0.0) for _, system in points]
        axes.bar(range(len(points)), shares, 0.6, bottom=bottom, color=colour, label=words)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axes.set_xticks(range(len(points)), [said.removesuffix(TIMES) for said, _ in points])
    axes.set_ylim(0, 1.35 * max(*bottom, 1.0))  # room for the legend
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 100])


def _all_found(axes: Axes, style: Style, found: Mapping[str, Points], looks: Sequence[Look]) -> None:
    """A curve per system: the share of finished requests' prompts found in either memory."""
    for look, points in zip(looks, found.values(), strict=True):
        shares = [
            100
            * sum(_share(system, column) or 0.0 for column in ("engine.prefix_hit_tokens", "tier.hit_tokens"))
            for _, system in points
        ]
        how: Any = {"color": look.colour, "linestyle": look.dash, "marker": look.marker, "clip_on": False}
        axes.plot(range(len(shares)), shares, markersize=2.7 * style.line, **how)
    points = next(iter(found.values()))
    axes.set_xticks(range(len(points)), [said.removesuffix(TIMES) for said, _ in points])
    axes.set_ylim(0, 100)


def _share(system: System, column: str) -> float | None:
    """A column's sum as a share of the prompt tokens of finished requests."""

    def share(row: Mapping[str, Any]) -> float | None:
        rates = [number(row.get(f"throughput.{name}_tokens_per_s")) for name in ("total", "output")]
        found, duration_s = number(row.get(column)), number(row.get("duration_s"))
        if found is None or None in (*rates, duration_s):
            return None
        prompts = ((rates[0] or 0) - (rates[1] or 0)) * (duration_s or 0)
        return found / prompts if prompts else None

    found = system.values(share)
    return found[0][1].mean if found else None
