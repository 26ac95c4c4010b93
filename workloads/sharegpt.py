"""ShareGPT: the first question and the first answer of 8,156 conversations, in LLaMA tokens.

The lengths of real chats, cut at 2,048 tokens in total. Ignores later turns, and so all sharing of
prompts between the turns of a conversation. The source and the filters are in `data/SOURCES.md`.
"""

from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from kvsim.sim.workload import Int64Column
from kvsim.workloads.lengths import Lengths

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def load_lengths() -> Lengths:
    """The built-in table, in file order."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with resources.files("kvsim.workloads.data").joinpath("sharegpt.parquet").open("rb") as file:
        table = pq.ParquetFile(file).read(use_threads=False)  # its threads may outlive a quick exit
    return Lengths(
        name="sharegpt",
        prompt_tokens=_numbers(table["prompt_tokens"]),
        output_tokens=_numbers(table["output_tokens"]),
        notes=("ShareGPT: first question and first answer, LLaMA tokens, at most 2,048 in total.",),
    )


def _numbers(column: "pa.ChunkedArray") -> Int64Column:
    """A column without nulls, from its buffers: `to_numpy` imports pandas wherever it is installed."""
    width = column.type.bit_width // 8
    parts = [
        np.frombuffer(part.buffers()[1], f"i{width}", len(part), part.offset * width)
        for part in column.chunks
    ]
    return np.concatenate(parts).astype(np.int64)
