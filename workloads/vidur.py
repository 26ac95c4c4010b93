"""Vidur's processed traces: prefill and decode tokens, with or without arrivals in seconds.

    arrived_at,num_prefill_tokens,num_decode_tokens

Derived columns (`num_total_tokens`, `pd_ratio`) are ignored.
"""

from kvsim.workloads.delimited import has_column, read_csv
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import requests


def load_vidur(path: str) -> Lengths:
    """The requests of a file, in order of arrival if they have arrivals.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a cell that is not a number.
    """
    kinds = {"num_prefill_tokens": "tokens", "num_decode_tokens": "tokens"}
    if has_column(path, "arrived_at"):
        kinds["arrived_at"] = "seconds"
    prompt_tokens, output_tokens, *arrival_s = read_csv(path, kinds).values()
    return requests(path, "Vidur", prompt_tokens, output_tokens, *arrival_s)
