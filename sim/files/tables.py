"""Reads parquet files that others may have written; no other module opens any.

Problems with a file are reported in one line (reading.py): damaged bytes, or a column that is missing,
duplicated, or of the wrong type.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import check_regular, understood

if TYPE_CHECKING:
    import pyarrow as pa


MOST_ROWS = 50_000_000
"""Largest table, which is held in memory."""


@contextmanager
def opened_table(
    path: str | PathLike[str], what: str, needed: Sequence[str] = ()
) -> Iterator["pa.parquet.ParquetFile"]:
    """A parquet file whose column names are unique and include `needed`; else KvsimError."""
    from pyarrow import parquet

    check_regular(path, what)
    with understood(what), open(path, "rb") as raw, parquet.ParquetFile(raw) as file:
        names, rows = file.schema_arrow.names, file.metadata.num_rows
        if rows > MOST_ROWS:
            raise KvsimError(f"{what} must have at most {MOST_ROWS:,} rows, got {rows:,}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise KvsimError(f"{what} is damaged: column {twice!r} is there {names.count(twice)} times")
        lacking = [name for name in needed if name not in names]
        if lacking:
            raise KvsimError(f"{what} is damaged: it lacks the columns {', '.join(lacking)}")
        yield file


def read_table(
    path: str | PathLike[str],
    what: str,
    needed: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    texts: Sequence[str] = (),
) -> "pa.Table":
    """The table in a parquet file, or only `columns`; columns in `texts` become codes. Errors as above."""
    from pyarrow import parquet

    chosen = None if columns is None else list(columns)
    with opened_table(path, what, needed) as file:
        if not texts:
            return file.read(chosen, use_threads=False)
        there = [name for name in texts if name in file.schema_arrow.names]
        with open(path, "rb") as raw, parquet.ParquetFile(raw, read_dictionary=there) as coded:
            return coded.read(chosen, use_threads=False)


def as_numpy(column: "pa.Array | pa.ChunkedArray") -> npt.NDArray[Any]:
    """A column like pyarrow's `to_numpy`, which would spend 0.5 s importing pandas if that is installed.

    Null is NaN among numbers, and None among texts.
    """
    from pyarrow import types as kind

    if kind.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    parts = [part for part in getattr(column, "chunks", [column]) if len(part)]
    if not parts or not (kind.is_integer(column.type) or kind.is_floating(column.type)):
        found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return found
    letter = "f" if kind.is_floating(column.type) else "u" if kind.is_unsigned_integer(column.type) else "i"
    numbers = [_numbers(part, np.dtype(f"{letter}{column.type.bit_width // 8}")) for part in parts]
    return numbers[0] if len(numbers) == 1 else np.concatenate(numbers)


def _numbers(part: "pa.Array", dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Numbers taken from their buffers."""
    bits, values = part.buffers()
    numbers: npt.NDArray[Any] = np.frombuffer(values, dtype, len(part), part.offset * dtype.itemsize)
    if not part.null_count:
        return numbers
    known = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    numbers = numbers.astype(dtype if dtype.kind == "f" else np.float64)
    numbers[known[part.offset : part.offset + len(part)] == 0] = np.nan
    return numbers
