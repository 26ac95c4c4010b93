"""ShareGPT: the first question and the first answer of 8,156 conversations, in LLaMA tokens.

Real chat lengths, cut at 2,048 tokens in total. Later turns are ignored, and so is the text that they would
share. The source and the filters are in `data/SOURCES.md`.
"""

from importlib import resources

import numpy as np

from kvsim.sim.files.tables import as_numpy
from kvsim.workloads.lengths import Lengths


def load_lengths() -> Lengths:
    """The built-in table, in file order."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with resources.files("kvsim.workloads.data").joinpath("sharegpt.parquet").open("rb") as file:
        table = pq.ParquetFile(file).read(use_threads=False)  # its threads may outlive a quick exit
    return Lengths(
        name="sharegpt",
        prompt_tokens=as_numpy(table["prompt_tokens"]).astype(np.int64),
        output_tokens=as_numpy(table["output_tokens"]).astype(np.int64),
        notes=("ShareGPT: first question and first answer, LLaMA tokens, at most 2,048 in total.",),
    )
