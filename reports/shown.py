"""Format a number of several systems, with its spread, and find the best systems.

A system is a list of summaries, one per seed.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean

from kvsim.reports.palette import Shown
from kvsim.reports.quantities import Quantity, at
from kvsim.reports.ranked import System
from kvsim.reports.seeds.intervals import difference, interval
from kvsim.reports.seeds.words import with_spread


def occurs(quantity: Quantity, systems: Sequence[System]) -> bool:
    """Whether a number is shown; a rare one only if some run has a nonzero value."""
    return not quantity.rare or any(quantity.read(summary) for seeds in systems for summary in seeds)


def shown(quantity: Quantity, seeds: System) -> str:
    """The number of a system; with several seeds, their mean with its spread."""
    return with_spread(quantity.text, interval([quantity.read(summary) for summary in seeds]))


def told(seeds: System, text: Shown, *path: str, times: float = 1.0) -> str:
    """The number at this path of the summaries, with its spread; both are multiplied by `times`."""
    values = list(map(at(*path), seeds))
    return with_spread(text, interval([None if value is None else value * times for value in values]))


def noted(of: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """All notes of some runs, each once, behind the names of its runs unless those are all of them."""
    whose: dict[str, dict[str, None]] = {}
    everybody = set()
    for name, notes in of:
        everybody.add(name)
        for note in notes:
            whose.setdefault(str(note), {})[name] = None
    return [note if who.keys() == everybody else f"{', '.join(who)}: {note}" for note, who in whose.items()]


def stars(quantity: Quantity, systems: Sequence[System], may_win: Sequence[bool]) -> list[bool]:
    """Mark systems that may win and print the best number, or differ only by seed noise; none if all do.

    The only system that has the number is not best: a run without waiting has no waste while requests waited.
    """
    columns = [[quantity.read(summary) for summary in seeds] for seeds in systems]
    means = {
        place: fmean(value for value in column if value is not None)
        for place, column in enumerate(columns)
        if may_win[place] and None not in column
    }
    if quantity.best is None or len(means) < 2:
        return [False] * len(systems)
    top = quantity.best(list(means.values()))
    best = next(columns[place] for place, mean in means.items() if mean == top)
    found = [
        may and _equal(column, best, quantity.text) for column, may in zip(columns, may_win, strict=True)
    ]
    return [each and not all(found) for each in found]


def _equal(one: Sequence[float | None], best: Sequence[float | None], text: Shown) -> bool:
    if len(one) == len(best) == 1:
        return text(one[0]) == text(best[0])
    apart = difference(one, best)
    return apart is not None and apart.holds(0.0)
