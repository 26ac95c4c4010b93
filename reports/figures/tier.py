"""tier: the contents of GPU memory and of each tier below it, and transfers; a curve per system."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kvsim.reports.arrays import Floats
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.over_time import Curve, capacity, longest, slots_of, time_words
from kvsim.reports.figures.sheet import new_sheet, wrapped
from kvsim.reports.figures.systems import System
from kvsim.reports.links import links_in_words
from kvsim.reports.palette import count, figures, percent_text
from kvsim.reports.quantities import at, percent_at
from kvsim.reports.rundir.run import Run
from kvsim.reports.rundir.stack import HELD, held_by
from kvsim.sim.models.catalog import GIB


def has_tier(system: System) -> bool:
    """Whether all of a system's runs have a tier."""
    return all(HELD in run.columns.timeline for run in system.runs)


def tier(systems: Sequence[System], choices: Choices) -> Figure:
    """Contents of each memory from the GPU's down to the last tier; below, the GPU's loads and stores."""
    shown, style = [system for system in systems if has_tier(system)], choices.style
    if not shown:
        raise CannotDraw(f"figure tier needs the column {HELD} in timeline.parquet: a run with a tier")
    drawn = _panels(shown, _busy(shown) if style.headlines else "")
    figure = new_sheet(style, 1.4 * (1 + len(drawn)), _headline(shown))
    panels = figure.subplots(len(drawn), 1, sharex=True)
    looks = style.looks([system.parts for system in shown])
    for axes, (title, column) in zip(panels, drawn, strict=True):
        for system, look in zip(shown, looks, strict=True):
            if all(column(run) is not None for run in system.runs):
                Curve.of(system, column).plot(axes, style, look)
        axes.set_title(wrapped(title, int(style.width_in * 72 / (0.6 * style.type_pt))))
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
    panels[-1].set(xlim=(0, longest(shown)), xlabel=time_words(shown, style))
    if len(shown) > 1 or not style.headlines:
        pieces.systems_below(figure, style, [system.name for system in shown], looks)
    return figure


def _panels(systems: Sequence[System], busy: str) -> list[tuple[str, Callable[[Run], Any]]]:
    """The title of each panel, and its data for a run: None if the run lacks that tier."""
    names = dict.fromkeys(name for system in systems for name in held_by(system.first.columns.timeline))
    tiers = [(f"held by {name} (GiB)", partial(_held, name=name)) for name in names]
    if any(_by_gpu(system.first) is not None for system in systems):
        tiers.insert(0, ("held by the GPU, with free prefixes (GiB)", _by_gpu))
    loaded, stored = (partial(_rate, column=f"tier_{way}_bytes") for way in ("loaded", "stored"))
    return [*tiers, (f"loaded (GB/s){busy}", loaded), ("stored (GB/s)", stored)]


def _by_gpu(run: Run) -> Floats | None:
    """GiB that are allocated or hold a cached prefix, over all GPUs of a server; None if unknown."""
    size, server = run.config.get("kv_capacity"), run.config["scenario"]
    if run.config.get("pools") or not size:
        return None
    slot_bytes = size["kv_bytes_per_token"] / size["slots_per_token"] * server["tensor_parallel_size"]
    return (capacity(run) - slots_of(run, ("free", "external", "idle"))) * slot_bytes / GIB


def _held(run: Run, name: str) -> Floats | None:
    column = held_by(run.columns.timeline).get(name)
    return None if column is None else run.columns.timeline[column] / GIB


def _rate(run: Run, column: str) -> Floats:
    """GB per second between consecutive rows of the timeline."""
    time_s, so_far = run.columns.timeline["time_s"], run.columns.timeline[column]
    lasted = np.diff(time_s)
    rates = np.divide(np.diff(so_far) / 1e9, lasted, out=np.zeros_like(lasted), where=lasted > 0)
    return np.append(rates, 0.0)


def _headline(systems: Sequence[System]) -> str:
    """The share of prompt tokens that was loaded, and from where."""
    shares = [system.number(percent_at("tier", "hit_share")) for system in systems]
    if len(systems) > 1:
        listed = pieces.listed([system.name for system in systems], shares, percent_text)
        return f"Prompt tokens loaded from the tier: {listed}"
    (system,), (share,) = systems, shares
    if share is None:
        return f"{system.name}: no prompt was looked up below."
    below = f"{figures(_mean(system, 'capacity_bytes', 1 / GIB))} GiB below"
    tiers = list(held_by(system.first.columns.timeline))
    if len(tiers) > 1:
        names = " and ".join(f"the {name.partition(',')[0]}" for name in tiers[1:])
        below = f"the host; {count(_mean(system, 'promoted_tokens'))} tokens moved up to it from {names}"
    return f"{system.name}: {percent_text(share.mean)} of the prompts come from {below}"


def _busy(systems: Sequence[System]) -> str:
    """How busy loads kept the links; for one system only."""
    if len(systems) > 1:
        return ""
    busy = percent_text(_mean(systems[0], "load_busy_share", 100))
    links = links_in_words(systems[0].summaries, ["loads"])
    return ", ".join([f": the link to the host is busy {busy} of the time", *links])


def _mean(system: System, name: str, times: float = 1.0) -> float | None:
    """A tier statistic times a factor; None if a run lacks it."""
    found = system.number(at("tier", name))
    return None if found is None else found.mean * times
