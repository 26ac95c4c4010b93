"""Published and simulated in one figure: the paper's points and lines hollow and dashed, ours filled.

A figure is drawn as stacked bars if its file has a `[stack]` (value -> kind of the waste ledger), as curves
if it has readings at several rates or sizes, and else as a line per number.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from kvsim.reports import palette
from kvsim.reports.colours import HUES, Place
from kvsim.reports.figures import draw_picture
from kvsim.reports.figures.sheet import Panel, Sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.grouping import by_key
from kvsim.reports.papers import declared
from kvsim.reports.papers.checks import NOT_NUMBERS, Judged, Row
from kvsim.reports.papers.declared import Paper
from kvsim.reports.papers.disaggregated import GOAL
from kvsim.reports.papers.running import Findings
from kvsim.reports.papers.series import Found

COMPARED = 5
"""This many first systems of a paper have the same colours in all figures that compare only them."""
RANGE: Mapping[str, Any] = {"alpha": 0.35, "linewidth": 5, "solid_capstyle": "butt"}
LIMIT: Mapping[str, Any] = {"linestyle": ":", "linewidth": 1.2, "zorder": 1}
Painter = tuple[Callable[[Sheet, Style], None], float]
"""What draws a figure, and its height in inches."""


def draw(
    directory: Path, paper: Paper, findings: Findings, results: Sequence[Judged], style: Style
) -> dict[str, str]:
    """Draw each figure into the directory; returns its first file's name by the figure's number."""
    files, known = {}, list(paper.tables["systems"])[: len(palette.SERIES)]
    for judged in results:
        figure = judged.figure
        own = list(dict.fromkeys(row.system for row in judged.rows))
        order = known if set(own) <= set(known[:COMPARED]) else own
        colours = {system: _colour(style, order.index(system)) for system in own}
        paint, height = _painter(judged, findings, colours)
        headline = f"Figure {figure.number}: {figure.title}"
        paths = draw_picture(directory, f"figure{figure.number}", style.wide, height, headline, paint)
        files[figure.number] = paths[0].name
    return files


def _colour(style: Style, place: int) -> str:
    """The colour of the nth system of a paper."""
    return style.look_at(Place(place % HUES, place // HUES)).colour


def _painter(judged: Judged, findings: Findings, colours: Mapping[str, str]) -> Painter:
    reads, settings, panels = judged.figure.reads, judged.figure.settings, len(judged.figure.panels)
    if "stack" in settings:
        systems = {(row.panel, row.system) for row in judged.rows}
        return partial(_stacks, judged=judged), 1.4 + 0.72 * len(systems)
    unplotted = reads == "crossing" and settings.get("plot", True) is False
    if unplotted or reads in ("value", "mechanism", "served", "endless"):
        headings = (panels if _has_headings(judged) else 0) * len(_units(judged))
        axes_in = 0.45 * (len(_units(judged)) - 1)
        return partial(_dots, judged=judged), 1.5 + 0.2 * len(judged.rows) + 0.28 * headings + axes_in
    height = 1.6 + 2.6 * ceil(panels / _columns(judged.figure))
    if reads == "attainment":
        return partial(_attained, judged=judged, findings=findings, colours=colours), height
    return partial(_curves, judged=judged, findings=findings, colours=colours), height


def _columns(figure: declared.Figure) -> int:
    return min(len(figure.panels), 3)


def _stacks(sheet: Sheet, style: Style, judged: Judged) -> None:
    """Two bars per system, published above simulated, in the colours of the waste ledger."""
    axes = sheet.subplots()
    stack: dict[str, str] = judged.figure.settings["stack"]
    places, names = [], []
    for place, (system, rows) in enumerate(by_key(judged.rows, lambda row: row.system).items()):
        parts = sorted(
            (row for row in rows if row.value in stack), key=lambda row: list(stack).index(row.value)
        )
        for down, who in ((0.0, "published"), (0.44, "simulated")):
            y, left = place * 1.25 + down, 0.0
            for row in parts:
                width = (row.published if who == "published" else row.simulated) or 0.0
                kind = style.kinds[stack[row.value]]
                axes.barh(y, width, 0.4, left, linewidth=0.6, **style.filled(stack[row.value]))
                if width >= 5:
                    box = {"facecolor": kind.colour, "edgecolor": "none", "pad": 1.2} if kind.hatch else None
                    axes.text(
                        *(left + width / 2, y, palette.figures(width)),
                        **{"ha": "center", "va": "center", "fontsize": 8.5, "color": kind.ink, "bbox": box},
                    )
                left += width
            places.append(y)
            names.append(who)
        _beside(axes, style, -0.115, place * 1.25 + 0.22, system)
    axes.set_yticks(places, names, color=style.ink, fontsize=8)
    axes.set_ylim(max(places) + 0.45, -0.4)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 100)
    axes.set_xlabel(judged.figure.settings["unit"])
    told = {row.value: row.name for row in judged.rows}
    marks = [
        axes.barh(0, 0, label=told[value], **style.filled(kind))
        for value, kind in stack.items()
        if value in told
    ]
    _below(sheet, marks)


def _beside(axes: Panel, style: Style, x: float, y: float, text: str) -> None:
    """Write the name of a group of lines to the left of the axes."""
    how = {"transform": axes.get_yaxis_transform(), "fontsize": 9, "color": style.ink}
    axes.text(x, y, text, ha="right", va="center", weight="bold", **how)


def _has_headings(judged: Judged) -> bool:
    """Whether panels are headings: if there are several, with several numbers each."""
    panels = {row.panel for row in judged.rows}
    return 1 < len(panels) < len(judged.rows)


def _units(judged: Judged) -> dict[str, list[Row]]:
    """The rows by unit; each unit has axes of its own."""
    settings = judged.figure.settings
    return by_key(judged.rows, lambda row: settings.get("units", {}).get(row.value, settings["unit"]))


def _dots(sheet: Sheet, style: Style, judged: Judged) -> None:
    """A line per number: published hollow, simulated filled, the range over the open choices as a bar."""
    units, headings = _units(judged), _has_headings(judged)
    named = "units" in judged.figure.settings  # the values of a system are named beside it
    lines = [len(rows) + 1.5 * headings * len({row.panel for row in rows}) for rows in units.values()]
    grid = sheet.subplots(len(units), 1, squeeze=False, height_ratios=lines)
    for axes, (unit, rows) in zip(grid.flat, units.items(), strict=True):
        _lines(axes, style, rows, headings, named and len({row.value for row in rows}) > 1)
        axes.set_xlabel(unit)
        if named:
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    _legend_of_dots(sheet, style, grid.flat[0], judged)


def _lines(axes: Panel, style: Style, rows: Sequence[Row], headings: bool, named: bool) -> None:
    one_each = len({row.panel for row in rows}) == len(rows) > 1 and not headings
    names, y, panel = [], 0.0, None
    places: list[float] = []
    for row in rows:
        if headings and row.panel != panel:
            y += 0.5 if panel is not None else 0.0
            _beside(axes, style, -0.01, y, row.panel)
            y += 1
        panel = row.panel
        places.append(y)
        names.append(row.panel if one_each else f"{row.system}: {row.name}" if named else row.system)
        axes.axhline(y, color=style.grid, linewidth=0.8, zorder=0)
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [y, y], color=style.role("simulated").colour, **RANGE)
        if row.published is not None:
            hollow = {"markerfacecolor": style.paper, "markeredgecolor": style.ink, "markersize": 6.5}
            axes.plot([row.published], [y], "o", **hollow)
        if row.simulated is not None:
            axes.plot([row.simulated], [y], "o", color=style.role("simulated").colour, markersize=4)
        y += 1
    axes.set_yticks(places, names, color=style.ink, fontsize=8.5)
    axes.set_ylim(y - 0.4, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlim(left=0)


def _curves(
    sheet: Sheet, style: Style, judged: Judged, findings: Findings, colours: Mapping[str, str]
) -> None:
    """A panel per panel of the figure, a colour per system."""
    figure = judged.figure
    columns = _columns(figure)
    grid = sheet.subplots(ceil(len(figure.panels) / columns), columns, squeeze=False)
    over_rates = figure.reads == "crossing"
    for place, (name, panel) in enumerate(figure.panels.items()):
        axes = grid.flat[place]
        if len(figure.panels) > 1:
            axes.set_title(name)
        axes.grid(axis="both")
        for system, published in panel["systems"].items():
            if system not in colours:
                continue
            colour = colours[system]
            if over_rates:
                told = [point[:2] for point in published.get("points", [])]
            else:
                told = [(float(x), y) for x, y in published.items() if x not in NOT_NUMBERS]
            _pair(axes, told, findings.of(figure.number, name, system), colour)
        if over_rates:
            axes.set_ylim(0, 1)
            axes.axhline(figure.settings["threshold"], color=style.muted, **LIMIT)
            most = max(point[0] for table in panel["systems"].values() for point in table["points"])
            axes.set_xlim(0, most * 1.15)
            axes.set_xlabel("requests/s")
        else:
            values = figure.settings["values"]
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
            axes.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:.0e}"[0] in "25" else "")
            axes.set_xticks(values, values)
            axes.set_xlabel("block size")
    for axes in grid.flat[len(figure.panels) :]:
        axes.set_visible(False)
    sheet.supylabel("s/token" if over_rates else figure.settings["unit"], fontsize=10)
    _legend(sheet, style, grid.flat[0], colours)


def _attained(
    sheet: Sheet, style: Style, judged: Judged, findings: Findings, colours: Mapping[str, str]
) -> None:
    """Like `_curves`, for the share of requests within both limits at each rate per GPU."""
    figure = judged.figure
    grid = sheet.subplots(1, len(figure.panels), squeeze=False, sharey=True)
    for axes, (name, panel) in zip(grid.flat, figure.panels.items(), strict=True):
        axes.set_title(name)
        axes.grid(axis="both")
        for system, colour in colours.items():
            _pair(axes, panel["systems"][system]["points"], findings.of(figure.number, name, system), colour)
        axes.axhline(100 * GOAL, color=style.muted, **LIMIT)
        axes.set_ylim(0, 105)
        axes.set_xlim(left=0)
        axes.set_xlabel("requests/s per GPU")
    grid.flat[0].set_ylabel("% within both limits")
    _legend(sheet, style, grid.flat[0], colours)


def _pair(axes: Panel, published: Sequence[Any], found: Found | None, colour: str) -> None:
    """The paper's points over ours, for one system in a panel."""
    if found is not None and found.points:
        axes.plot(*zip(*found.points, strict=True), "-o", color=colour, markersize=3, linewidth=1.5)
    hollow = {"markerfacecolor": "none", "markersize": 5.5, "linewidth": 1}
    axes.plot(*zip(*published, strict=True), "--o", color=colour, **hollow)


def _legend(sheet: Sheet, style: Style, axes: Panel, colours: Mapping[str, str]) -> None:
    systems = [axes.plot([], [], color=each, linewidth=2.5, label=name)[0] for name, each in colours.items()]
    published = axes.plot([], [], "--o", label="published", linewidth=1, **_hollow(style))[0]
    simulated = axes.plot([], [], "-o", color=style.ink, markersize=3, label="simulated")[0]
    _below(sheet, [*systems, published, simulated])


def _legend_of_dots(sheet: Sheet, style: Style, axes: Panel, judged: Judged) -> None:
    marks = []
    if any(row.published is not None for row in judged.rows):
        marks += axes.plot([], [], "o", label="published", **_hollow(style))
    marks += axes.plot([], [], "o", color=style.role("simulated").colour, markersize=4, label="simulated")
    if any(row.low is not None for row in judged.rows):
        colour = style.role("simulated").colour
        marks += axes.plot([], [], color=colour, label="range over the open choices", **RANGE)
    _below(sheet, marks)


def _below(sheet: Sheet, marks: Sequence[Any]) -> None:
    close = {"fontsize": 8.5, "columnspacing": 1.1, "handlelength": 1.6, "handletextpad": 0.5}
    sheet.legend(handles=marks, loc="outside lower center", ncols=len(marks), **close)


def _hollow(style: Style) -> dict[str, Any]:
    return {"color": style.ink, "markerfacecolor": style.paper}
