"""One directory per seed, run in several processes, and their common files.

out/seed-0/        byte for byte what the command writes with only this seed and --no-plots
    seed-1/ ...
    config.json    the first workload, the seeds, the config of each
    summary.json   `runs`: the merged summary of each allocator; `differences` between them
    *.png          the usual figures; the seeds of an allocator count as one system
    seeds.png      the main numbers: a dot per seed, a bar for the mean and its interval
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvsim.reports.palette import Summary
from kvsim.reports.rundir.claims import Claim
from kvsim.reports.rundir.run import read_runs, seed_name
from kvsim.reports.rundir.whole import whole_directory
from kvsim.reports.rundir.writing import write_together
from kvsim.reports.seeds.intervals import CONFIDENCE, equal, merged
from kvsim.sim.options.outputs import Pictures

One = Callable[[int, Path | None], list[Summary]]
"""Runs one seed into a directory that it creates, or without output; returns a summary per allocator."""


def carry_out_seeds(
    directory: Path | Claim | None,
    one: One,
    seeds: Sequence[int],
    *,
    label: str,
    config: Mapping[str, Any],
    jobs: int,
    pictures: Pictures | None = None,
) -> list[list[Summary]]:
    """Run all seeds, atomically; returns summaries by seed, then by allocator.

    Parameters
    ----------
    directory : Path, Claim or None
        None writes nothing.
    one : callable
        Pickled if there are several processes, like its exceptions.
    label : str
        Label of the progress bar.
    config : mapping
        The config that the seeds share.
    jobs : int
        Processes, at least 1; this only changes how long it takes.
    pictures : Pictures, optional
        The style of figures; None draws none.
    """
    if directory is None:
        return _in_parallel(one, dict.fromkeys(seeds), min(jobs, len(seeds)), label)
    with whole_directory(directory, kind="seeds") as part:
        targets = {seed: part / seed_name(seed) for seed in seeds}
        runs = _in_parallel(one, targets, min(jobs, len(seeds)), label)
        write_together(part, {**config, "seeds": list(seeds)}, summary_of(seeds, runs))
        if pictures is not None:
            from kvsim.reports import figures  # late: it imports matplotlib
            from kvsim.reports.figures.seeds import draw_seeds

            style = figures.styled(pictures)
            figures.draw(read_runs(part), part, choices=figures.Choices(style))
            draw_seeds(runs, part, style)
    return runs


def summary_of(seeds: Sequence[int], runs: Sequence[Sequence[Summary]]) -> dict[str, Any]:
    """The contents of `summary.json` for several seeds."""
    from kvsim.reports.seeds.words import differences

    by_allocator = [list(each) for each in zip(*runs, strict=True)]
    return {
        "seeds": list(seeds),
        "confidence": CONFIDENCE,
        "depends_on_seed": not equal(runs),
        "runs": [merged(each) for each in by_allocator],
        "differences": [asdict(each) for each in differences(by_allocator)],
    }


def _in_parallel(one: One, targets: Mapping[int, Path | None], jobs: int, label: str) -> list[list[Summary]]:
    from kvsim.reports.processes import unordered
    from kvsim.reports.progress import progress

    found: dict[int, list[Summary]] = {}
    with (
        progress(label, len(targets), lambda: len(found), "seeds"),
        unordered(one, list(targets.items()), jobs) as results,
    ):
        for number, summaries in results:
            found[number] = summaries
    return [found[number] for number in range(len(targets))]
