"""tier: the contents of the memory below the GPU's over time, and transfers each way; a curve per system."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.over_time import Curve, longest, time_words
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.systems import System
from kvsim.reports.palette import Summary, figures, percent_text
from kvsim.reports.quantities import at
from kvsim.reports.rundir.run import Run
from kvsim.sim.models.catalog import GIB

HELD = "tier_held_bytes"


def has_tier(system: System) -> bool:
    """Whether all runs of a system have a tier."""
    return all(HELD in run.columns.timeline for run in system.runs)


def tier(systems: Sequence[System], choices: Choices) -> Figure:
    """Above its contents, below the loads from it and the stores to it."""
    shown, style = [system for system in systems if has_tier(system)], choices.style
    if not shown:
        raise CannotDraw(f"figure tier needs the column {HELD} in timeline.parquet: a run with a tier")
    figure = new_sheet(style, 5.6, _headline(shown))
    panels = figure.subplots(3, 1, sharex=True)
    looks = style.looks([system.parts for system in shown])
    for axes, title, column in (
        (panels[0], "held (GiB)", _held),
        (panels[1], "loaded (GB/s)", _loaded),
        (panels[2], "stored (GB/s)", _stored),
    ):
        for system, look in zip(shown, looks, strict=True):
            Curve.of(system, column).plot(axes, style, look)
        axes.set_title(title)
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
    panels[2].set(xlim=(0, longest(shown)), xlabel=time_words(shown, style))
    if len(shown) > 1 or not style.headlines:
        pieces.systems_below(figure, style, [system.name for system in shown], looks)
    return figure


def _held(run: Run) -> npt.NDArray[np.float64]:
    held: npt.NDArray[np.float64] = run.columns.timeline[HELD] / GIB
    return held


def _loaded(run: Run) -> npt.NDArray[np.float64]:
    return _rate(run, "tier_loaded_bytes")


def _stored(run: Run) -> npt.NDArray[np.float64]:
    return _rate(run, "tier_stored_bytes")


def _rate(run: Run, column: str) -> npt.NDArray[np.float64]:
    """GB per second from each row of the timeline to the next."""
    time_s, so_far = run.columns.timeline["time_s"], run.columns.timeline[column]
    lasted = np.diff(time_s)
    rates = np.divide(np.diff(so_far) / 1e9, lasted, out=np.zeros_like(lasted), where=lasted > 0)
    return np.append(rates, 0.0)


def _headline(systems: Sequence[System]) -> str:
    """The share of the prompts that each tier had, and how busy its links were."""
    shares = [system.number(lambda summary: _percent(summary, "hit_share")) for system in systems]
    if len(systems) > 1:
        listed = pieces.listed([system.name for system in systems], shares, percent_text)
        return f"Prompt tokens loaded from the tier: {listed}"
    if shares[0] is None:
        return f"{systems[0].name}: no prompt was looked up below."
    busy = systems[0].number(lambda summary: _percent(summary, "load_busy_share"))
    size = systems[0].number(lambda summary: _of_tier(summary, "capacity_bytes"))
    loads, whole = (None if found is None else found.mean for found in (busy, size))
    return (
        f"{systems[0].name}: {percent_text(shares[0].mean)} of the prompts come from "
        f"{figures(None if whole is None else whole / GIB)} GiB below; "
        f"loads keep the link busy {percent_text(loads)} of the time"
    )


def _of_tier(summary: Summary, name: str) -> float | None:
    return at("tier", name)(summary)


def _percent(summary: Summary, name: str) -> float | None:
    share = _of_tier(summary, name)
    return None if share is None else 100 * share
