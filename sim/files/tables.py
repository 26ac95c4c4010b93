"""Parquet files that somebody else may have written: the one place that opens them.

What is wrong with a file is told in one line, see reading.py: damaged bytes, a column that is missing, or
there twice, or of another type than it must be.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import understood

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def opened_table(
    path: str | PathLike[str], what: str, needed: Sequence[str] = ()
) -> Iterator["pa.parquet.ParquetFile"]:
    """A parquet file whose columns have names of their own, among them those `needed`; else KvsimError."""
    from pyarrow import parquet

    with understood(what), open(path, "rb") as raw, parquet.ParquetFile(raw) as file:
        names = file.schema_arrow.names
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
    """The table in a parquet file, or those `columns` of it, `texts` as codes; KvsimError as above."""
    from pyarrow import parquet

    chosen = None if columns is None else list(columns)
    with opened_table(path, what, needed) as file:
        if not texts:
            return file.read(chosen, use_threads=False)
        with open(path, "rb") as raw, parquet.ParquetFile(raw, read_dictionary=list(texts)) as coded:
            return coded.read(chosen, use_threads=False)
