"""curves: latencies over the load, a curve per system, with intervals, the SLO and the saturation knee.

The panels are the latencies of the SLO, or the 99th percentiles of TTFT and TPOT. A bar is the 95 % interval
over seeds. A ring is the knee: the load at which throughput / mean latency is largest (Kleinrock 1979).
A point is hollow if only some seeds meet the SLO, and a cross if none do. The answer is the largest load up
to which all seeds meet it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports.figures import pieces
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.swept.pieces import legend, looks, mark
from kvsim.reports.palette import every
from kvsim.reports.quantities import LATENCIES
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.sweeps.headline import headline, rank
from kvsim.reports.sweeps.systems import LOADS, System
from kvsim.sim.record.slo import Limit, Slo

_USUAL = (("ttft", "p99"), ("tpot", "p99"))
_MOST_PANELS = 3
NEAR = 0.015
"""Curves that are this close, as a share of the highest point, hide each other."""
GAPS = (0, (3, 3))
"""The dash of a curve that another one lies under, so that both are seen."""


Points = Sequence[tuple[float, Interval]]


def curves(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """Latencies over the load; None if no load varies."""
    if load is None or not any(len(system.points) > 1 for system in systems):
        return None
    panels = _panels(slo)
    order = rank if slo else _served
    ranked = sorted(range(len(systems)), key=lambda place: order(systems[place]), reverse=True)
    found = looks(style, systems, ranked)
    ring = any(system.knee() is not None for system in systems)
    seeds = max(len(rows) for system in systems for rows in system.points.values())
    below = [LOADS[load], *(["ring: knee, where throughput / latency is largest"] if ring else [])]
    below += [_rule(seeds)] if slo else []
    points_of = [[system.numbers(_column(*panel[:2])) for system in systems] for panel in panels]
    above = [0] * len(systems)
    for place, hidden in _hidden(points_of, [limit for _, _, limit in panels]):
        above[hidden] += 1
        if (look := found[place]) is not None and look.dash == "-":
            found[place] = replace(look, dash=GAPS)
    figure = new_sheet(style, 4.3, headline(systems, load, slo))
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (latency, statistic, limit), drawn in zip(grid, panels, points_of, strict=True):
        values = [value.mean for points in drawn for _, value in points]
        values += [limit.limit_s] if limit else []
        for system, look, points, larger in zip(systems, found, drawn, above, strict=True):
            _plot(axes, style, look, points, system, above=larger)
        axes.set_xlabel("\n".join(below))
        _axis(axes, values, f"{LATENCIES[latency].name}, {statistic}")
        axes.set_xlim(left=0)
        axes.grid(axis="both")
        if limit is not None:
            pieces.limit_line(axes, style, limit, along="y")
    legend(figure, style, [system.name for system in systems], found)
    return figure


def _hidden(points_of: Sequence[Sequence[Points]], limits: Sequence[Limit | None]) -> list[tuple[int, int]]:
    """Pairs of systems of which the first hides the second in some panel: nearly the same at every load."""
    pairs: dict[tuple[int, int], None] = {}
    for drawn, limit in zip(points_of, limits, strict=True):
        values = [value.mean for points in drawn for _, value in points]
        near = NEAR * max([*values, limit.limit_s if limit else 0.0])
        for (place, one), (later, other) in combinations(enumerate(drawn), 2):
            apart = [
                abs(x.mean - y.mean) if a == b else near for (a, x), (b, y) in zip(one, other, strict=False)
            ]
            if apart and len(one) == len(other) and max(apart) < near:
                pairs[later, place] = None
    return [*pairs]


def _panels(slo: Slo | None) -> list[tuple[str, str, Limit | None]]:
    """(latency, statistic, limit) of each panel, for statistics that a summary has."""
    usual = ("p50", "p90", "p95", "p99", "max")
    own = [(each.latency, each.statistic, each) for each in slo.limits] if slo else []
    shown = [each for each in own if each[1] in usual and each[0] in LATENCIES]
    return shown[:_MOST_PANELS] or [(latency, statistic, None) for latency, statistic in _USUAL]


def _column(latency: str, statistic: str) -> str:
    return f"latency.{LATENCIES[latency].column}.{statistic}"


def _served(system: System) -> float:
    return max((value.mean for _, value in system.numbers("throughput.requests_per_s")), default=0.0)


def _rule(seeds: int) -> str:
    """What the points mean with respect to the SLO."""
    if seeds == 1:
        return "points: SLO met; crosses: missed"
    return f"filled points: {every(seeds, 'seed')} meet the SLO;\nhollow: some; crosses: none"


def _plot(axes: Axes, style: Style, look: Look | None, points: Points, system: System, *, above: int) -> None:
    """A curve; its markers are larger if others lie `above` it."""
    how = mark(style, look)
    axes.plot([x for x, _ in points], [value.mean for _, value in points], **how)
    if look is None:
        return
    met, knee = system.met(), system.knee()
    for x, value in points:
        within = met.get(x, True)
        marker = "x" if within is False else look.marker
        dot: Any = {"marker": marker, "markersize": (2.4 + 2 * above) * style.line, "zorder": 4}
        inside = style.paper if within is None else look.colour
        axes.plot([x], [value.mean], color=look.colour, markerfacecolor=inside, linestyle="",
                  markeredgewidth=0 if within else 0.5 * style.line, **dot)  # fmt: skip
        if not value.fixed:
            axes.plot(
                [x, x], [max(value.low, 1e-9), value.high], color=look.colour, linewidth=0.6 * style.line
            )
        if x == knee:
            ring: Any = {"marker": "o", "markersize": 7 * style.line, "markerfacecolor": "none"}
            axes.plot([x], [value.mean], color=look.colour, markeredgewidth=0.8 * style.line, **ring)


def _axis(axes: Axes, values: Sequence[float], title: str) -> None:
    """Seconds, or milliseconds if all are below one."""
    positive = [value for value in values if value > 0]
    if pieces.value_axis(axes, values):
        axes.set_ylim(min(positive) / 1.6, 1.6 * max(positive))
    short_times = bool(positive) and max(positive) < 1
    pieces.plain_numbers(axes, "y", 1e3 if short_times else 1.0)
    axes.set_title(f"{title} ({'ms' if short_times else 's'})")
