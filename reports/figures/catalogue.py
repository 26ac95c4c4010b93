"""All figures by name, and how to draw some of them into a directory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from kvsim.reports.figures import (
    arena,
    fairness,
    hand_over,
    latency,
    ledger,
    lengths,
    occupancy,
    ranking,
    replicas,
    requests,
    scaling,
    seeds,
    sweeps,
    tier,
)
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import drawn_in, save, sign
from kvsim.reports.figures.systems import System, first_words, last_words, none_served, systems
from kvsim.reports.rundir.run import Run
from kvsim.sim.errors import KvsimError, unknown

Draw = Callable[[Sequence[System], Choices], Figure]


@dataclass(frozen=True)
class Entry:
    """A figure: the function that draws it, a description in one line, whether it shows served requests."""

    draw: Draw
    about: str
    of_served: bool = True


FIGURES: dict[str, Entry] = {
    "memory": Entry(ledger.memory, "the ledger over time, stacked to 100 %"),
    "utilisation": Entry(occupancy.utilisation, "which share of the memory holds tokens, over time"),
    "fragmentation": Entry(occupancy.fragmentation, "what is free over time, and its largest piece"),
    "waste": Entry(ledger.waste, "the ledger as one bar per system"),
    "ranking": Entry(ranking.ranking, "many systems, the fastest first: the ledger and three numbers each"),
    "replicas": Entry(
        replicas.replicas, "a fleet by replica: the range of KV memory in use, heat maps over time"
    ),
    "tier": Entry(
        tier.tier, "what the memory and each tier below it hold over time, and what moves each way"
    ),
    "hand-over": Entry(
        hand_over.hand_over, "prefill and decode apart: what is held over time, and where first tokens wait"
    ),
    "scaling": Entry(scaling.scaling, "load, replicas and attainment over time, when replicas come and go"),
    "batched": Entry(requests.batched, "how many requests are computed at once"),
    "requests": Entry(requests.requests, "how many requests run and wait, over time"),
    "latency": Entry(latency.latency, "the distributions of four latencies"),
    "throughput": Entry(sweeps.throughput, "latency over the load, from runs at several rates"),
    "block-size": Entry(sweeps.block_size, "latency, waste and throughput over the block size"),
    "lengths": Entry(lengths.lengths, "the lengths of prompts and answers", of_served=False),
    "fairness": Entry(
        fairness.fairness, "service by client over time; of several runs, how far clients were apart and TTFT"
    ),
    "seeds": Entry(seeds.seeds, "the main numbers, a dot per seed, with the interval of the mean"),
    "map": Entry(arena.memory_map, "which request holds which slots at one instant"),
}
"""In display order."""

_SHOWN_BY = {"at_s": ("map",), "latency": ("throughput", "block-size")}
"""Choice -> the figures that use it."""

USUAL = ("memory", "waste", "requests", "latency")
"""The figures of every run and every comparison."""
SOMETIMES: dict[str, Callable[[System], bool]] = {
    "replicas": lambda system: system.is_fleet,
    "fairness": fairness.has_clients,
    "tier": tier.has_tier,
    "hand-over": hand_over.is_apart,
    "scaling": scaling.has_scaling,
}
"""Further figures of a run or comparison -> whether it has the data for them."""
MANY, OF_MANY = 8, ("ranking",)
"""Figures of a comparison of more than MANY systems, whose curves could not be told apart."""


def check(names: Sequence[str] | None) -> None:
    """Raise KvsimError unless each name is the name of a figure."""
    for name in names or ():
        if name not in FIGURES:
            raise unknown("figure", name, list(FIGURES))


def picture(runs: Sequence[Run], name: str, choices: Choices) -> Figure:
    """One figure of these runs, for a notebook or for saving; KvsimError if they lack its data."""
    with drawn_in(choices.style):
        figure = _signed(FIGURES[name], systems(runs), choices)
        figure.draw_without_rendering()  # lay it out while the style is active
    return figure


def _signed(entry: Entry, found: Sequence[System], choices: Choices) -> Figure:
    """The figure, with rejections in its headline, alone if nothing was served, and the clock below."""
    figure = entry.draw(found, choices)
    alone = entry.of_served and none_served(found)
    sign(figure, choices.style, first_words(found), last_words(found), alone=alone)
    return figure


def draw(
    runs: Sequence[Run],
    directory: Path,
    names: Sequence[str] | None = USUAL,
    choices: Choices | None = None,
) -> list[Path]:
    """Draw figures of these runs into the directory; returns the files in display order.

    Parameters
    ----------
    runs : sequence of Run
        One run, or the runs to compare; at least one. Runs that differ only in the seed are one system.
    directory : Path
        An existing directory.
    names : sequence of str, optional
        Figure names; KvsimError if these runs lack the data for one. None: all that have data.
    choices : Choices, optional
        The style with its file formats, and the settings of individual figures.
    """
    if not runs:
        raise KvsimError("runs to draw must be at least one, got 0")
    choices = choices or Choices()
    check(names)
    found = systems(runs)
    if names is USUAL:
        more = [name for name, shows in SOMETIMES.items() if any(map(shows, found))]
        names = OF_MANY if len(found) > MANY else (*USUAL, *more)
    drawn: dict[str, list[Path]] = {}
    refused: dict[str, CannotDraw] = {}
    for name, entry in FIGURES.items():
        if names is None or name in names:
            try:
                drawn[name] = save(directory, name, choices.style, partial(_signed, entry, found, choices))
            except CannotDraw as error:
                if names is not None:
                    raise
                refused[name] = error
    for option, figures in _SHOWN_BY.items():
        if getattr(choices, option) is not None and not drawn.keys() & set(figures):
            left_out = (
                f"{option.removesuffix('_s')} must be left out: no figure {' or '.join(figures)} is drawn"
            )
            raise refused.get(figures[0]) or KvsimError(left_out)
    return [path for paths in drawn.values() for path in paths]
