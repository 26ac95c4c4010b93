"""A file in kvsim's own format as columns by field, whatever their names in the file.

    rows.py       JSON lines, parquet or CSV -> columns by their names in the file
    columns.py    which column is which field
    moments.py    arrivals in seconds

A CSV file is usually a log, so rows of failed calls and gaps (no output, no prompt) are left out and counted
in notes, as in the public formats. In JSON lines and parquet the loader reports them as errors.
"""

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.workloads.columns import ARRIVAL, OUTPUT, PROMPT, column_of, named, parse_columns, printable
from kvsim.workloads.delimited import NOTHING
from kvsim.workloads.moments import in_seconds
from kvsim.workloads.rows import Rows, read_rows
from kvsim.workloads.usable import all_possible, unusable
from kvsim.workloads.values import shown

NAMES = ("session", "client")
"""Fields that are strings or integers."""

LISTS = ("segments", "prompt_token_ids", "drafts")


def read_own(path: str, columns: str | None = None, quick: bool = False) -> Rows:
    """Read a file; columns have kvsim's names, arrivals are in seconds.

    Parameters
    ----------
    columns : str or None
        The file's field names, as in `prompt_tokens=isl,arrival_ms=ts`.
    quick : bool
        As in rows.py.

    Raises
    ------
    KvsimError
        A file that cannot be read, names that cannot be resolved, or in CSV a cell that is not a number.
    """
    chosen = parse_columns(columns) if columns is not None else {}
    rows = read_rows(path, lambda name: column_of(name, chosen) is not None, quick)
    where = f"trace {path}" + (", line 1" if rows.texts else "")
    found = named(where, rows.places, chosen)
    said: list[str] = []
    dates = False
    values: dict[str, list[object]] = {}
    for name, column in found.columns.items():
        if name in rows.nanoseconds and column.field != ARRIVAL:
            raise KvsimError(f"{where}, row 0: {column.field} must be a number, got a time")
        values[column.field] = _of_cells(rows, name, column.field) if rows.texts else rows.columns[name]
        if column.field == ARRIVAL:
            dates = name in rows.nanoseconds or any(isinstance(value, str) for value in values[ARRIVAL])
            per_second = 10**9 if name in rows.nanoseconds else column.per_second
            values[ARRIVAL], said = in_seconds(rows, printable(name), values[ARRIVAL], per_second)
    called = {column.field: printable(name) for name, column in found.columns.items() if name != column.field}
    read = Rows(path, values, rows.unit, rows.numbers, called=called, notes=(*found.notes(dates), *said))
    return _usable(read) if rows.texts else read


def _of_cells(rows: Rows, name: str, field: str) -> list[object]:
    """The values in a CSV column: numbers, names, or dates if arrivals are dates."""
    cells = [str(cell).strip() for cell in rows.columns[name]]
    if field in LISTS:
        raise KvsimError(
            f"trace {rows.path}, line 1: {field} cannot be in CSV, which has no lists: "
            "use JSON lines or parquet"
        )
    if field in NAMES:
        whole = all(cell.isdecimal() and cell.isascii() for cell in cells if cell)
        return [(int(cell) if whole else cell) if cell else None for cell in cells]
    first = next((cell for cell in cells if cell not in NOTHING), "")
    if field == ARRIVAL and not _is_number(first):
        return [None if cell in NOTHING else cell for cell in cells]
    try:
        return [None if cell in NOTHING else _number(cell) for cell in cells]
    except ValueError:
        row = next(row for row, cell in enumerate(cells) if not (cell in NOTHING or _is_number(cell)))
        must = "a number" if field == ARRIVAL else "a whole number"
        raise rows.error(row, f"column {printable(name)}: must be {must}, got {shown(cells[row])}") from None


def _number(cell: str) -> int | float:
    if "_" in cell or not cell.isascii():
        raise ValueError
    return int(cell) if cell.isdecimal() else float(cell)


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _usable(rows: Rows) -> Rows:
    """The rows that are requests; notes count the others by reason."""
    lengths = [rows.columns[name] for name in (PROMPT, OUTPUT) if name in rows.columns]
    arrivals = rows.columns.get(ARRIVAL)
    columns = [np.array(values, dtype=np.float64) for values in lengths if _are_numbers(values)]
    if len(columns) < 2 or (arrivals is not None and not _are_numbers(arrivals)):
        return rows  # the loader reports what is wrong
    arrival_s = None if arrivals is None else np.array(arrivals, dtype=np.float64)
    if not all(all_possible(column, True) for column in columns):
        return rows
    if arrival_s is not None and np.isnan(arrival_s).all():
        arrival_s = None
    kept = np.ones(len(rows), dtype=bool)
    notes = []
    for reason, wrong in unusable(columns[0], columns[1], arrival_s, "output of 0 tokens"):
        if count := int(np.count_nonzero(wrong & kept)):
            notes.append(f"{count:,} row{'s' * (count > 1)} left out: {reason}.")
            kept &= ~wrong
    if not kept.any() and len(kept):
        why = "; ".join(note.removesuffix(".") for note in notes)
        raise KvsimError(
            f"trace {rows.path} must have at least one request that can be used, got none ({why})"
        )
    left = rows if kept.all() else rows.in_order(np.flatnonzero(kept).tolist())
    return Rows(
        left.path, left.columns, left.unit, left.numbers, called=left.called, notes=(*left.notes, *notes)
    )


def _are_numbers(values: list[object]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in values)
