"""Write runs, comparisons and figures to disk atomically."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsim.reports.rundir.claims import Claim
from kvsim.reports.rundir.formats import Columns, Table, plain, read_json, write_columns, write_json
from kvsim.reports.rundir.run import Run, Tables, seed_name
from kvsim.reports.rundir.whole import whole_directory
from kvsim.sim.files.marker import UNFINISHED, add_files, hidden, leftovers, mark, remove_leftover
from kvsim.sim.files.stopping import unstoppable
from kvsim.sim.files.whole_file import check_file, explained
from kvsim.sim.options.outputs import Pictures
from kvsim.sim.record.summary import Summary


def write_run(
    directory: Path | Claim,
    *,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    requests: Columns,
    timeline: Columns,
    steps: Columns | None = None,
    samples: Columns | None = None,
    events: Table | None = None,
    map: Table | None = None,
    files: Mapping[str, str] | None = None,
    pictures: Pictures | None = None,
    force: bool = False,
) -> Run:
    """Write one run atomically, and return it as `read_run` would.

    `files` maps names of further files to texts. `pictures` is the style of figures; None: none are drawn.
    `force` replaces an empty directory or one that only kvsim wrote, but nothing else.
    """
    run = _run(_path(directory), config, summary, requests, timeline)
    with whole_directory(directory, force) as part:
        _fill(part, run, {"steps": steps, "samples": samples, "events": events, "map": map}, files)
        if pictures is not None:
            _draw([run], part, pictures)
    return run


def write_comparison(
    directory: Path | Claim,
    runs: Sequence[Mapping[str, Any]],
    *,
    config: Mapping[str, Any],
    pictures: Pictures | None = None,
    force: bool = False,
) -> list[Run]:
    """Write several runs, each given as arguments of `write_run`, and their common files, atomically."""
    written = []
    with whole_directory(directory, force, "comparison") as part:
        for parts in runs:
            columns = dict(parts)
            extra = {name: columns.pop(name, None) for name in ("steps", "samples", "events", "map")}
            files = columns.pop("files", None)
            label = str(parts["summary"]["label"])
            written.append(_run(_path(directory) / label, **columns))
            (part / label).mkdir()
            _fill(part / label, written[-1], extra, files)
            mark(part / label, "run")
        write_json(plain(config), part / "config.json")
        write_json([run.summary.as_json() for run in written], part / "summary.json")
        if pictures is not None:
            _draw(written, part, pictures)
    return written


def _path(directory: Path | Claim) -> Path:
    return directory.path if isinstance(directory, Claim) else directory


def _run(
    path: Path, config: Mapping[str, Any], summary: Mapping[str, Any], requests: Columns, timeline: Columns
) -> Run:
    columns = Tables(requests, timeline)
    return Run(path, str(summary["label"]), plain(config), Summary(plain(summary)), columns)


def _fill(
    part: Path, run: Run, extra: Mapping[str, Table | None], files: Mapping[str, str] | None = None
) -> None:
    """Write the files of one run, except the figures."""
    write_json(run.config, part / "config.json")
    write_json(run.summary.as_json(), part / "summary.json")
    write_columns(run.columns.requests, part / "requests.parquet")
    write_columns(run.columns.timeline, part / "timeline.parquet")
    for name, columns in extra.items():
        if columns is not None:
            write_columns(columns, part / f"{name}.parquet")
    for name, text in (files or {}).items():
        (part / name).write_text(text, encoding="utf-8")


def _draw(runs: Sequence[Run], part: Path, pictures: Pictures) -> None:
    from kvsim.reports import figures  # late: it imports matplotlib

    figures.draw(runs, part, choices=figures.Choices(figures.styled(pictures)))


def write_together(part: Path, config: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Write the common files of several seeds beside their directories; `config` has each seed's config."""
    names = [seed_name(seed) for seed in config["seeds"]]
    configs = {name: read_json(part / name / "config.json") for name in names}
    write_json(plain({**config, "runs": configs}), part / "config.json")
    write_json(plain(summary), part / "summary.json")


def print_figures(
    directory: Path, draw: Callable[[Path, Any], object], pictures: Pictures, force: bool = False
) -> None:
    """Let `draw` fill a directory in a style, as `write_figures` does, and print the files."""
    from kvsim.reports.figures.style import styled

    style = styled(pictures)
    for path in write_figures(directory, lambda part: draw(part, style), force):
        print(path)


def write_figures(directory: Path, draw: Callable[[Path], object], force: bool = False) -> list[Path]:
    """Let `draw` fill a directory, new or not, atomically.

    Files of the same names are replaced if kvsim's marker lists them, others only with `force`.
    """
    if not directory.is_dir():
        with whole_directory(directory, force, "figures") as part:
            draw(part)
            names = sorted(path.name for path in part.iterdir() if not path.name.startswith("."))
        return [directory / name for name in names]
    with explained(directory):
        for _, left in leftovers(directory / "figures"):
            remove_leftover(left)
        empty, part = not any(directory.iterdir()), hidden(directory / "figures")
        try:
            part.mkdir()
            mark(part, UNFINISHED)
            draw(part)
            names = sorted(path.name for path in part.iterdir() if not path.name.startswith("."))
            for name in names:
                check_file(directory / name, force=force)
            with unstoppable():
                for name in names:
                    (part / name).replace(directory / name)
                shutil.rmtree(part)
                if empty:
                    mark(directory, "figures")
                add_files(directory, names)
        finally:
            with unstoppable():
                shutil.rmtree(part, ignore_errors=True)
    return [directory / name for name in names]
