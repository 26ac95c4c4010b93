"""ranking: many systems in one figure, fastest first: the memory of each, and three numbers."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports import palette
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import System, rankable, shares_of_all, short
from kvsim.reports.palette import figures
from kvsim.reports.quantities import MEAN_RUNNING, REQUESTS_PER_S
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.seeds.words import with_spread

ROW_IN = 0.27
"""Height of a row."""


def ranking(systems: Sequence[System], choices: Choices) -> Figure:
    """A thin bar per system, sorted by requests/s, with requests/s, running requests and waste."""
    if len(systems) < 2:
        count = sum(len(system.runs) for system in systems)
        got = f"{count} run{'s' * (count != 1)} of one"
        raise CannotDraw(f"figure ranking needs runs of two or more systems, got {got}")
    style = choices.style
    shares, wastes, saturated = shares_of_all(systems)
    speeds = [system.number(REQUESTS_PER_S.read) for system in systems]
    order = sorted(range(len(systems)), key=lambda place: -(speeds[place].mean if speeds[place] else 0.0))
    figure = new_sheet(style, 1.9 + ROW_IN * len(systems), _headline(systems, order))
    axes = figure.subplots(subplot_kw={"axes_class": Axes})  # moves text beside bars with them
    summaries = [run.summary for system in systems for run in system.runs]
    kinds = palette.kinds_of(summaries)
    for row, place in enumerate(order):
        percent = {kind: shares[place][kind] for kind in kinds}
        served = pieces.stacked_bar(axes, style, row, percent, 0.76, 0.4 * style.line) and speeds[place]
        _beside(axes, style, row, _numbers(systems[place], wastes[place] if served else None))
    _beside(axes, style, -1.0, {name: name for name in _numbers(systems[0], None)}, color=style.muted)
    names = [short(systems[place].name, 16 if style.narrow else 24) for place in order]
    pieces.bars_named(axes, style, range(len(order)), names)
    ticks = (0, 50, 100) if style.narrow else (0, 25, 50, 75, 100)
    axes.set(xlim=(0, 100), ylim=(len(order) - 0.5, -0.5), xticks=ticks)
    pieces.memory_shares(axes, figure, style, summaries, saturated)
    return figure


def _numbers(system: System, waste: Interval | None) -> dict[str, str]:
    at_once = system.number(MEAN_RUNNING.read)
    speed = system.number(REQUESTS_PER_S.read)
    return {
        "req/s": figures(speed.mean if speed else None),
        "at once": figures(at_once.mean if at_once and speed else None),
        "waste": palette.percent_text(waste.mean if waste else None),
    }


def _beside(axes: Axes, style: Style, row: float, said: dict[str, str], **how: Any) -> None:  # noqa: ANN401
    """Write a row of the columns to the right of the bars; a narrow figure omits the second."""
    place: Any = {"textcoords": "offset points", "ha": "right", "va": "center", "annotation_clip": False}
    shown = [text for name, text in said.items() if not (style.narrow and name == "at once")]
    for column, text in enumerate(shown, 1):
        offset = 4.8 * column * style.small_pt, 0
        axes.annotate(text, (100, row), offset, fontsize=style.small_pt, **place, **how)


def _headline(systems: Sequence[System], order: Sequence[int]) -> str:
    served = [systems[place] for place in order if systems[place].number(REQUESTS_PER_S.read)]
    idle = len(order) - len(served)
    if not served:
        return "None of them can serve a single request"
    fastest, slowest = served[0], served[-1]
    most, least = (with_spread(figures, each.number(REQUESTS_PER_S.read)) for each in (fastest, slowest))
    if not rankable(systems):
        return f"Requests per second, under different loads: {least} to {most}"
    rest = f"; {idle} none" if idle else ""
    if most == least and len(served) > 1:
        return f"{palette.everybody([each.name for each in served])} finish {most} requests per second{rest}"
    return f"{fastest.name} finishes {most} requests per second, {slowest.name} {least}{rest}"
