"""truth-points: measured against simulated, a dot per server; truth-requests: the same per request.

points     TPOT and TTFT, simulated against measured, with the lines of equality and of 10 % off
requests   the distributions of TTFT, TPOT and E2E of each run, measured and simulated
"""

from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from kvsim.reports.figures import pieces
from kvsim.reports.figures.sheet import new_sheet, save
from kvsim.reports.figures.style import Style
from kvsim.reports.replays import WAYS
from kvsim.reports.truth import Grouped, Validation, groups, model_only, off
from kvsim.sim.validate import Compared


def draw_truth(found: Validation, directory: Path, style: Style) -> None:
    """Draw the available figures into a directory."""
    if found.points:
        save(directory, "truth-points", style, partial(_points, found, style))
    if found.runs:
        save(directory, "truth-requests", style, partial(_requests, found, style))


def _points(found: Validation, style: Style) -> Figure:
    by_model = groups(found, model_only)
    errors = (f"{what} {off(group_of(by_model, what))[0]:.1f} %" for what in ("TPOT", "TTFT"))
    headline = f"{len(found.points)} servers: median absolute error of {', of '.join(errors)}"
    figure = new_sheet(style, 5.2, headline)
    panels = figure.subplots(1, 2)
    for axes, (what, unit, factor) in zip(panels, (("TPOT", "ms", 1e3), ("TTFT", "s", 1.0)), strict=True):
        for place, (key, group) in enumerate(by_model.items()):
            look = style.other(place)
            measured, simulated = (
                [factor * value for value in values]
                for values in zip(*((each.measured, each.simulated) for each in group[what]), strict=True)
            )
            axes.plot(measured, simulated, look.marker, color=look.colour, ms=3, label=key[0], alpha=0.7)
        every = [each for one in group_of(by_model, what) for each in (one.measured, one.simulated)]
        pieces.equality(axes, style, factor * min(every) / 1.3, factor * max(every) * 1.3)
        axes.set(title=what, xlabel=f"measured, {unit}", ylabel=f"simulated, {unit}")
    names, words = panels[0].get_legend_handles_labels()
    figure.legend(names, words, loc="outside lower center", ncols=3, fontsize=style.small_pt, frameon=False)
    return figure


def group_of(by_model: Grouped, what: str) -> list[Compared]:
    """One quantity, over all models."""
    return [each for group in by_model.values() for each in group[what]]


def _requests(found: Validation, style: Style) -> Figure:
    throughputs = [
        f"{run.name} {100 * each.off:+.1f} %"
        for run, compared, _ in found.runs
        for each in compared
        if each.what == "throughput"
    ]
    headline = f"Throughput, simulated over measured: {'; '.join(throughputs)}" if throughputs else "Requests"
    figure = new_sheet(style, 0.8 + 2.3 * len(found.runs), headline)
    rows = figure.subplots(len(found.runs), 3, squeeze=False)
    for row, (run, compared, columns) in zip(rows, found.runs, strict=True):
        means = {each.what: each.off for each in compared if each.statistic == "mean"}
        for axes, (what, pair) in zip(row, columns.items(), strict=True):
            scale = 1e3 if what == "TPOT" else 1.0
            share = np.linspace(0, 1, len(pair[0]))
            for name, values in zip(WAYS, pair, strict=True):
                look = style.role(name)
                axes.plot(
                    scale * np.sort(values), share, color=look.colour, ls=look.dash, lw=style.line, label=name
                )
            axes.set_title(f"{what}: mean {100 * means[what]:+.1f} %", fontsize=style.small_pt)
            axes.set_xlabel("ms" if what == "TPOT" else "s")
            axes.set_xlim(left=0)
        row[0].set_ylabel(f"{run.name.partition(' ')[0]}\nshare of requests")
    rows[0][0].legend(fontsize=style.small_pt, frameon=False)
    return figure
