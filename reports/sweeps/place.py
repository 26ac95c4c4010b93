"""The directory of a sweep; it exists from the first run on, so that the next command finds it.

    out/runs.jsonl       the finished runs, see journal.py
        sweep.json       the plan
        table.parquet    a row per run, when all are done; also as table.csv
        *.png            figures

One process works on it at a time. A stopped sweep is resumed; another sweep reuses the runs they share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvsim.reports.rundir.claims import claimed
from kvsim.reports.sweeps.journal import KEPT, NAME, Journal
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import add_files, mark, read_marker, remove_marked
from kvsim.sim.files.whole_file import explained

KIND = "sweep"


@contextmanager
def sweep_directory(path: Path, force: bool = False) -> Iterator[Journal]:
    """Claim the directory and yield its journal; with `force`, first remove an earlier sweep or run there.

    Raises
    ------
    KvsimError
        Another process is working there, or it contains something other than a sweep.
    """
    with claimed(path, force=True) as claim, explained(path, kept=KEPT):
        target = claim.target
        found = read_marker(target) if target.is_dir() else None
        if found is not None and (force or found.kind != KIND):
            if not force:
                raise KvsimError(f"output directory {path} is a {found.kind}; pass --force to replace it")
            remove_marked(target)
        target.mkdir(parents=True, exist_ok=True)
        if read_marker(target) is None:
            (target / NAME).touch()
            mark(target, KIND)
        add_files(target, [NAME])
        yield Journal(target / NAME)
