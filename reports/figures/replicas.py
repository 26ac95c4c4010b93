"""replicas: the replicas of a fleet, as a band over all of them and as heat maps with a row each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvsim.reports.balance import Fleet, Floats, imbalance, imbalance_in_short
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System

_SLICES = 240
_ROW_IN, _LEAST_IN, _MOST_IN = 0.2, 1.1, 2.6


def replicas(systems: Sequence[System], choices: Choices) -> Figure:
    """For each fleet (its first seed): KV memory with its range, then heat maps by replica."""
    found = [(system, Fleet.of(system.first)) for system in systems if system.first.replicas]
    if not found:
        raise CannotDraw("figure replicas needs a fleet: a run with --replicas of 2 or more")
    style = choices.style
    tall = [min(max(_ROW_IN * len(fleet.replicas), _LEAST_IN), _MOST_IN) for _, fleet in found]
    figure = new_sheet(style, 1.0 + sum(2.4 + 2 * (each + 0.35) for each in tall), _headline(found))
    heights = [part for each in tall for part in (1.5, each, each)]
    grid = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    looks = style.looks([system.parts for system in systems])
    for place, (system, fleet) in enumerate(found):
        look = looks[systems.index(system)]
        _fleet(grid[3 * place : 3 * place + 3], style, look, system, fleet)
    return figure


def _fleet(axes: Sequence[Axes], style: Style, look: Look, system: System, fleet: Fleet) -> None:
    band, memory, load = axes
    until_s, many = fleet.end_s or 1.0, len(fleet.replicas)
    full, running = fleet.held(_SLICES), fleet.column("running", _SLICES)
    there = ~np.isnan(full).all(axis=0)
    edges = np.linspace(0, until_s, _SLICES + 1)
    middle, some = ((edges[1:] + edges[:-1]) / 2)[there], full[:, there]
    low, high = np.nanmin(some, axis=0), np.nanmax(some, axis=0)
    band.fill_between(middle, low, high, color=look.colour, alpha=0.22, linewidth=0)
    band.plot(middle, np.nanmean(some, axis=0), color=look.colour)
    band.set(xlim=(0, until_s), ylim=(0, 100), yticks=(0, 50, 100), ylabel="KV memory\nin use")
    band.yaxis.set_major_formatter(pieces.percent_of(100))
    band.grid(axis="y")
    title = system.full_name if style.narrow else f"{system.full_name}: mean and range of {many} replicas"
    pieces.panel_title(band, style, f"{title}{'; blank: dead or off' if fleet.changes else ''}", 1)
    shades: list[tuple[Axes, Floats, str, float]] = [
        (memory, full, "KV memory in use (%)", 100.0),
        (load, running, "requests at once", max(float(np.nanmax(running)), 1.0)),
    ]
    for panel, values, words, most in shades:
        how: Any = {"aspect": "auto", "interpolation": "nearest", "cmap": "cividis", "vmin": 0, "vmax": most}
        image = panel.imshow(values, extent=(0, until_s, many - 0.5, -0.5), **how)
        panel.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        panel.set_ylabel("replica")
        bar = panel.figure.colorbar(image, ax=panel, pad=0.01)
        bar.set_label(words, fontsize=style.small_pt)
        bar.ax.tick_params(labelsize=style.small_pt)
    load.set_xlabel("time (s)")


def _headline(found: Sequence[tuple[System, Fleet]]) -> str:
    said = imbalance if len(found) == 1 else imbalance_in_short
    return "; ".join(f"{system.name}: {said(fleet)}" for system, fleet in found)
