"""Splitwise's traces, as written by splitwise-sim: arrivals in seconds, prompts and answers in tokens.

    request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size

The other columns, which are the same in all rows, are ignored.
"""

from kvsim.workloads.delimited import read_csv
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import requests


def load_splitwise(path: str) -> Lengths:
    """The requests of a file, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a cell that is not a number.
    """
    kinds = {"arrival_timestamp": "seconds", "prompt_size": "tokens", "token_size": "tokens"}
    arrival_s, prompt_tokens, output_tokens = read_csv(path, kinds).values()
    return requests(path, "Splitwise", prompt_tokens, output_tokens, arrival_s)
