"""A profile that somebody else measured, as tables: its sources, its parts and how far off they are."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.reports.calibration.profile import Fit
from kvsim.reports.calibration.words import duration, percent, rate

BY_DATASHEET = "by the datasheet"


def elsewhere_report(fit: Fit) -> RenderableType:
    """All of it; there are no points of it, so there is nothing to draw."""
    content = fit.file.content
    lines = [
        f"{fit.file.name}: measured elsewhere, by {content['source']}; not by you, and not by kvsim",
        f"Licence of the tables: {content['licence']}.",
        f"Tables of {fit.file.date}. Kernels:",
        *(f"  {part}: {kernels}" for part, kernels in content["engine"].items()),
    ]
    return Group(
        Text(lines[0], style="bold"),
        *(Text(line) for line in lines[1:]),
        "",
        _parts_table(content["parts"]),
        "",
        *(Text(f"note: {note}", style="yellow") for note in _notes(content)),
    )


def _parts_table(parts: Mapping[str, Any]) -> RenderableType:
    columns = ("start", "bytes at", "held out", "median", "mean", "new shapes", "median")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("a launch of", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for name, part in parts.items():
        form, errors = part["form"], part["error"]
        cells = [duration(form["t0_s"]), rate(form["bandwidth_bytes_per_s"], "B/s")]
        apart, shapes = errors["held_out"], errors.get("new_shapes")
        if part.get("measured", True):
            cells += (
                [f"{apart['points']:,}", percent(apart["median"]), percent(apart["mean"])] if apart else []
            )
            cells += [f"{shapes['points']:,}", percent(shapes["median"])] if shapes else []
        else:
            cells.append(BY_DATASHEET)
        table.add_row(name.replace("_", " "), *cells)
    return table


def _notes(content: Mapping[str, Any]) -> Iterator[str]:
    for one in content["refused"]:
        yield f"{one['part'].replace('_', ' ')}: refused were {one['reason']}."
    yield "Whole steps were not measured: see the page How true is it for whole servers."
    yield "Errors are of rows, and of shapes, that entered no fit; then the same was fitted to these too."
    yield "Nothing was cached before any prompt that was measured: chunks behind a prefix follow the form."
