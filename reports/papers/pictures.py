"""Published and simulated in one picture: points and lines of the paper hollow and dashed, ours filled."""

from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from reports import palette
from reports.figures import draw_picture
from reports.papers.checks import NOT_NUMBERS, Judged
from reports.papers.running import Findings

GREY = "#888888"


def draw(directory: Path, findings: Findings, results: Sequence[Judged]) -> dict[str, str]:
    """Draw each figure into the directory; returns the file's name by the figure's number."""
    files = {}
    for judged in results:
        figure = judged.figure
        name = f"figure{figure.number}.png"
        paint, height = _painter(judged, findings)
        headline = f"Figure {figure.number}: {figure.title}"
        draw_picture(directory / name, headline, height, paint)
        files[figure.number] = name
    return files


def _painter(judged: Judged, findings: Findings) -> Any:  # noqa: ANN401 - a function of a matplotlib Figure
    reads, panels = judged.figure.reads, len(judged.figure.panels)
    if reads == "value":
        return partial(_bars, judged=judged), 1.6 + 0.2 * len(judged.rows)
    if reads == "crossing" and judged.figure.settings.get("plot", True) is False:
        return partial(_bars, judged=judged), 1.6 + 0.2 * len(judged.rows)
    columns = min(panels, 3)
    height = 1.6 + 2.6 * ceil(panels / columns)
    return partial(_curves, judged=judged, findings=findings, columns=columns), height


def _bars(sheet: Any, judged: Judged) -> None:  # noqa: ANN401
    """A line per number: published hollow, simulated filled, the range over the open choices as a bar."""
    axes = sheet.subplots()
    names, y, panel = [], 0.0, None
    places: list[float] = []
    for row in judged.rows:
        if panel is not None and row.panel != panel:
            y += 0.6
        panel = row.panel
        places.append(y)
        several = len(judged.figure.panels) > 1
        what = "" if row.name in ("rate", "batched", "saved") else f", {row.name}"
        names.append(f"{row.panel + ', ' if several else ''}{row.system}{what}")
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [y, y], color="#9CC9E5", linewidth=5, solid_capstyle="butt")
        axes.plot([row.published], [y], "o", markerfacecolor="white", markeredgecolor="black", markersize=6)
        if row.simulated is not None:
            axes.plot([row.simulated], [y], "o", color=palette.series_colour(0), markersize=4)
        y += 1
    axes.set_yticks(places, names, color="black", fontsize=8)
    axes.set_ylim(y - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlim(left=0)
    axes.set_xlabel(judged.figure.settings["unit"])
    _legend(sheet, axes)


def _curves(sheet: Any, judged: Judged, findings: Findings, columns: int) -> None:  # noqa: ANN401
    """A panel per panel of the figure, a colour per system."""
    figure = judged.figure
    grid = sheet.subplots(ceil(len(figure.panels) / columns), columns, squeeze=False)
    systems = list(dict.fromkeys(system for panel in figure.panels.values() for system in panel["systems"]))
    over_rates = figure.reads == "crossing"
    for place, (name, panel) in enumerate(figure.panels.items()):
        axes = grid.flat[place]
        axes.set_title(name)
        axes.grid(axis="both")
        for system, published in panel["systems"].items():
            colour = palette.series_colour(systems.index(system))
            if over_rates:
                told = [point[:2] for point in published.get("points", [])]
            else:
                told = [(float(x), y) for x, y in published.items() if x not in NOT_NUMBERS]
            found = findings.of(figure.number, name, system)
            if found is not None and found.points:
                axes.plot(*zip(*found.points, strict=True), "-o", color=colour, markersize=3, linewidth=1.5)
            hollow = {"markerfacecolor": "none", "markersize": 5.5, "linewidth": 1}
            axes.plot(*zip(*told, strict=True), "--o", color=colour, **hollow)
        if over_rates:
            axes.set_ylim(0, 1)
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
    handles = [
        grid.flat[0].plot([], [], color=palette.series_colour(place), linewidth=2.5, label=system)[0]
        for place, system in enumerate(systems)
    ]
    _legend(sheet, grid.flat[0], handles)


def _legend(sheet: Any, axes: Any, first: Sequence[Any] = ()) -> None:  # noqa: ANN401
    published = axes.plot(
        [], [], "--o", color="black", markerfacecolor="white", linewidth=1, label="published"
    )[0]
    if first:
        simulated = axes.plot([], [], "-o", color="black", markersize=3, label="simulated")[0]
        marks = [*first, published, simulated]
    else:
        published.set_linestyle("")
        simulated = axes.plot([], [], "o", color=palette.series_colour(0), markersize=4, label="simulated")[0]
        spread = axes.plot([], [], color="#9CC9E5", linewidth=5, label="range over the open choices")[0]
        marks = [published, simulated, spread]
    sheet.legend(handles=marks, loc="outside lower center", ncols=4, fontsize=8.5)
