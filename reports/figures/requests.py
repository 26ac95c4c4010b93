"""requests: how many are computed and how many wait, over time. batched: how many at once, a bar per run."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from reports import palette
from reports.figures import pieces
from reports.figures.choices import Choices
from reports.figures.pieces import name
from reports.figures.sheet import new_sheet, wrapped
from reports.rundir import Run


def requests(runs: Sequence[Run], choices: Choices) -> Figure:
    """The requests that are computed and those that wait, over time."""
    style = choices.style
    figure = new_sheet(style, 4.8 + 0.07 * len(runs), _requests_headline(runs))
    above, below = figure.subplots(2, 1, sharex=True)
    for column, axes in (("running", above), ("waiting", below)):
        axes.set_title(f"{column} requests")
        axes.grid(axis="y")
        for place, run in enumerate(runs):
            pieces.time_curve(axes, style, run, run.timeline[column], place)
        axes.set_xlim(0, pieces.longest(runs))
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        if not any(run.timeline[column].any() for run in runs):
            axes.set_yticks([0])
            pieces.say(axes, style, f"no request was ever {column}")
    below.set_xlabel("time (s)")
    if len(runs) > 1:
        pieces.runs_below(figure, style, [name(run) for run in runs])
    return figure


def _requests_headline(runs: Sequence[Run]) -> str:
    engines = [run.summary["engine"] for run in runs]
    means = [palette.number(engine.get("mean_running")) for engine in engines]
    if len(runs) == 1:
        mean, most = palette.figures(means[0]), palette.count(palette.number(engines[0].get("max_running")))
        return f"{name(runs[0])} computes {mean} requests at once on average, {most} at most"
    words = pieces.listed([name(run) for run in runs], means, palette.figures)
    return f"Requests computed at once, on average: {words}"


def batched(runs: Sequence[Run], choices: Choices) -> Figure:
    """The requests computed at once: the mean while somebody waited, else of the whole run; the most."""
    style = choices.style
    found = [_at_once(run) for run in runs]
    figure = new_sheet(style, 1.7 + 0.42 * len(runs), _batched_headline(runs, [mean for mean, _, _ in found]))
    axes = figure.subplots()
    axes.grid(axis="x")
    edge = style.paper if not style.grey_print else style.ink
    for row, (mean, most, _) in enumerate(found):
        look = style.look(row)
        how: Any = {"color": _fill(look.colour, style.grey_print), "hatch": look.hatch, "edgecolor": edge}
        axes.barh(row, mean or 0, 0.66, linewidth=0.53 * style.line, **how)
        if most is not None:
            axes.plot([most, most], [row - 0.33, row + 0.33], color=style.ink, linewidth=1.3 * style.line)
        words = f"{palette.figures(mean)}, at most {palette.count(most)}" if mean else "nothing ran"
        axes.annotate(
            words, (max(mean or 0, most or 0), row), (6, 0), textcoords="offset points", va="center"
        )
    names = [
        wrapped(name(run), 30) + ("" if saturated else "\n(whole run)")
        for run, (_, _, saturated) in zip(runs, found, strict=True)
    ]
    axes.set_yticks(range(len(runs)), names, color=style.ink)
    longest = max((max(mean or 0, most or 0) for mean, most, _ in found), default=0) or 1
    axes.set(xlim=(0, 1.03 * longest), ylim=(len(runs) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    everywhere = all(saturated for _, _, saturated in found)
    axes.set_xlabel("requests computed at once" + (", mean while requests wait" if everywhere else ", mean"))
    most_mark: Any = {"marker": "|", "markersize": 9, "markeredgewidth": 1.3 * style.line}
    marks = [Line2D([], [], color=style.ink, linestyle="", label="most at once", **most_mark)]
    pieces.legend_below(figure, marks)
    return figure


def _at_once(run: Run) -> tuple[float | None, float | None, bool]:
    """The mean, the most, and whether the mean is that of the saturated part."""
    engine = run.summary["engine"]
    _, saturated = palette.shares(run.summary)
    mean = palette.number(engine.get("mean_running_saturated")) if saturated else None
    if mean is None:
        return palette.number(engine.get("mean_running")), palette.number(engine.get("max_running")), False
    return mean, palette.number(engine.get("max_running")), True


def _fill(colour: str, grey_print: bool) -> str:
    """A tint, so that a hatch shows on it."""
    if not grey_print:
        return colour
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.45 * (255 - part)):02X}" for part in parts)


def _batched_headline(runs: Sequence[Run], means: Sequence[float | None]) -> str:
    known = [(mean, name(run)) for run, mean in zip(runs, means, strict=True) if mean]
    if not known:
        return "Nothing ran: no request was computed"
    (least, worst), (most, best) = min(known), max(known)
    if len(known) == 1 or least == most:
        return f"{best} computes {palette.figures(most)} requests at once"
    times = palette.figures(most / least)
    return f"{best} computes {palette.figures(most)} requests at once, {times} times as many as {worst}"
