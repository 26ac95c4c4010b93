"""Parquet files that somebody else may have written: the one place that opens them.

What is wrong with a file is told in one line, see sim/reading.py: damaged bytes, a column that is missing, or
there twice, or of another type than it must be.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING

from kvsim.sim.errors import KvsimError
from kvsim.sim.reading import understood

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


@contextmanager
def opened_table(
    path: str | PathLike[str], what: str, texts: Sequence[str] = ()
) -> Iterator["pa.parquet.ParquetFile"]:
    """A parquet file whose columns have names of their own, `texts` as codes; KvsimError for what is wrong."""
    from pyarrow import parquet

    with understood(what), parquet.ParquetFile(path, read_dictionary=list(texts)) as file:
        names = file.schema_arrow.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise KvsimError(f"{what} is damaged: column {twice!r} is there {names.count(twice)} times")
        yield file


def read_table(
    path: str | PathLike[str],
    what: str,
    needed: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    texts: Sequence[str] = (),
) -> "pa.Table":
    """The table in a parquet file, or those `columns` of it; KvsimError if a `needed` one is missing."""
    with opened_table(path, what, texts) as file:
        there = file.schema_arrow.names
        lacking = [name for name in needed if name not in there]
        if lacking:
            raise KvsimError(f"{what} is damaged: it lacks the columns {', '.join(lacking)}")
        return file.read(None if columns is None else list(columns), use_threads=False)
