"""Qwen's traces of Alibaba Bailian: a JSON object per line, with the ids of the prompt's 16-token blocks.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, 1091, 6326, ..., 13148]}

Timestamps are seconds from the start. A session consists of the requests that lead back to the same first
request through `parent_chat_id` (-1 for none). Its label is that request's `chat_id`, or that of the oldest
known ancestor. Block ids show what a turn repeats.
"""

import numpy as np

from kvsim.workloads.hashed import read_hash_rows
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import FloatColumn, requests

BLOCK_TOKENS = 16


def load_bailian(path: str) -> Lengths:
    """The requests of a file, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a value that is not a number or not a list of ids.
    """
    ids = {"chat_id": True, "parent_chat_id": True, "turn": True}
    numbers = {"timestamp": False, "input_length": True, "output_length": True, **ids}
    rows = read_hash_rows(path, numbers, "input_length", BLOCK_TOKENS)
    timestamp, prompt_tokens, output_tokens, chat, parent, turn = rows.numbers.values()
    return requests(
        path,
        "Bailian",
        prompt_tokens,
        output_tokens,
        timestamp,
        texts=rows.blocks.texts(),
        labels={"session": _sessions(timestamp, chat, parent), "turn": _label(turn)},
        notes=rows.blocks.notes(),
    )


def _sessions(timestamp: FloatColumn, chat: FloatColumn, parent: FloatColumn) -> np.ndarray:
    """The first chat of each chat's session; chats come after their parents."""
    first: dict[float, float] = {}
    found = np.copy(chat)
    chats, parents = chat.tolist(), parent.tolist()
    for row in np.argsort(timestamp, kind="stable").tolist():
        before = parents[row]
        root = first.get(before, before) if before >= 0 else chats[row]
        first[chats[row]] = found[row] = root
    return _label(found)


def _label(values: FloatColumn) -> np.ndarray:
    """Integers, None if missing."""
    if not np.isnan(values).any():
        return values.astype(np.int64)
    found = values.astype(object)
    found[np.isnan(values)] = None
    return found
