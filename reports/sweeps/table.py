"""The table of a sweep: a row per run, a column per varied setting and per number of the summary.

    request_rate  seed  status    reason  gpus  latency.ttft_s.p99  memory.average.token_percent  ...
    1.0           0     finished          2     0.081               12.3

Names include units. The wall-clock time is left out, so the same sweep always gives the same bytes. A run
that failed, or was impossible, has a reason instead of numbers.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsim.sim.errors import KvsimError
from kvsim.sim.files import tables
from kvsim.sim.files.reading import understood
from kvsim.sim.files.whole_file import whole_file

Row = Mapping[str, Any]
LEFT_OUT = (
    "simulation.",
    "notes",
    "pools",
    "replicas",
    "requests.rejected_reasons",
    "label",
    "fleet.",
    "slo.limits",
)
MAY_BE_NONE = ("memory.saturated", "cost.validated")
"""Parts of a summary that some runs lack; those have a single empty value."""
_PERCENT = ("memory.average.", "memory.saturated.", "memory.saved_by_sharing")
FINISHED, FAILED, IMPOSSIBLE = "finished", "failed", "impossible"


def numbers(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and categorical strings of a flat summary, under names with units."""
    return {
        f"{name}_percent" if name.startswith(_PERCENT) else name: value
        for name, value in flat.items()
        if not name.startswith(LEFT_OUT) and not isinstance(value, list | dict) and name not in MAY_BE_NONE
    }


def columns(rows: Sequence[Row]) -> list[str]:
    """The names of all columns, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_table(rows: Sequence[Row], path: Path, force: bool = False) -> None:
    """Write a table atomically: parquet or CSV, by the name's ending."""
    if path.suffix not in (".parquet", ".csv"):
        raise KvsimError(f"a table must be written to a file that ends with .parquet or .csv, got {path}")
    with whole_file(path, force=force) as part:
        if path.suffix == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                write_csv(rows, file)
        else:
            from pyarrow import parquet

            with part.open("wb") as file:
                parquet.write_table(arrow_table(rows), file, compression="zstd")


def write_csv(rows: Sequence[Row], file: Any) -> None:  # noqa: ANN401 - a text file
    """Write a table as CSV; missing values are empty."""
    names = columns(rows)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_said(row.get(name)) for name in names] for row in rows)


def arrow_table(rows: Sequence[Row]) -> Any:  # noqa: ANN401 - a pyarrow Table
    """The rows as a pyarrow table, each column of one type."""
    import pyarrow as pa

    return pa.table({name: _column([row.get(name) for row in rows]) for name in columns(rows)})


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table that `write_table` wrote as parquet; missing values are None."""
    with understood(str(path)):
        return tables.read_table(path, str(path)).to_pylist()


def _column(values: Sequence[Any]) -> Any:  # noqa: ANN401 - a pyarrow Array
    """One type for a column: strings if any is one, floats if any is one."""
    import pyarrow as pa

    known = {type(value) for value in values if value is not None}
    if known <= {bool}:
        kind = pa.bool_() if known else pa.float64()
    elif known <= {int}:
        kind = pa.int64()
    elif known <= {int, float}:
        kind = pa.float64()
    else:
        return pa.array([None if value is None else str(_said(value)) for value in values], pa.string())
    return pa.array(values, kind)


def _said(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else value
