"""Azure's LLM inference traces of 2023 and 2024: arrival, tokens of the prompt, tokens of the answer.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44               2023: seven digits
    2024-05-12 00:00:00.001163+00:00,1452,3          2024: a time zone, the fraction may be absent

Arrivals count from the earliest row. Says nothing of what the prompts have in common.
"""

from kvsim.workloads.delimited import read_csv
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import requests


def load_azure(path: str) -> Lengths:
    """The requests of a file, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a cell that is no date and time or no number.
    """
    kinds = {"TIMESTAMP": "time", "ContextTokens": "tokens", "GeneratedTokens": "tokens"}
    arrival_s, prompt_tokens, output_tokens = read_csv(path, kinds).values()
    return requests(path, "Azure", prompt_tokens, output_tokens, arrival_s)
