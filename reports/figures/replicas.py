"""replicas: the parts of a fleet. A band over the replicas, and a row for each in heat maps over time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvsim.reports.balance import Floats, end_s, held, imbalance, imbalance_in_short, means
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System
from kvsim.reports.rundir.run import Run

_SLICES = 240
_ROW_IN, _LEAST_IN, _MOST_IN = 0.2, 1.1, 2.6


def replicas(systems: Sequence[System], choices: Choices) -> Figure:
    """For each fleet (its first seed): KV memory with its band, then heat maps by replica."""
    found = [(system, system.first.replicas) for system in systems if system.first.replicas]
    if not found:
        raise CannotDraw("figure replicas needs a fleet: a run with --replicas of 2 or more")
    style = choices.style
    tall = [min(max(_ROW_IN * len(parts), _LEAST_IN), _MOST_IN) for _, parts in found]
    figure = new_sheet(style, 1.0 + sum(2.4 + 2 * (each + 0.35) for each in tall), _headline(found))
    heights = [part for each in tall for part in (1.5, each, each)]
    grid = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    looks = style.looks([system.parts for system in systems])
    for place, (system, parts) in enumerate(found):
        look = looks[systems.index(system)]
        _fleet(grid[3 * place : 3 * place + 3], style, look, system, parts)
    return figure


def _fleet(axes: Sequence[Axes], style: Style, look: Look, system: System, parts: Sequence[Run]) -> None:
    band, memory, load = axes
    until_s = end_s(parts) or 1.0
    full = np.array([means(each, held(each), until_s, _SLICES) for each in parts])
    running = np.array([means(each, each.columns.timeline["running"], until_s, _SLICES) for each in parts])
    edges = np.linspace(0, until_s, _SLICES + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    band.fill_between(middle, full.min(axis=0), full.max(axis=0), color=look.colour, alpha=0.22, linewidth=0)
    band.plot(middle, full.mean(axis=0), color=look.colour)
    band.set(xlim=(0, until_s), ylim=(0, 100), yticks=(0, 50, 100), ylabel="KV memory\nin use")
    band.yaxis.set_major_formatter(pieces.percent_of(100))
    band.grid(axis="y")
    pieces.panel_title(band, style, f"{system.full_name}: mean and range of {len(parts)} replicas", 1)
    shades: list[tuple[Axes, Floats, str, float]] = [
        (memory, full, "KV memory in use (%)", 100.0),
        (load, running, "requests at once", max(float(running.max()), 1.0)),
    ]
    for panel, values, words, most in shades:
        how: Any = {"aspect": "auto", "interpolation": "nearest", "cmap": "cividis", "vmin": 0, "vmax": most}
        image = panel.imshow(values, extent=(0, until_s, len(parts) - 0.5, -0.5), **how)
        panel.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        panel.set_ylabel("replica")
        bar = panel.figure.colorbar(image, ax=panel, pad=0.01)
        bar.set_label(words, fontsize=style.small_pt)
        bar.ax.tick_params(labelsize=style.small_pt)
    load.set_xlabel("time (s)")


def _headline(found: Sequence[tuple[System, Sequence[Run]]]) -> str:
    said = imbalance if len(found) == 1 else imbalance_in_short
    return "; ".join(f"{system.name}: {said(parts)}" for system, parts in found)
