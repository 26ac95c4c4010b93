"""Traces as tables and figures: the list of all, one in numbers, one in figures.

lengths.png     the distributions of prompt and answer lengths, separate and joint
arrivals.png    requests per second over the trace, and the gaps between requests
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.text import Text

from kvsim.reports.fitting import FittingTable, facts_table
from kvsim.reports.palette import count, figures

if TYPE_CHECKING:
    from kvsim.reports.figures.style import Style

Facts = Mapping[str, Any]
"""What workloads/listing.py or workloads/statistics.py says about a trace."""


def list_tables(traces: Iterable[Facts]) -> Group:
    """All traces: their numbers, then their descriptions and sources."""
    traces = list(traces)
    numbers = FittingTable.of(
        ("trace", "rows", "prompt", "output", "span", "req/s", "CV", "here"), map(_numbers, traces)
    )
    origins = FittingTable.of(
        ("trace", "licence", "what it is, and its source"),
        map(_origin, traces),
        words=("licence", "what it is, and its source"),
    )
    return Group(numbers, Text(""), origins)


def _numbers(each: Facts) -> tuple[str, ...]:
    return (
        each["name"],
        count(each["rows"]),
        figures(each["prompt_tokens"]),
        figures(each["output_tokens"]),
        _span(each["span_s"]),
        figures(each["requests_per_s"]),
        figures(each["burstiness"]),
        each["here"],
    )


def _origin(each: Facts) -> tuple[str, ...]:
    said = [each["about"], *(each[key] for key in ("source", "checksum") if each[key])]
    return each["name"], each["licence"], "; ".join(said)


def show_table(name: str, notes: Sequence[str], found: Facts, quantiles: Sequence[float]) -> Group:
    """One trace: its requests' lengths, arrivals and shared prefixes."""
    heads = ("tokens", "mean", "min", *(f"p{100 * each:.0f}" for each in quantiles), "max")
    rows = []
    for label in ("prompt", "output"):
        spread = found[f"{label}_tokens"]
        values = map(count, (spread["least"], *spread["quantiles"], spread["most"]))
        rows.append((label, figures(spread["mean"]), *values))
    arrivals = "the trace has none"
    if found["requests_per_s"] is not None:
        arrivals = f"{_span(found['span_s'])}, {figures(found['requests_per_s'])} requests/s"
    elif found["span_s"] is not None:
        arrivals = "all at once"
    shared = "none known"
    if found["shared"] is not None:
        shared = f"{100 * found['shared']:.1f} % of prompt tokens also begin an earlier request"
        if found["shared_rows"] < found["rows"]:
            shared += f" (first {count(found['shared_rows'])} rows)"
    facts = (
        ("rows", count(found["rows"])),
        ("arrivals", arrivals),
        ("burstiness", f"{figures(found['burstiness'])} (CV of gaps; Poisson: 1)"),
        ("shared", shared),
        ("sessions", count(found["sessions"])),
    )
    head = Text(name, style="bold")
    lengths = FittingTable.of(heads, rows)
    return Group(head, *(Text(note) for note in notes), "", lengths, "", facts_table(facts))


def draw(
    directory: Path,
    name: str,
    tokens: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    arrival_s: npt.NDArray[np.float64] | None,
    style: "Style",
) -> list[Path]:
    """Draw the figures of a trace into an existing directory; arrivals only if it has any."""
    from kvsim.reports.figures import draw_picture
    from kvsim.reports.figures.arrivals import paint_arrivals
    from kvsim.reports.figures.lengths import lengths_headline, paint_lengths

    prompt_tokens, output_tokens = tokens
    headline = lengths_headline(name, prompt_tokens, output_tokens)
    paint = partial(paint_lengths, prompt=prompt_tokens, output=output_tokens)
    paths = draw_picture(directory, "lengths", style, 3.6, headline, paint)
    if arrival_s is not None and len(arrival_s) > 1 and arrival_s[-1] > arrival_s[0]:
        gaps = np.diff(arrival_s)
        rate, variation = len(gaps) / (arrival_s[-1] - arrival_s[0]), gaps.std() / gaps.mean()
        headline = f"{name}: {figures(float(rate))} requests/s, burstiness {figures(float(variation))}"
        scale, unit = _unit(float(arrival_s[-1]))
        paint = partial(paint_arrivals, arrival_s=arrival_s, scale=scale, unit=unit)
        paths += draw_picture(directory, "arrivals", style, 3.6, headline, paint)
    return paths


def _unit(longest_s: float) -> tuple[float, str]:
    """The unit for a time axis: its length in seconds, and its name."""
    for least, scale, name in ((3 * 86_400, 86_400, "days"), (3 * 3_600, 3_600, "hours"), (600, 60, "min")):
        if longest_s >= least:
            return float(scale), name
    return 1.0, "s"


def _span(span_s: float | None) -> str:
    if span_s is None:
        return "-"
    scale, unit = _unit(span_s)
    return f"{figures(span_s / scale)} {unit}"
