"""A trace file as columns of plain values: JSON lines, parquet or CSV, detected from its beginning.

    {"prompt_tokens": 9, "n": 2}           prompt_tokens   9      4
    {"prompt_tokens": 4}            ->     n               2      None

A missing or null field is None. The caller chooses the fields and interprets their values; of the other
fields only the names are kept.
"""

import io
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from json import JSONDecodeError, JSONDecoder
from types import ModuleType
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.tables import opened_table
from kvsim.workloads.csv_rows import delimiter_of, read_cells
from kvsim.workloads.lines import LONGEST_LINE, lines_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PARQUET_MAGIC = b"PAR1"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST_QUICK_BYTES = 1 << 30
"""Larger files are read line by line, in less memory."""
EXACT_INTEGERS = 2.0**53
LONGEST_NAMES = 1 << 16
"""Bytes read to detect whether the first line is a row of names."""

Wanted = Callable[[str], bool]
"""Whether to read a field of that name."""


@dataclass(frozen=True)
class Rows:
    """The contents of a file.

    Attributes
    ----------
    path : str
        The file, as the user named it.
    columns : dict of str to list
        For each field that occurs, a plain value or None per row.
    unit : str
        How the file numbers its rows: `line`, from 1, or `row`, from 0.
    numbers : sequence of int
        The number of each row in the file.
    places : mapping of str to str
        All names in the file -> where each occurs first, for errors.
    texts : bool
        Whether all values are strings, as in CSV.
    nanoseconds : frozenset of str
        Columns that are times in nanoseconds.
    called : mapping of str to str
        Columns that have another name in the file.
    notes : tuple of str
        Notes on how the file was read.
    """

    path: str
    columns: dict[str, list[object]]
    unit: str
    numbers: Sequence[int]
    places: Mapping[str, str] = field(default_factory=dict)
    texts: bool = False
    nanoseconds: frozenset[str] = frozenset()
    called: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def error(self, row: int, message: str) -> KvsimError:
        """An error with its place in the file and the file's name for the field."""
        name = message.partition(" ")[0]
        if name in self.called:
            message = f"{self.called[name]} ({name}){message.removeprefix(name)}"
        return KvsimError(f"trace {self.path}, {self.unit} {self.numbers[row]}: {message}")

    def in_order(self, order: Sequence[int]) -> "Rows":
        """The same rows in another order."""
        columns = {name: [values[row] for row in order] for name, values in self.columns.items()}
        return replace(self, columns=columns, numbers=[self.numbers[row] for row in order])


def read_rows(path: str, wanted: Wanted, quick: bool = False) -> Rows:
    """Read the wanted fields of a file.

    Parameters
    ----------
    path : str
        The file.
    wanted : callable
        Whether to read a field of that name.
    quick : bool
        Read JSON lines by pyarrow where it finds the same values. Errors do not have their lines then, and
        may quote 3 as 3.0: read once more without it for the message.

    Raises
    ------
    KvsimError
        A file that cannot be read, is not JSON lines, parquet or CSV, or has no rows.
    """
    try:
        with open(path, "rb") as file:
            head = file.peek(LONGEST_NAMES)[:LONGEST_NAMES]
            if head.startswith(PARQUET_MAGIC):
                rows = _read_parquet(path, wanted)
            elif delimiter_of(head.removeprefix(BYTE_ORDER_MARK).decode(errors="replace").lstrip()):
                rows = _read_csv(path, wanted)
            else:
                rows = _read_quickly(path, file, wanted) if quick else None
                rows = rows or _read_json_lines(path, file, wanted)
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    if not len(rows):
        raise KvsimError(f"trace {path} must have at least one request, got none")
    return rows


# -- JSON lines ---------------------------------------------------------------------------------


def _read_json_lines(path: str, file: io.BufferedReader, wanted: Wanted) -> Rows:
    columns: dict[str, list[object]] = {}
    places: dict[str, str] = {}
    numbers = array("q")
    for number, row in json_objects(path, file, JSONDecoder(parse_constant=_refuse)):
        if row.keys() != places.keys():
            for name in [name for name in row if name not in places]:
                places[name] = f"trace {path}, line {number}"
                if wanted(name):
                    columns[name] = [None] * len(numbers)
        for name, values in columns.items():
            values.append(row.get(name))
        numbers.append(number)
    return Rows(path, columns, "line", numbers, places)


def _read_quickly(path: str, file: io.BufferedReader, wanted: Wanted) -> Rows | None:
    """The same for ASCII lines of numbers, texts and lists of integers; None where it might differ.

    Pyarrow takes NaN and infinity, which are not JSON. It differs in strings that look like dates, integers
    that a float would round, and lines that are blank, too long, or hold several objects or none.
    """
    import pyarrow as pa
    from pyarrow import json, types

    if os.fstat(file.fileno()).st_size > MOST_QUICK_BYTES:
        return None
    content = file.read()
    file.seek(0)
    if not content.isascii() or b"NaN" in content or b"Inf" in content:
        return None
    try:
        reading = json.ReadOptions(use_threads=False, block_size=len(content) + 1)
        table = json.read_json(pa.BufferReader(content), reading)
    except pa.ArrowException:
        return None
    ends = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) == ord("\n"))
    if np.diff(ends, prepend=-1, append=len(content)).max() > LONGEST_LINE:
        return None
    lines = len(ends) + (not content.endswith(b"\n"))
    objects = content.startswith(b"{") + content.count(b"\n{")
    there = [name for name in table.column_names if wanted(name)]
    if not (table.num_rows == lines == objects and all(_is_exact(table[name], types) for name in there)):
        return None
    columns = {name: [value for part in table[name].chunks for value in _plain(part)] for name in there}
    places = dict.fromkeys(table.column_names, f"trace {path}")
    return Rows(path, columns, "line", range(1, lines + 1), places)


def _is_exact(values: "pa.ChunkedArray", types: ModuleType) -> bool:
    """Whether pyarrow's values are those of JSON."""
    kind = values.type
    if types.is_floating(kind):
        known = [_numbers(part.drop_null() if part.null_count else part) for part in values.chunks]
        return all(np.abs(part).max(initial=0.0) < EXACT_INTEGERS for part in known)
    if types.is_list(kind):
        return bool(types.is_integer(kind.value_type))
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_null(kind))


def json_objects(path: str, file: IO[bytes], decoder: JSONDecoder) -> Iterator[tuple[int, dict[str, object]]]:
    """The number of each non-blank line, and the object in it.

    Raises
    ------
    KvsimError
        A line that is not a JSON object.
    """
    for number, line in enumerate(lines_of(path, file), start=1):
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if not text or text.isspace():
            continue
        try:
            row = decoder.decode(text.decode())
        except (ValueError, RecursionError) as error:
            raise KvsimError(f"trace {path}, line {number}: {_complaint(error)}") from error
        if type(row) is not dict:
            kind = type(row).__name__
            raise KvsimError(f"trace {path}, line {number}: each line must be a JSON object, got a {kind}")
        yield number, row


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _complaint(error: ValueError | RecursionError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8: {error.reason} at byte {error.start + 1}"
    if isinstance(error, JSONDecodeError):
        return f"not valid JSON: {error.msg} at column {error.colno}"
    return f"not valid JSON: {error}"


# -- CSV ----------------------------------------------------------------------------------------


def _read_csv(path: str, wanted: Wanted) -> Rows:
    cells, names, numbers = read_cells(path, wanted)
    columns: dict[str, list[object]] = {name: list(values) for name, values in cells.items()}
    places = dict.fromkeys((name for name in names if name), f"trace {path}, line 1")
    return Rows(path, columns, "line", numbers, places, texts=True)


# -- parquet ------------------------------------------------------------------------------------


def _read_parquet(path: str, wanted: Wanted) -> Rows:
    what = f"trace {path}"
    with opened_table(path, what) as parquet:
        names = [name for name in parquet.schema_arrow.names if not name.startswith("__index_level_")]
        there = [name for name in names if wanted(name)]
        table = parquet.read(columns=there, use_threads=False)  # its threads may outlive a quick exit
        times = frozenset(name for name in there if _is_time(table.schema.field(name).type))
        columns = {name: [value for part in table[name].chunks for value in _plain(part)] for name in there}
        rows = parquet.metadata.num_rows
    return Rows(path, columns, "row", range(rows), dict.fromkeys(names, what), nanoseconds=times)


def _is_time(kind: "pa.DataType") -> bool:
    from pyarrow import types

    return bool(types.is_timestamp(kind) or types.is_duration(kind))


def _numbers(values: "pa.Array") -> npt.NDArray[np.generic]:
    """Numbers without gaps; `to_numpy` would import pandas if installed, which takes 0.2 s."""
    kind = np.dtype(values.type.to_pandas_dtype())
    return np.frombuffer(values.buffers()[1] or b"", kind)[values.offset : values.offset + len(values)]


def _plain(values: "pa.Array") -> list[object]:
    """The values as in JSON, with a fast path for numbers and for lists and pairs of them."""
    import pyarrow as pa
    from pyarrow import types as kind

    if _is_time(values.type):
        is_date = kind.is_timestamp(values.type)
        values = values.cast(pa.timestamp("ns", values.type.tz) if is_date else pa.duration("ns"))
        return list(values.cast(pa.int64()).to_pylist())
    if not values.null_count:
        if kind.is_integer(values.type) or kind.is_floating(values.type):
            return list(_numbers(values).tolist())
        if kind.is_list(values.type) or kind.is_large_list(values.type):
            flat = _plain(values.flatten())
            ends = np.cumsum(_numbers(values.value_lengths()))
            return [flat[start:end] for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
        if kind.is_struct(values.type) and {field.name for field in values.type} == {"id", "tokens"}:
            parts = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
            return [list(pair) for pair in zip(_plain(parts["id"]), _plain(parts["tokens"]), strict=True)]
    return list(values.to_pylist())
