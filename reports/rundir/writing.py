"""Runs, comparisons and figures written to disk: all or nothing."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvsim.reports.rundir.formats import Columns, Table, plain, read_json, write_columns, write_json
from kvsim.reports.rundir.run import Run, seed_name
from kvsim.reports.rundir.whole import explained, real, whole_directory


def write_run(
    directory: Path,
    *,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    requests: Columns,
    timeline: Columns,
    steps: Columns | None = None,
    samples: Columns | None = None,
    events: Table | None = None,
    map: Table | None = None,
    draw: bool = True,
    force: bool = False,
) -> Run:
    """Write one run, whole or not at all, and return it as `read_run` would.

    With `force` it takes the place of an earlier run or of an empty directory, never of anything else.
    """
    run = _run(directory, config, summary, requests, timeline)
    with whole_directory(directory, force) as part:
        _fill(part, run, {"steps": steps, "samples": samples, "events": events, "map": map})
        if draw:
            _draw(run.replicas or [run], part)
    return run


def write_comparison(
    directory: Path,
    runs: Sequence[Mapping[str, Any]],
    *,
    config: Mapping[str, Any],
    draw: bool = True,
    force: bool = False,
) -> list[Run]:
    """Write several runs, each as the arguments of `write_run`, and what they share: all or nothing."""
    written = []
    with whole_directory(directory, force) as part:
        for parts in runs:
            columns = dict(parts)
            extra = {name: columns.pop(name, None) for name in ("steps", "samples", "events", "map")}
            label = str(parts["summary"]["label"])
            written.append(_run(directory / label, **columns))
            (part / label).mkdir()
            _fill(part / label, written[-1], extra)
        write_json(plain(config), part / "config.json")
        write_json([run.summary for run in written], part / "summary.json")
        if draw:
            _draw(written, part)
    return written


def _run(
    path: Path, config: Mapping[str, Any], summary: Mapping[str, Any], requests: Columns, timeline: Columns
) -> Run:
    return Run(path, str(summary["label"]), plain(config), plain(summary), requests, timeline)


def _fill(part: Path, run: Run, extra: Mapping[str, Table | None]) -> None:
    """Write the files of one run, all but the figures."""
    write_json(run.config, part / "config.json")
    write_json(run.summary, part / "summary.json")
    write_columns(run.requests, part / "requests.parquet")
    write_columns(run.timeline, part / "timeline.parquet")
    for name, columns in extra.items():
        if columns is not None:
            write_columns(columns, part / f"{name}.parquet")


def _draw(runs: Sequence[Run], part: Path) -> None:
    from kvsim.reports import figures  # late: it imports matplotlib

    figures.draw(runs, part)


def write_together(part: Path, config: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Write what several seeds have in common beside their directories; `config` gets that of each."""
    names = [seed_name(seed) for seed in config["seeds"]]
    configs = {name: read_json(part / name / "config.json") for name in names}
    write_json(plain({**config, "runs": configs}), part / "config.json")
    write_json(plain(summary), part / "summary.json")


def write_figures(directory: Path, draw: Callable[[Path], object]) -> list[Path]:
    """Let `draw` fill a directory, new or not; files of the same names are replaced, all or none."""
    target = real(directory)
    if not target.is_dir():
        with whole_directory(directory) as part:
            draw(part)
        return sorted(directory.iterdir())
    with explained(directory), TemporaryDirectory(prefix=".figures-", dir=target) as part_name:
        part = Path(part_name)
        draw(part)
        return [path.replace(directory / path.name) for path in sorted(part.iterdir())]
