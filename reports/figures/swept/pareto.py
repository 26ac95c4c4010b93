"""pareto: tokens per second per GPU against tokens per second per user, with the Pareto front.

Every dot is a system at a load. A user's rate is 1 / the median time per output token. Dots outside the SLO
are hollow and not part of the front. Nearly equal dots lie in each other. Systems that rejected more than
others are left out of the front too, and there is none if clocks differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.swept.pieces import legend, looks
from kvsim.reports.palette import figures, together
from kvsim.reports.sweeps.headline import at_load, different_clocks, first_words, ranked
from kvsim.reports.sweeps.systems import System, interactivity, tokens_per_gpu
from kvsim.sim.record.slo import Slo

NEAR = 0.015
"""Dots that are this close, as a share of both axes, hide each other."""
Range = tuple[float, float]


@dataclass(frozen=True)
class Dot:
    """A system at a load, `at`: tokens/s per user and per GPU, and whether every seed meets the SLO."""

    system: int
    user: float
    gpu: float
    within: bool
    at: float = 0.0


def pareto(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """Draw the front; None if there are fewer than two dots."""
    dots = [dot for place, system in enumerate(systems) for dot in _dots(place, system, slo)]
    if len(dots) < 2:
        return None
    fit = ranked(systems) if not different_clocks(systems) else []
    able = [dot for dot in dots if systems[dot.system] in fit]
    front = front_of(able)
    shares = [sum(dot.system == place for dot in front) for place in range(len(systems))]
    order = sorted(range(len(systems)), key=lambda place: -shares[place])
    found = looks(style, systems, order)
    figure = new_sheet(style, 4.6, _headline(systems, able, front, load, slo))
    axes = figure.subplots()
    x_range, y_range = _fitted([dot.user for dot in dots]), _fitted([dot.gpu for dot in dots])
    named = [dot for dot in dots if found[dot.system]]
    above = _above(named, x_range, y_range)
    ring = min(3.5, 9 / max([*above, 1]))
    drawn = [(dot, 0) for dot in dots if not found[dot.system]] + list(zip(named, above, strict=True))
    for dot, over in drawn:
        look = found[dot.system]
        how: Any = {"marker": look.marker if look else "o", "zorder": 3 - 0.01 * over}
        how["markersize"] = (3 + ring * over if look else 2) * style.line
        colour = look.colour if look else style.muted
        filled = colour if dot.within else "none"
        axes.plot([dot.user], [dot.gpu], linestyle="", color=colour, markerfacecolor=filled,
                  markeredgewidth=0.5 * style.line, alpha=1.0 if look else 0.45, **how)  # fmt: skip
    if front:
        line: Any = {"color": style.ink, "linewidth": 0.8 * style.line, "zorder": 1}
        axes.plot([dot.user for dot in front], [dot.gpu for dot in front], **line)
    hollow = "" if all(dot.within for dot in dots) else "\nhollow: outside the SLO"
    axes.set(xlabel=f"output tokens/s of a user (1 / median TPOT){hollow}", ylabel="output tokens/s per GPU")
    axes.set(xlim=x_range, ylim=y_range)
    axes.grid(axis="both")
    legend(figure, style, [system.name for system in systems], found)
    return figure


def _above(dots: Sequence[Dot], x_range: Range, y_range: Range) -> list[int]:
    """How many later dots of other systems hide each, which is drawn larger below them: all are seen."""
    x_near, y_near = (NEAR * (high - low) for low, high in (x_range, y_range))
    return [
        sum(
            abs(each.user - dot.user) < x_near and abs(each.gpu - dot.gpu) < y_near
            for each in dots[place + 1 :]
            if each.system != dot.system
        )
        for place, dot in enumerate(dots)
    ]


def _fitted(values: Sequence[float]) -> Range:
    """The range of an axis around the points; it starts at 0 if they reach below a third of the maximum."""
    low, high = min(values), max(values)
    room = max(0.08 * (high - low if low > high / 3 else high), 0.01 * high)
    return (max(low - room, 0.0) if low > high / 3 else 0.0), high + (room or 1.0)


def front_of(dots: Sequence[Dot]) -> list[Dot]:
    """Dots within the SLO that no other dot dominates, sorted by user rate."""
    front: list[Dot] = []
    for dot in sorted((dot for dot in dots if dot.within), key=lambda dot: (-dot.user, -dot.gpu)):
        if not front or dot.gpu > front[-1].gpu:
            front.append(dot)
    return front[::-1]


def _dots(place: int, system: System, slo: Slo | None) -> list[Dot]:
    users, gpus = dict(system.values(interactivity)), dict(system.values(tokens_per_gpu))
    met = {
        load: slo is None or all(row.get("slo.met") for row in rows) for load, rows in system.points.items()
    }
    return [
        Dot(place, users[load].mean, gpus[load].mean, met[load], load)
        for load in system.points
        if load in users and load in gpus
    ]


def _headline(
    systems: Sequence[System], able: Sequence[Dot], front: Sequence[Dot], load: str | None, slo: Slo | None
) -> str:
    if apart := different_clocks(systems):
        return apart
    if not front:
        return f"{first_words(systems)}No system meets {slo} at any load"
    names = [system.name for system in systems]
    return f"{first_words(systems)}{_best(names, able, front, load, slo)}"


def _best(
    names: Sequence[str], able: Sequence[Dot], front: Sequence[Dot], load: str | None, slo: Slo | None
) -> str:
    """`paged gives up to 620 tokens/s per GPU, at 8 requests/s; buddy up to 42.6 per user, ...`."""
    best = max(front, key=lambda dot: dot.gpu)
    fastest = max(front, key=lambda dot: dot.user)
    ends = []
    for dot in (best, fastest):
        reads = (figures(dot.gpu), figures(dot.user))
        alike = {each.system for each in able if (figures(each.gpu), figures(each.user)) == reads}
        who = [names[dot.system], *(names[each] for each in sorted(alike - {dot.system}))]
        ends.append((who if len(names) > 1 else [], f", {at_load(load, dot.at)}" if load else ""))
    (who, where), (other, there) = ends
    start = f"Within {slo}" if slo else ""
    if who:
        start = f"{f'{start}, ' if start else ''}{together(who)} give{'s' * (len(who) == 1)}"
    start += " " * bool(start)
    if best is fastest:
        most = "the most on both axes, " if who else ""
        return f"{start}{most}{figures(best.gpu)} tokens/s per GPU and {figures(best.user)} per user{where}"
    start = f"{start}{'up' if start else 'Up'} to {figures(best.gpu)} tokens/s per GPU{where}"
    again = "" if other == who else f"{together(other)} "
    return f"{start}; {again}up to {figures(fastest.user)} per user{there}"
