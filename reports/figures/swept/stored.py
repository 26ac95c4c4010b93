"""Redraw a stored sweep or capacity search in any style and format."""

from functools import partial
from pathlib import Path

from kvsim.reports.figures.sheet import save
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.swept import draw_sweep
from kvsim.reports.figures.swept.capacity import capacity
from kvsim.reports.figures.swept.fleet import fleet
from kvsim.reports.sweeps.capacity_table import UNITS
from kvsim.reports.sweeps.capacity_words import WORDS
from kvsim.reports.sweeps.stored import StoredSweep


def draw_stored(sweep: StoredSweep, part: Path, style: Style) -> list[Path]:
    """Draw into a directory; returns the files."""
    rows, answer = sweep.rows, sweep.answer
    if answer is None:
        return draw_sweep(rows, sweep.names, sweep.slo, part, style)
    labels, headline, below = answer["labels"], answer["answer"], answer["assumed"]
    if any(row.get("fleet_price_per_hour") is not None for row in rows):
        drawing = partial(fleet, rows, labels, headline, below, style)
    else:
        axis = UNITS[answer["find"]], WORDS[answer["find"]]
        drawing = partial(capacity, rows, labels, axis, headline, below, style)
    return save(part, "capacity", style, drawing)
