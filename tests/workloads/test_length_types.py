"""Which types a column of lengths may have in parquet: whole numbers however stored, and nothing else."""

import datetime
import decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

from kvsim.sim.errors import KvsimError
from kvsim.workloads.formats import load_file

ALLOWED = {
    "int8": pa.array([5, 6], pa.int8()),
    "uint64": pa.array([5, 6], pa.uint64()),
    "whole floats, as pandas writes a column with gaps": pa.array([5.0, 6.0]),
    "float32": pa.array([5, 6], pa.float32()),
    "a dictionary of whole numbers": pa.array([5, 6]).dictionary_encode(),
}
REFUSED = {
    "fractions": pa.array([5.5, 6.0]),
    "nearly whole": pa.array([5.0000000001, 6.0]),
    "infinity": pa.array([float("inf"), 6.0]),
    "above a thousand million": pa.array([2**40, 6]),
    "beyond 63 bits": pa.array([5, 2**63 + 1], pa.uint64()),
    "booleans": pa.array([True, True]),
    "texts": pa.array(["5", "6"]),
    "bytes": pa.array([b"5", b"6"]),
    "decimals": pa.array([decimal.Decimal(5), decimal.Decimal(6)]),
    "timestamps": pa.array([5, 6], pa.timestamp("ns")),
    "dates": pa.array([datetime.date(2026, 1, 1)] * 2),
    "durations": pa.array([5, 6], pa.duration("s")),
    "objects": pa.array([{"a": 5}, {"a": 6}]),
    "lists of booleans": pa.array([[True], [True]]),
    "lists of fractions": pa.array([[5.5], [6.0]]),
    "nothing": pa.array([None, None]),
}
FORMATS = {
    "native": {},
    "hash ids": {"hash_ids": [[1], [2]]},
    "conversations": {"conversation_id": ["a", "b"]},
}


@pytest.fixture(params=FORMATS)
def lengths(request, tmp_path):
    """The lengths that are read where one column is as given."""

    def lengths(name, column):
        columns = {"prompt_tokens": [7, 8], "output_tokens": [7, 8]} | FORMATS[request.param]
        parquet.write_table(pa.table(columns | {name: column}), tmp_path / "trace.parquet")
        return getattr(load_file(str(tmp_path / "trace.parquet")), name).tolist()

    return lengths


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens"])
@pytest.mark.parametrize("kind", ALLOWED)
def test_whole_numbers_are_read_however_they_are_stored(lengths, name, kind):
    assert lengths(name, ALLOWED[kind]) == [5, 6]


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens"])
@pytest.mark.parametrize("kind", REFUSED)
def test_all_else_is_refused(lengths, name, kind):
    with pytest.raises(KvsimError, match=r"trace .*trace\.parquet"):
        lengths(name, REFUSED[kind])
