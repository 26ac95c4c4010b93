"""Azure's LLM inference traces of 2023, 2024 and 2025: arrival, prompt tokens, answer tokens.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44               2023: seven digits
    2024-05-12 00:00:00.001163+00:00,1452,3          2024: a time zone; the fraction may be absent
    TIMESTAMP,NumImages,ContextTokens,GeneratedTokens                 2025, multimodal: one more column

Arrivals are relative to the earliest row. The traces do not say what prompts share.
"""

import numpy as np

from kvsim.workloads.delimited import read_csv
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.lines import lines_of
from kvsim.workloads.usable import requests


def load_azure(path: str) -> Lengths:
    """The requests of a file, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a cell that is not a date and time or not a number.
    """
    kinds = {"TIMESTAMP": "time", "ContextTokens": "tokens", "GeneratedTokens": "tokens"}
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        images = "NumImages" in [name.strip() for name in next(lines_of(path, file), "").split(",")]
    found = read_csv(path, kinds | ({"NumImages": "tokens"} if images else {}))
    arrival_s, prompt_tokens, output_tokens = (found[name] for name in kinds)
    labels = {"images": np.nan_to_num(found["NumImages"]).astype(np.int64)} if images else {}
    return requests(path, "Azure", prompt_tokens, output_tokens, arrival_s, labels=labels)
