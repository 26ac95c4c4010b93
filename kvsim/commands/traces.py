"""What `sim traces show` does: a trace in numbers and pictures, and what prefix caches would hit."""

from dataclasses import asdict
from pathlib import Path

from kvsim.commands.run import opened
from kvsim.reports.listing import show
from kvsim.reports.rundir.writing import write_figures
from kvsim.reports.traces import draw, draw_miss_ratio, miss_ratio_table, show_table
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.traffic import Traffic
from kvsim.workloads.miss_ratio import miss_ratio as curve_of
from kvsim.workloads.statistics import QUANTILES, statistics


def trace_shown(
    traffic: Traffic, out: Path | None, *, force: bool, miss_ratio: bool, block_size: int | None
) -> None:
    """Print a trace's numbers, and draw it if asked."""
    if block_size is not None and not miss_ratio:
        raise KvsimError(f"block_size must be left out without miss_ratio, got {block_size}")
    lengths = opened(traffic).lengths
    curve = curve_of(lengths, block_size) if miss_ratio else None
    show(show_table(lengths.name, lengths.notes, asdict(statistics(lengths)), QUANTILES))
    if curve is not None:
        print()
        show(miss_ratio_table(curve))
    if out is None:
        return
    drawn = (lengths.prompt_tokens, lengths.output_tokens, lengths.arrival_s)

    def draw_all(part: Path) -> None:
        draw(part, lengths.name, *drawn)
        if curve is not None:
            draw_miss_ratio(part, lengths.name, curve)

    for path in write_figures(out, draw_all, force):
        print(path)
