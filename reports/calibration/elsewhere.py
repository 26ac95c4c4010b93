"""A profile taken from measurements elsewhere, as tables: its sources, its parts and their errors."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvsim.reports.calibration.profile import Fit, shown_form
from kvsim.reports.calibration.words import duration, percent, rate
from kvsim.reports.fitting import FittingTable

BY_DATASHEET = "datasheet"


def elsewhere_report(fit: Fit) -> RenderableType:
    """The whole report; such a profile has no points to draw."""
    content = fit.file.content
    head = f"{fit.file.name}: measured elsewhere, by {content['source']}; not by you, and not by kvsim"
    return Group(
        Text(head, style="bold"),
        Text(f"Licence of the tables: {content['licence']}."),
        Text(f"Tables of {fit.file.date}. Kernels:"),
        *(Text(f"  {part}: {kernels}") for part, kernels in content["engine"].items()),
        "",
        _parts_table(content["parts"]),
        "",
        *(Text(f"note: {note}", style="yellow") for note in _notes(content)),
    )


def _parts_table(parts: Mapping[str, Any]) -> RenderableType:
    table = FittingTable((0, 1, 0, 0))
    table.add_column("a launch of", overflow="fold", min_width=11)
    table.add_numbers("start", "bytes at", "held out", "median", "mean", "shapes", "median")
    for name, part in parts.items():
        form, errors = shown_form(part), part["error"]
        cells = [duration(form["t0_s"]), rate(form["bandwidth_bytes_per_s"], "B/s")]
        apart, shapes = errors["held_out"], errors.get("new_shapes")
        if "scaled_from" in part:
            cells.append(f"{part['scaled_from']}'s, scaled")
        elif part.get("measured", True):
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
    yield "Whole steps were not measured: see the page How accurate is it? for whole servers."
    yield "Errors are of rows, and of shapes, that entered no fit; then the same was fitted to these too."
    if not _behind_prefixes(content["parts"]):
        yield "Nothing was cached before any measured prompt: chunks behind a prefix follow the form."


def _behind_prefixes(parts: Mapping[str, Any]) -> bool:
    """Whether prompts after a cached prefix were measured."""
    axes = [axis["name"] for table in parts["prefill"]["tables"] for axis in table["axes"]]
    return "prefix_tokens" in axes
