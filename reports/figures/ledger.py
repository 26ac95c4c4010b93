"""memory: the ledger over time, stacked to 100 %. waste: the ledger as one bar per system."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvsim.reports import palette
from kvsim.reports.by_layers import by_layers
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import Choices
from kvsim.reports.figures.over_time import duration, memory_panels, slice_means
from kvsim.reports.figures.sheet import new_sheet, wrapped
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import System, rankable, shares_of_all, under_loads
from kvsim.reports.palette import KINDS
from kvsim.reports.quantities import TOKENS_WAITING
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.seeds.words import with_spread
from kvsim.reports.slices import middles

_LAYERS_BAR = 0.22
"""Height of a bar for one kind of layer, in rows."""


def memory(systems: Sequence[System], choices: Choices) -> Figure:
    """The ledger over time, one panel per system (its first seed) on the same axes."""
    style, runs = choices.style, [system.first for system in systems]
    figure = new_sheet(style, pieces.panels_in(style, len(runs)), _memory_headline(systems))
    memory_panels(figure, style, systems, _stack)
    timelines = [run.columns.timeline for run in runs]
    there = [kind for kind in KINDS if any(kind in each and each[kind].any() for each in timelines)]
    marks: list[Any] = [pieces.kind_patch(style, kind, [run.summary for run in runs]) for kind in there]
    if any((each["waiting"] > 0).any() for each in timelines):
        marks.append(Line2D([], [], color=style.ink, linewidth=1.7 * style.line, label="requests wait"))
    pieces.legend_below(figure, style, marks)
    return figure


def _stack(axes: Axes, style: Style, run: Run) -> None:
    """Draw one run's stack from the top down, so that no seams show between the layers."""
    if not duration(run):
        pieces.say(axes, style, "the run took no time: no memory to show")
        return
    time = run.columns.timeline["time_s"]
    kinds = [kind for kind in KINDS if kind in run.columns.timeline]
    slices = [slice_means(time, run.columns.timeline[kind]) for kind in kinds]
    edges = slices[0][1]
    tops = np.cumsum([means for means, _ in slices], axis=0)
    tops *= 100 / np.where(tops[-1] > 0, tops[-1], 1)
    for kind, top in reversed(list(zip(kinds, tops, strict=True))):
        pieces.layer(axes, top, edges, **style.filled(kind))
    waits, _ = slice_means(time, run.columns.timeline["waiting"] > 0)
    somebody = np.where(waits >= 0.5, 101.0, np.nan)
    axes.plot(middles(edges), somebody, color=style.ink, linewidth=1.7 * style.line, clip_on=False)


def _memory_headline(systems: Sequence[System]) -> str:
    found = [system.number(lambda s: palette.whole_run(s)["token"]) for system in systems]
    if len(systems) == 1:
        said = (
            f"{systems[0].name}: tokens fill {with_spread(palette.percent_text, found[0])} of the KV memory"
        )
        waiting = systems[0].number(TOKENS_WAITING.read)
        if waiting is None:
            return f"{said} over the whole run"
        return f"{said} over the whole run, {with_spread(palette.percent_text, waiting)} while requests wait"
    words = pieces.listed([system.name for system in systems], found, palette.percent_text)
    return f"Share of the KV memory that tokens fill over the whole run{under_loads(systems)}: {words}"


def waste(systems: Sequence[System], choices: Choices) -> Figure:
    """One stacked bar per system: while requests waited if all waited long enough, else over the run."""
    style = choices.style
    shares, wastes, saturated = shares_of_all(systems)
    when = "while requests wait" if saturated else "over the whole run"
    apart = [by_layers([run.summary for run in system.runs], saturated) for system in systems]
    below = 0.95 if style.narrow else 0.72  # room for the bars of each kind of layer
    rows = np.cumsum([0, *[1 + below * len(each) for each in apart]])
    figure = new_sheet(style, 1.9 + 0.55 * float(rows[-1]), _waste_headline(systems, shares, wastes, when))
    axes = figure.subplots()
    summaries = [run.summary for system in systems for run in system.runs]
    kinds = palette.kinds_of(summaries)
    for row, share, wasted, layers in zip(rows.tolist(), shares, wastes, apart, strict=False):
        _bar(axes, style, row, {kind: share[kind] for kind in kinds}, wasted)
        for place, (words, held) in enumerate(layers.items(), 1):
            _layers_bar(axes, style, row + (0.18 if style.narrow else 0.1) + below * place, words, held)
    names = [pieces.row_name(style, system.name) for system in systems]
    pieces.bars_named(axes, style, rows[:-1].tolist(), names)
    axes.set(xlim=(0, 100), ylim=(rows[-1] - 0.5, -0.5), xticks=(0, 25, 50, 75, 100))
    pieces.memory_shares(axes, figure, style, summaries, saturated)
    return figure


def _bar(axes: Axes, style: Style, row: int, percent: dict[str, float], waste: Interval) -> None:
    """Draw one bar of 100 % with its numbers; the total waste is at its end."""
    pieces.stacked_bar(axes, style, row, percent, 0.68, 0.53 * style.line)
    least, decimals = (9.0, 0) if style.narrow else (4.5, 1)
    left = 0.0
    for kind, share in percent.items():
        look = style.kinds[kind]
        if share >= least:
            box = {"facecolor": look.colour, "edgecolor": "none", "pad": 1.5}
            number, middle = f"{share:.{decimals}f}", left + share / 2
            axes.text(middle, row, number, color=look.ink, ha="center", va="center", bbox=box)
        left += share
    end = f"{with_spread(palette.percent_text, waste)} waste" if left else "nothing ran"
    if style.narrow or not waste.fixed:
        end = end.replace(" waste", "\nwaste")
    axes.annotate(end, (100, row), (6, 0), textcoords="offset points", va="center", fontweight="bold")


def _layers_bar(axes: Axes, style: Style, row: float, words: str, percent: Mapping[str, float]) -> None:
    """Draw a thinner bar for one kind of layer below the main bar, with its name and sum above it."""
    left = pieces.stacked_bar(axes, style, row, percent, _LAYERS_BAR, 0.53 * style.line)
    pool = f" (its pool: {palette.percent_text(left)})" if "free" in percent else ""
    padding = " with the padding" if ", padded to " in words else ""
    held = palette.percent_text(left - percent.get("free", 0.0))
    said = wrapped(f"{words}: {held}{padding}{pool}".replace(" %", "\u00a0%"), 54 if style.narrow else 90)
    text: Any = {"textcoords": "offset points", "va": "bottom", "fontsize": style.small_pt}
    axes.annotate(said, (0, row - _LAYERS_BAR / 2), (0, 1), color=style.ink, **text)


def _waste_headline(
    systems: Sequence[System], shares: Sequence[dict[str, float]], wastes: Sequence[Interval], when: str
) -> str:
    """The least and the most waste; if the loads differ all are listed, as they are not comparable."""
    known = [place for place, share in enumerate(shares) if any(share.values())]
    if not known:
        return "Nothing ran, nothing was wasted"
    if not rankable(systems):
        names = [systems[place].name for place in known]
        listed = pieces.listed(names, [wastes[place] for place in known], palette.percent_text)
        return f"KV memory wasted {when}{under_loads(systems)}: {listed}"
    best, worst = (pick(known, key=lambda place: wastes[place].mean) for pick in (min, max))
    least, most = (with_spread(palette.percent_text, wastes[place]) for place in (best, worst))
    if best == worst:
        who = f"{systems[best].name} wastes"
        if len(known) > 1:
            who = f"{palette.everybody([systems[place].name for place in known])} waste"
        return f"{who} {least} of the KV memory {when}"
    return f"{systems[best].name} wastes {least} of the KV memory, {systems[worst].name} {most}, {when}"
