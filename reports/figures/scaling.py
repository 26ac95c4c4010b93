"""scaling: a fleet that grows and shrinks: load, replicas and attainment on one time axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from kvsim.reports.arrays import Floats
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import System
from kvsim.reports.palette import ROLES, figures, number


def has_scaling(system: System) -> bool:
    """Whether a system has autoscaled replicas, in a run that took time."""
    return bool((system.first.summary.get("scaling") or {}).get("over_time"))


def scaling(systems: Sequence[System], choices: Choices) -> Figure:
    """A column of panels per fleet (its first seed); attainment only if there are limits."""
    found = [(system, system.first.summary["scaling"]) for system in systems if has_scaling(system)]
    if not found:
        raise CannotDraw(
            "figure scaling needs a fleet whose replicas come and go: a run with --scale that took time"
        )
    style = choices.style
    panels = [(system, told, column) for system, told in found for column in _columns(told)]
    figure = new_sheet(style, 1.0 + 1.35 * len(panels), " ".join(_words(*each) for each in found))
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=len(found) == 1)[:, 0]
    for axes, (system, told, column) in zip(grid, panels, strict=True):
        if column == "replicas" and told.get("pools"):
            _by_pool(axes, style, told)
        else:
            _panel(axes, style, told["over_time"], column)
        if column == "requests_per_s":
            pieces.panel_title(axes, style, f"{system.full_name}: {told['policy']}", 1)
    grid[-1].set_xlabel("time (s)")
    return figure


_LABELS = {
    "requests_per_s": "arriving\nrequests/s",
    "replicas": "billed\nreplicas",
    "attained_share": "within the\nlimits",
}


def _columns(told: dict[str, Any]) -> list[str]:
    return [name for name in _LABELS if any(row[name] is not None for row in told["over_time"])]


def _panel(axes: Axes, style: Style, rows: Sequence[dict[str, Any]], column: str) -> None:
    """Draw a step for each part of the run; a gap where no request was judged."""
    values = np.array([np.nan if row[column] is None else row[column] for row in rows], dtype=np.float64)
    edges = _edges(rows)
    look = style.role(column)
    axes.stairs(values, edges, color=look.colour, linewidth=style.line, fill=False, baseline=None)
    axes.stairs(values, edges, color=look.colour, alpha=0.2, fill=True)
    _set_axes(axes, edges, column)
    if column == "attained_share":
        axes.set(ylim=(0, 1.05), yticks=(0, 0.5, 1))
        axes.yaxis.set_major_formatter(pieces.percent_of(1))


def _set_axes(axes: Axes, edges: Floats, column: str) -> None:
    axes.set(xlim=(0, edges[-1]), ylabel=_LABELS[column])
    axes.set_ylim(0)
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=column == "replicas"))


def _by_pool(axes: Axes, style: Style, told: dict[str, Any]) -> None:
    rows, edges = told["over_time"], _edges(told["over_time"])
    below, marks = np.zeros(len(rows)), []
    for place, pool in enumerate(told["pools"]):
        above = below + [row["replicas_by_pool"][place] for row in rows]
        look = style.other(ROLES["replicas"] + 1 + place)
        axes.stairs(above, edges, baseline=below, color=look.colour, fill=True, hatch=look.hatch, alpha=0.6)
        axes.stairs(above, edges, baseline=None, color=look.colour, linewidth=style.line)
        marks.append(Patch(color=look.colour, label=pool["name"], alpha=0.6))
        below = above
    _set_axes(axes, edges, "replicas")
    pieces.legend_beside(axes, style, marks)


def _edges(rows: Sequence[dict[str, Any]]) -> Floats:
    """The start times of the parts of the run, and the end of the last one."""
    begins = [float(row["time_s"]) for row in rows]
    return np.array([*begins, begins[-1] + (begins[1] - begins[0] or 1.0)])


def _words(system: System, told: dict[str, Any]) -> str:
    hours, of_all = number(told["gpu_hours"]) or 0.0, number(told["gpu_hours_of_all"]) or 0.0
    saved = f", {100 * (1 - hours / of_all):.0f} % less than all replicas" if of_all else ""
    met = number((system.first.summary.get("slo") or {}).get("attained_share"))
    within = "" if met is None else f"; {100 * met:.1f} % of the requests within the limits"
    return f"{system.name}: {figures(hours)} GPU-hours{saved}{within}"
