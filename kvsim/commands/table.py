"""Run `sim table`: one table of any runs, comparisons, runs with several seeds, and sweeps."""

import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from kvsim.reports.rundir.run import Run, read_runs
from kvsim.reports.sweeps.place import KIND
from kvsim.reports.sweeps.table import FINISHED, numbers, read_table, write_csv, write_table
from kvsim.results import differing
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import read_marker

Row = dict[str, Any]
WAYS = ("tensor", "data", "pipeline")
"""Ways to spread a server over GPUs."""


def tabled(directories: Sequence[Path], out: Path | None, *, force: bool) -> None:
    """Write the table, or print it as CSV."""
    rows = rows_of(directories)
    if out is None:
        write_csv(rows, sys.stdout)
        return
    write_table(rows, out, force)
    print(f"{len(rows):,} runs written to {out}")


def rows_of(directories: Sequence[Path]) -> list[Row]:
    """A row per run, with its directory."""
    runs: list[Run] = []
    rows: list[Row] = []
    for directory in directories:
        marked = read_marker(directory) if directory.is_dir() else None
        if marked is None or marked.kind != KIND:
            runs += read_runs(directory)
        elif (directory / "table.parquet").is_file():
            rows += [{"run": str(directory), **row} for row in read_table(directory / "table.parquet")]
        else:
            raise KvsimError(f"{directory} is a sweep that is not done: carry it on with sim sweep")
    settings = differing([run.config for run in runs]) if runs else []
    return [_row(run, own) for run, own in zip(runs, settings, strict=True)] + rows


def _row(run: Run, own: Mapping[str, Any]) -> Row:
    alike = [{"replicas": run.config.get("fleet", {}).get("replicas", 1), "scenario": run.config["scenario"]}]
    gpus = sum(
        pool["replicas"] * prod(pool["scenario"].get(f"{way}_parallel_size", 1) for way in WAYS)
        for pool in run.config.get("pools", alike)
    )
    kept = {name: value for name, value in own.items() if not isinstance(value, list | dict)}
    ended = {"status": FINISHED, "reason": "", "gpus": gpus}
    return {"run": str(run.path), **kept, **ended, **numbers(run.summary.flat())}
