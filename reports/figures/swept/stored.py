"""A sweep or a search for capacity, read back from its directory, drawn in any style and format."""

from pathlib import Path

from kvsim.reports.figures.style import Style
from kvsim.reports.figures.swept import draw_sweep
from kvsim.reports.figures.swept.capacity import draw_capacity
from kvsim.reports.figures.swept.fleet import draw_fleet
from kvsim.reports.sweeps.capacity_table import UNITS
from kvsim.reports.sweeps.capacity_words import WORDS
from kvsim.reports.sweeps.stored import StoredSweep


def draw_stored(sweep: StoredSweep, part: Path, style: Style) -> list[Path]:
    """Draw into a directory; returns the files."""
    rows, answer = sweep.rows, sweep.answer
    if answer is None:
        return draw_sweep(rows, sweep.names, sweep.slo, part, style)
    said = answer["labels"], answer["answer"], answer["assumed"]
    if any(row.get("fleet_price_per_hour") is not None for row in rows):
        return draw_fleet(rows, *said, part, style)
    labels, headline, below = said
    axis = UNITS[answer["find"]], WORDS[answer["find"]]
    return draw_capacity(rows, labels, axis, headline, below, part, style)
