"""Mooncake's traces of FAST'25: an object per line, with the ids of the prompt's blocks of 512 tokens.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2353, 2354]}

Timestamps are milliseconds from the start, in some files rounded to about three seconds: many requests
then come at once, which is no property of the traffic. A note says so.
"""

import numpy as np

from kvsim.workloads.hashed import read_hash_rows
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import FloatColumn, requests

BLOCK_TOKENS = 512

FEWEST_ROWS = 100
"""Fewer say nothing of how arrivals are rounded."""


def load_mooncake(path: str) -> Lengths:
    """The requests of a file, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a value that is no number or no list of ids.
    """
    numbers = {"timestamp": False, "input_length": True, "output_length": True}
    rows = read_hash_rows(path, numbers, "input_length", BLOCK_TOKENS)
    arrival_s = rows.numbers["timestamp"] / 1000
    return requests(
        path,
        "Mooncake",
        rows.numbers["input_length"],
        rows.numbers["output_length"],
        arrival_s,
        texts=rows.blocks.texts(),
        notes=[*rows.blocks.notes(), *rounded(arrival_s)],
    )


def rounded(arrival_s: FloatColumn) -> list[str]:
    """A note where most requests come at the same time as another."""
    different = len(np.unique(arrival_s))
    if different * 2 > len(arrival_s) or len(arrival_s) < FEWEST_ROWS:
        return []
    return [
        f"Arrivals are rounded: {len(arrival_s):,} rows have {different:,} different times, so latencies "
        "show bursts that were not there."
    ]
