"""Run `sim traces show`: a trace in numbers and figures, and the hits of prefix caches."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kvsim.commands.run import opened
from kvsim.reports.listing import show
from kvsim.reports.miss_ratio import Misses, miss_ratio_table, write_numbers
from kvsim.reports.processes import unordered
from kvsim.reports.progress import progress
from kvsim.reports.rundir.writing import print_figures
from kvsim.reports.traces import draw, show_table
from kvsim.sim.errors import KvsimError
from kvsim.sim.eviction import USUAL, evictions_named, hits_by_size
from kvsim.sim.options.outputs import Pictures
from kvsim.sim.options.traffic import Traffic
from kvsim.workloads.eviction import MOST_LOOKUPS, capacities, requests
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.miss_ratio import cut, lru_curve
from kvsim.workloads.statistics import QUANTILES, statistics


def trace_shown(
    traffic: Traffic,
    out: Path | None,
    pictures: Pictures,
    *,
    force: bool,
    miss_ratio: bool,
    block_size: int | None,
    eviction: str | None,
) -> None:
    """Print a trace's numbers, and draw it if requested."""
    for name, value in (("block_size", block_size), ("eviction", eviction)):
        if value is not None and not miss_ratio:
            raise KvsimError(f"{name} must be left out without miss_ratio, got {value}")
    lengths = opened(traffic).lengths
    misses = (
        missed(lengths, block_size, USUAL if eviction is None else eviction.split(","))
        if miss_ratio
        else None
    )
    show(show_table(lengths.name, lengths.notes, asdict(statistics(lengths)), QUANTILES))
    if misses is not None:
        print()
        show(miss_ratio_table(misses))
    if out is None:
        return
    from kvsim.reports.figures.miss_ratio import draw_miss_ratio
    from kvsim.reports.figures.style import Style

    tokens = lengths.prompt_tokens, lengths.output_tokens

    def draw_all(part: Path, style: Style) -> None:
        draw(part, lengths.name, tokens, lengths.arrival_s, style)
        if misses is not None:
            write_numbers(part, lengths.name, misses)
            draw_miss_ratio(misses, lengths.name, part, style)

    print_figures(out, draw_all, pictures, force)


def missed(
    lengths: Lengths, block_size: int | None, policies: Sequence[str], jobs: int | None = None
) -> Misses:
    """Hits of prefix caches: LRU at every size, other policies at a few."""
    names = [each.name for each in evictions_named(policies)]
    simulated = [name for name in names if name != "lru"]
    prompts = cut(lengths, block_size, *([MOST_LOOKUPS] if simulated else []))
    curve = lru_curve(prompts)
    sizes = capacities(prompts)
    tokens = [size * prompts.block_tokens for size in sizes]
    found = {"lru": [float(share) for share in curve.hit_ratio(tokens)]}
    chains = requests(lengths, prompts) if simulated else []
    done = 0
    with (
        progress(lengths.name, len(simulated), lambda: done, "policies"),
        unordered(
            hits_by_size, [(name, chains, sizes) for name in simulated], jobs or os.cpu_count() or 1
        ) as results,
    ):
        for place, hits in results:
            done += 1
            found[simulated[place]] = [each * prompts.block_tokens / prompts.prompt_tokens for each in hits]
    return Misses(curve, tokens, {name: found[name] for name in names})
