"""Columns of parquet files as numpy has them, without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from kvsim.sim.files.tables import as_numpy

NUMBERS = [
    pa.int8(),
    pa.uint8(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
]


@pytest.mark.parametrize("kind", [*NUMBERS, pa.bool_(), pa.string()], ids=str)
def test_they_are_those_of_pyarrow(kind):
    values = pa.array([*range(3, 23)], pa.int8()).cast(pa.int64() if kind == pa.bool_() else kind).cast(kind)
    gaps = pa.array([value if at % 3 else None for at, value in enumerate(values.to_pylist())], kind)
    for parts in ([], [values], [gaps], [values, gaps], [values[3:11]], [gaps[5:17], values[:0]]):
        column = pa.chunked_array(parts, kind)
        ours, theirs = as_numpy(column), column.to_numpy()
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(as_numpy(gaps[5:]), gaps[5:].to_numpy(zero_copy_only=False))


@pytest.mark.slow
def test_pandas_is_not_imported():
    code = (
        "import sys, pyarrow as pa; from kvsim.sim.files.tables import as_numpy; "
        "[as_numpy(pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(bytes(8))]))]; "
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
