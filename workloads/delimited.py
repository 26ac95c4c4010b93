"""Columns of a CSV file as numbers: pyarrow reads well-formed files, a slower reader reports errors.

    tokens     whole numbers                                  374
    seconds    numbers                                        19440110.0
    time       date and time, as seconds from the earliest    2023-11-16 18:15:46.6805900, or with +00:00

Empty cells and the like become NaN. A file that pyarrow refuses is read again cell by cell; this reports the
first error with its line and column, or succeeds because Python is less strict. Columns that were not
requested are ignored.
"""

import csv
import math
import re
from array import array
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.workloads.lines import lines_of
from kvsim.workloads.usable import FloatColumn, all_possible, allowed, possible
from kvsim.workloads.values import shown

NOTHING = ("", "NaN", "nan", "NAN", "null", "NULL", "None", "NA", "N/A")
"""Cells without a value."""

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d)?)?)?)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_NO_TIME = np.iinfo(np.int64).min
"""Numpy's value for no time."""


def read_csv(path: str, columns: Mapping[str, str]) -> dict[str, FloatColumn]:
    """The named columns, each of a kind: `tokens`, `seconds` or `time`.

    Raises
    ------
    KvsimError
        A file that cannot be read, a duplicate column, a row of the wrong width, or a cell of the wrong kind.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(lines_of(path, file))
            header = [name.strip() for name in next(reader)]
            skip = reader.line_num
        for name in columns:
            if header.count(name) != 1:
                raise KvsimError(
                    f"trace {path}: column {name!r} must be there once, got {header.count(name)}"
                )
        zones = (None, "UTC") if "time" in columns.values() else (None,)
        for zone in zones:
            found = _well_formed(path, header, skip, columns, zone)
            if found is not None:
                return found
        return _cell_by_cell(path, columns)
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    except (csv.Error, StopIteration) as error:
        raise KvsimError(f"trace {path}, line 1: no row of names separated by commas ({error})") from error


def has_column(path: str, name: str) -> bool:
    """Whether the header has this column."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return name in [found.strip() for found in next(csv.reader(lines_of(path, file)), [])]
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    except csv.Error:
        return False


def _well_formed(
    path: str, header: list[str], skip: int, columns: Mapping[str, str], zone: str | None
) -> dict[str, FloatColumn] | None:
    """The columns, or None if anything is wrong; times must all have this zone, or all none."""
    import pyarrow as pa  # type: ignore[import-untyped]

    parts: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in columns}
    try:
        for batch in _batches(path, header, skip, columns, zone):
            for name, values in batch.items():
                parts[name].append(values)
    except (pa.ArrowException, ValueError, OSError):
        return None
    found: dict[str, FloatColumn] = {}
    for name, kind in columns.items():
        none = np.zeros(0, dtype=np.int64 if kind == "time" else np.float64)
        values = np.concatenate([none, *parts.pop(name)])
        found[name] = _seconds(values) if kind == "time" else values
        if kind != "time" and not all_possible(found[name], kind == "tokens"):
            return None
    return found


def _batches(
    path: str, header: list[str], skip: int, columns: Mapping[str, str], zone: str | None
) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
    """The columns, one part of the file at a time; times in nanoseconds."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    kinds = {"tokens": pa.float64(), "seconds": pa.float64(), "time": pa.timestamp("ns", zone)}
    places = {name: f"{header.index(name)}" for name in columns}
    with arrow_csv.open_csv(
        path,
        arrow_csv.ReadOptions(
            use_threads=False, skip_rows=skip, column_names=list(map(str, range(len(header))))
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types={places[name]: kinds[kind] for name, kind in columns.items()},
            include_columns=list(places.values()),
            null_values=NOTHING,
        ),
    ) as batches:
        for batch in batches:
            found = {}
            for name, column in zip(columns, batch.columns, strict=True):
                is_time = columns[name] == "time"
                values = column.cast(pa.int64()).fill_null(_NO_TIME) if is_time else column
                found[name] = values.to_numpy(zero_copy_only=False)
            yield found


class Parts(NamedTuple):
    """A CSV file, read one part at a time."""

    rows: int
    least: dict[str, float]
    """The smallest number in each column of the parts; infinity if there is none."""
    parts: Iterator[dict[str, FloatColumn]]


def csv_parts(path: str, columns: Mapping[str, str]) -> Parts | None:
    """Like `read_csv`, one part at a time; None if the slower reader must report an error.

    The whole file is read before the first part is returned, to find the earliest time and all errors.
    """
    import pyarrow as pa

    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(lines_of(path, file))
            header, skip = [name.strip() for name in next(reader)], reader.line_num
    except (OSError, csv.Error, StopIteration):
        return None
    if any(header.count(name) != 1 for name in columns):
        return None
    for zone in (None, "UTC") if "time" in columns.values() else (None,):
        rows, first = 0, np.iinfo(np.int64).max
        least = dict.fromkeys(columns, math.inf)
        try:
            for batch in _batches(path, header, skip, columns, zone):
                for name, values in batch.items():
                    if columns[name] == "time":
                        first = min(first, int(values[values != _NO_TIME].min(initial=first)))
                        least[name] = 0.0
                    elif all_possible(values, columns[name] == "tokens"):
                        least[name] = float(np.fmin.reduce(values, initial=least[name]))
                    else:
                        return None
                rows += len(values)
        except (pa.ArrowException, ValueError, OSError):
            continue
        return Parts(rows, least, _timed(_batches(path, header, skip, columns, zone), columns, first))
    return None


def _timed(
    batches: Iterator[dict[str, npt.NDArray[np.generic]]], columns: Mapping[str, str], first: int
) -> Iterator[dict[str, FloatColumn]]:
    """The batches, with times in seconds from the earliest."""
    for batch in batches:
        yield {
            name: np.where(values != _NO_TIME, (values - first) / 1e9, math.nan)
            if columns[name] == "time"
            else values
            for name, values in batch.items()
        }


def _cell_by_cell(path: str, columns: Mapping[str, str]) -> dict[str, FloatColumn]:
    """Read the columns, raising the first error."""
    found: dict[str, array[Any]] = {
        name: array("q" if kind == "time" else "d") for name, kind in columns.items()
    }
    for line, row in _rows(path):
        for name, kind in columns.items():
            cell = row[name].strip()
            try:
                value: float = nanoseconds(cell) if kind == "time" else _number(cell, kind == "tokens")
            except ValueError:
                must = "a date and time" if kind == "time" else allowed(kind == "tokens")
                place = f"trace {path}, line {line}, column {name}"
                raise KvsimError(f"{place}: must be {must}, got {shown(cell)}") from None
            found[name].append(value)
    columns_found = {name: np.array(values) for name, values in found.items()}
    return {
        name: _seconds(values) if columns[name] == "time" else values
        for name, values in columns_found.items()
    }


def _rows(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The number of each line, and its cells by name."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(lines_of(path, file))
        header = [name.strip() for name in next(reader)]
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise KvsimError(f"trace {path}, line {line}: {error}") from error
            if cells is None:
                return
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if len(cells) != len(header):
                must = f"must have {len(header)} values, as many as line 1 has names"
                raise KvsimError(f"trace {path}, line {line}: {must}, got {len(cells)}")
            yield line, dict(zip(header, cells, strict=True))


def _number(cell: str, whole: bool) -> float:
    if cell in NOTHING:
        return math.nan
    if "_" in cell or not cell.isascii():
        raise ValueError
    value = float(cell)
    if not possible(value, whole):
        raise ValueError
    return value


def nanoseconds(cell: str) -> int:
    """Nanoseconds since 1970; a time without a zone is UTC."""
    if cell in NOTHING:
        return _NO_TIME
    match = _TIME.fullmatch(cell)
    if not match:
        raise ValueError
    when, fraction, zone = match.groups()
    moment = datetime.fromisoformat(when + (zone or ""))
    since = (moment if zone else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    found = (since.days * 86_400 + since.seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))
    if abs(found) >= 2**63:
        raise ValueError
    return found


def _seconds(nanoseconds: npt.NDArray[np.generic]) -> FloatColumn:
    """Seconds since the earliest time; NaN for missing times."""
    values = nanoseconds.astype(np.int64)
    given = values != _NO_TIME
    if not given.any():
        return np.full(len(values), math.nan)
    since = values - values[given].min()
    return np.where(given, since / 1e9, math.nan)
