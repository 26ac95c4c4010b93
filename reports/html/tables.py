"""Read parquet string columns that have few distinct values as codes, for speed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvsim.reports.html.packing import Column
from kvsim.reports.rundir.formats import check_range, check_type
from kvsim.sim.files.reading import understood
from kvsim.sim.files.tables import as_numpy, read_table
from kvsim.sim.record.events import Texts


def read_columns(
    path: Path, numbers: Sequence[str], texts: Sequence[str], perhaps: Sequence[str] = ()
) -> tuple[dict[str, Column], dict[str, Texts]]:
    """Read the named columns; KvsimError if the file is damaged. Null becomes NaN or the empty string.

    `perhaps` names optional columns of numbers.
    """
    table = read_table(path, str(path), (*numbers, *texts), [*numbers, *texts, *perhaps], texts)
    numbers = [*numbers, *(name for name in perhaps if name in table.column_names)]
    for name in numbers:
        check_type(path, name, table[name].type, "numbers")
    for name in texts:
        check_type(path, name, table[name].type, "texts")
    with understood(str(path)):
        columns = {name: as_numpy(table[name]) for name in numbers}
        codes = {name: _texts(table[name]) for name in texts}
    for name, column in columns.items():
        check_range(path, name, column)
    return columns, codes


def _texts(column: "pa.ChunkedArray") -> Texts:  # type: ignore[name-defined]  # noqa: F821 - pyarrow is late
    whole = column.unify_dictionaries().combine_chunks()
    texts = [*(text or "" for text in whole.dictionary.to_pylist()), ""]
    codes = whole.indices.fill_null(len(texts) - 1)
    return Texts(as_numpy(codes).astype(np.int64), texts)
