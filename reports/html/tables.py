"""Parquet files with columns of texts of which few differ: those are read as codes, never one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.reports.html.packing import Column
from kvsim.sim.errors import KvsimError


@dataclass(frozen=True)
class Texts:
    """A column of texts: row i says `texts[codes[i]]`."""

    codes: npt.NDArray[np.int64]
    texts: list[str]


def read_columns(
    path: Path, numbers: Sequence[str], texts: Sequence[str]
) -> tuple[dict[str, Column], dict[str, Texts]]:
    """The columns of these names; KvsimError if the file is damaged. Null is NaN, or the empty text."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        there = parquet.read_schema(path).names
        lacking = [name for name in (*numbers, *texts) if name not in there]
        if lacking:
            raise KvsimError(f"{path} is damaged: it lacks the columns {', '.join(lacking)}")
        table = parquet.ParquetFile(path, read_dictionary=list(texts)).read(use_threads=False)
        columns = {name: table[name].to_numpy() for name in numbers}
        wrong = [name for name, column in columns.items() if column.dtype.kind not in "iufb"]
        if wrong:
            raise KvsimError(f"{path} is damaged: {', '.join(wrong)} must hold numbers")
        return columns, {name: _texts(table[name]) for name in texts}
    except (OSError, ValueError, AttributeError, pa.ArrowException) as error:
        raise KvsimError(f"{path} is damaged: {error}") from error


def _texts(column: "pa.ChunkedArray") -> Texts:  # type: ignore[name-defined]  # noqa: F821 - pyarrow is late
    whole = column.unify_dictionaries().combine_chunks()
    texts = [*(text or "" for text in whole.dictionary.to_pylist()), ""]
    codes = whole.indices.fill_null(len(texts) - 1)
    return Texts(codes.to_numpy().astype(np.int64), texts)
