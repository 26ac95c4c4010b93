"""BurstGPT, versions 1 and 2: months of calls to ChatGPT and GPT-4 from one campus, in whole seconds.

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type                                 v1
    Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type         v2

A response of 0 tokens is a failed call. Arrivals are relative to the earliest row, as files start at any time
(v2 at 19440110.0). Sessions are ignored, since the files do not say how much of them a prompt repeats.
"""

from kvsim.workloads.delimited import read_csv
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import from_first, requests


def load_burstgpt(path: str) -> Lengths:
    """The successful calls, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a cell that is not a number.
    """
    kinds = {"Timestamp": "seconds", "Request tokens": "tokens", "Response tokens": "tokens"}
    time_s, prompt_tokens, output_tokens = read_csv(path, kinds).values()
    failed = "failed call, output of 0 tokens"
    return requests(path, "BurstGPT", prompt_tokens, output_tokens, from_first(time_s), no_output=failed)
