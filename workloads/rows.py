"""A trace file as columns of plain values: JSON lines, or parquet, told apart by how the file begins.

    {"prompt_tokens": 9, "n": 2}           prompt_tokens   9      4
    {"prompt_tokens": 4}            ->     n               2      None

A field that a row lacks, or that is null, is None. What the fields mean, and which values they may have,
is for others to say; here it matters only that each has a known name.
"""

import io
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import TYPE_CHECKING

import numpy as np

from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.tables import opened_table

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PARQUET_MAGIC = b"PAR1"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Rows:
    """What a file holds.

    Attributes
    ----------
    path : str
        The file, as the user named it.
    columns : dict of str to list
        For each field that any row has, a plain value or None per row.
    unit : str
        What the file counts its rows in: `line`, from 1, or `row`, from 0.
    numbers : sequence of int
        The number of each row in the file.
    """

    path: str
    columns: dict[str, list[object]]
    unit: str
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def error(self, row: int, message: str) -> KvsimError:
        """A mistake in the file, with the place where it stands."""
        return KvsimError(f"trace {self.path}, {self.unit} {self.numbers[row]}: {message}")

    def in_order(self, order: Sequence[int]) -> "Rows":
        """The same rows in another order."""
        columns = {name: [values[row] for row in order] for name, values in self.columns.items()}
        return Rows(self.path, columns, self.unit, [self.numbers[row] for row in order])


def read_rows(path: str, fields: Collection[str]) -> Rows:
    """Read a file whose rows have no other than these fields.

    Raises
    ------
    KvsimError
        A file that cannot be read, is neither JSON lines nor parquet, has an unknown field, or no row.
    """
    try:
        with open(path, "rb") as file:
            is_parquet = file.peek(len(PARQUET_MAGIC)).startswith(PARQUET_MAGIC)
            rows = _read_parquet(path, fields) if is_parquet else _read_json_lines(path, file, fields)
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    if not len(rows):
        raise KvsimError(f"trace {path} must have at least one request, got none")
    return rows


# -- JSON lines ---------------------------------------------------------------------------------


def _read_json_lines(path: str, file: io.BufferedReader, fields: Collection[str]) -> Rows:
    columns: dict[str, list[object]] = {}
    numbers = array("q")
    for number, row in json_objects(path, file, JSONDecoder(parse_constant=_refuse)):
        if row.keys() != columns.keys():
            for name in row:
                if name not in fields:
                    raise KvsimError(f"trace {path}, line {number}: {unknown('field', name, list(fields))}")
                columns.setdefault(name, [None] * len(numbers))
        for name, values in columns.items():
            values.append(row.get(name))
        numbers.append(number)
    return Rows(path, columns, "line", numbers)


def json_objects(
    path: str, file: Iterable[bytes], decoder: JSONDecoder
) -> Iterator[tuple[int, dict[str, object]]]:
    """The number of each line that is not blank, and the object in it.

    Raises
    ------
    KvsimError
        A line that is no JSON object.
    """
    for number, line in enumerate(file, start=1):
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
    """What is wrong with a line."""
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8: {error.reason} at byte {error.start + 1}"
    if isinstance(error, JSONDecodeError):
        return f"not valid JSON: {error.msg} at column {error.colno}"
    return f"not valid JSON: {error}"


# -- parquet ------------------------------------------------------------------------------------


def _read_parquet(path: str, fields: Collection[str]) -> Rows:
    what = f"trace {path}"
    with opened_table(path, what) as parquet:
        names = [name for name in parquet.schema_arrow.names if not name.startswith("__index_level_")]
        for name in names:
            if name not in fields:
                raise KvsimError(f"{what}: {unknown('field', name, list(fields))}")
        table = parquet.read(columns=names, use_threads=False)  # its threads may outlive a quick exit
        columns = {name: [value for part in table[name].chunks for value in _plain(part)] for name in names}
    return Rows(path, columns, "row", range(table.num_rows))


def _plain(values: "pa.Array") -> list[object]:
    """The values as JSON would have them; a short cut for numbers, and for lists and pairs of them."""
    from pyarrow import types as kind

    if not values.null_count:
        if kind.is_integer(values.type) or kind.is_floating(values.type):
            return list(values.to_numpy(zero_copy_only=False).tolist())
        if kind.is_list(values.type) or kind.is_large_list(values.type):
            flat = _plain(values.flatten())
            ends = np.cumsum(values.value_lengths().to_numpy(zero_copy_only=False))
            return [flat[start:end] for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
        if kind.is_struct(values.type) and {field.name for field in values.type} == {"id", "tokens"}:
            parts = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
            return [list(pair) for pair in zip(_plain(parts["id"]), _plain(parts["tokens"]), strict=True)]
    return list(values.to_pylist())
