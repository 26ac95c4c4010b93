"""The file formats of a run: JSON without infinities, and numpy columns as parquet; errors fit one line."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.files import reading
from kvsim.sim.files.tables import as_numpy, read_table
from kvsim.sim.record.events import Texts

MOST = 2.0**53
"""The maximum of any time, count or address of a run; the minimum is 0."""

Columns = dict[str, npt.NDArray[Any]]
Table = Mapping[str, npt.NDArray[Any] | Texts]


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON is any value
    """The value in JSON's own types: numpy scalars and arrays converted, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(value: object, path: Path) -> None:
    """Write a `plain` value, indented by two spaces; names that are not valid text as JSON-escaped bytes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def load_json(path: Path) -> Any:  # noqa: ANN401 - JSON is any value
    """Any JSON value; KvsimError if the file is not JSON."""
    return reading.read_json(path, str(path))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; KvsimError if the file is none."""
    return reading.read_object(path, str(path))


def write_columns(columns: Table, path: Path) -> None:
    """Write columns of equal length; string columns made from a list store each string once."""
    import pyarrow as pa
    from pyarrow import parquet

    arrays = [
        pa.DictionaryArray.from_arrays(_array(column.codes), _array(np.array(column.texts, dtype=object)))
        if isinstance(column, Texts)
        else _array(np.asarray(column))
        for column in columns.values()
    ]
    with path.open("wb") as file:  # pyarrow rejects paths that are not valid text
        parquet.write_table(pa.Table.from_arrays(arrays, names=list(columns)), file, compression="zstd")


def _array(column: npt.NDArray[Any]) -> Any:  # noqa: ANN401 - a pyarrow Array
    """A column for parquet: integers in 32 bits if they fit, NaN as null.

    Built from buffers, since `pyarrow.array` imports pandas if installed, which takes 0.3 s.
    """
    import pyarrow as pa

    if column.dtype.kind in "OU":
        texts = [str(text).encode(errors="backslashreplace") for text in column.tolist()]
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(texts), buffers)
    known = None
    if column.dtype.kind == "f":
        values, kind = column.astype(np.float64), pa.float64()
        known = pa.py_buffer(np.packbits(~np.isnan(values), bitorder="little"))
    elif not column.size or (column.min() >= -(2**31) and column.max() < 2**31):
        values, kind = column.astype(np.int32), pa.int32()
    else:
        values, kind = column.astype(np.int64), pa.int64()
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(np.ascontiguousarray(values))])


def read_columns(
    path: Path,
    needed: tuple[str, ...],
    texts: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
    alike: re.Pattern[str] | None = None,
) -> Columns:
    """All columns of a file; KvsimError if it is damaged, or a needed column is missing or of another type.

    Needed columns hold numbers, except `texts`. Optional columns in `numbers`, or whose names match `alike`,
    must hold numbers. Null becomes NaN.
    """
    table = read_table(path, str(path), needed)
    if alike is not None:
        numbers = (*numbers, *filter(alike.fullmatch, table.column_names))
    for name in table.column_names:
        if name in needed or name in numbers:
            check_type(path, name, table[name].type, "texts" if name in texts else "numbers")
    with reading.understood(str(path)):
        columns = {name: _column(table[name]) for name in table.column_names}
    for name, column in columns.items():
        if name in (*needed, *numbers) and name not in texts:
            check_range(path, name, column)
    return columns


def check_range(path: Path, name: str, column: npt.NDArray[Any]) -> None:
    """Raise KvsimError unless all numbers of a column are in range; NaN means missing."""
    wrong = column[~((column >= 0) & (column <= MOST) | np.isnan(column))]
    if len(wrong):
        raise KvsimError(f"{path} is damaged: column {name} must be from 0 to {MOST:g}, got {wrong[0]:g}")


def check_type(path: Path, name: str, found: Any, must: str) -> None:  # noqa: ANN401 - a type of pyarrow
    """Raise KvsimError unless a column has type `numbers`, `numbers or booleans`, or `texts`."""
    from pyarrow import types as kind

    bare = found.value_type if kind.is_dictionary(found) else found
    fits = {
        "numbers": kind.is_integer(found) or kind.is_floating(found),
        "numbers or booleans": kind.is_primitive(found) and not kind.is_temporal(found),
        "texts": kind.is_string(bare) or kind.is_large_string(bare),
    }
    if not fits[must]:
        raise KvsimError(f"{path} is damaged: column {name} must be {must}, got {found}")


def _column(column: Any) -> npt.NDArray[Any]:  # noqa: ANN401 - of pyarrow
    """A column as a numpy array, strings as strings."""
    values = as_numpy(column)
    return values.astype(str) if values.dtype == object else values
