"""A sweep or a search for capacity read back from its directory, to be drawn and reported again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.reports.rundir.formats import read_json
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.tables import read_table
from kvsim.sim.record.slo import Slo

ASKED, TABLE, ANSWER = "sweep.json", "table.parquet", "capacity.json"


@dataclass(frozen=True)
class StoredSweep:
    """The table, a row per run or per system; `names` are the settings that vary.

    `answer` is what a search for capacity said: `find`, `answer`, `assumed` and `labels`; None: a sweep.
    """

    path: Path
    rows: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    slo: Slo | None
    answer: Mapping[str, Any] | None


def is_sweep(directory: Path) -> bool:
    """Whether `sim sweep` or `sim capacity` wrote it."""
    return (directory / ASKED).is_file()


def read_sweep(directory: Path) -> StoredSweep:
    """Read back what they wrote; KvsimError where it is not done yet, or damaged."""
    if not (directory / TABLE).is_file():
        raise KvsimError(
            f"{directory} is a sweep that is not done: {TABLE} is missing; run its command again"
        )
    table = read_table(directory / TABLE, str(directory / TABLE), ("status",))
    names = [name for name in table.column_names[: table.column_names.index("status")] if name != "seed"]
    limits = read_json(directory / ASKED).get("slo")
    answer = read_json(directory / ANSWER) if (directory / ANSWER).is_file() else None
    lacking = (
        [] if answer is None else [k for k in ("find", "answer", "assumed", "labels") if k not in answer]
    )
    if lacking:
        raise KvsimError(f"{directory / ANSWER} is damaged: it lacks {', '.join(lacking)}")
    if answer is None and "limited_by" in table.column_names:
        raise KvsimError(
            f"{directory} lacks {ANSWER}: run its command again, which only writes what is missing"
        )
    slo = Slo.parse(limits) if isinstance(limits, str) else None
    return StoredSweep(directory, table.to_pylist(), names, slo, answer)
