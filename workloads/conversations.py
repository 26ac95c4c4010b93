"""Conversations of several turns: each prompt contains everything before it.

    new tokens    answer        prompt    text
            40        90            40    (the conversation's stream, 0 .. 130)
            25        60           155    (the conversation's stream, 0 .. 215)

A later turn begins with the prompt and answer of the previous turn, which a prefix cache may hold. Tokens
added by chat templates, and assistants that drop the beginning, are ignored.
"""

import numpy as np

from kvsim.sim.content import Texts
from kvsim.sim.workload import Int64Column
from kvsim.workloads.usable import FloatColumn


def whole_prompts(
    conversation: Int64Column,
    new_tokens: FloatColumn,
    output_tokens: FloatColumn,
    turn: FloatColumn | None = None,
) -> tuple[FloatColumn, Texts]:
    """The length of each prompt including everything before it, and the texts.

    Parameters
    ----------
    conversation : int64 array, shape (n,)
        The conversation of each turn, at least 0.
    new_tokens, output_tokens : float64 arrays, shape (n,)
        Tokens of each turn alone; NaN if unknown, which counts as 0 in later prompts.
    turn : float64 array, shape (n,), or None
        The order within a conversation; rows are in order if it is None or equal.

    Returns
    -------
    prompt_tokens (`new_tokens` where these are not above 0), and Texts
    """
    keys = (conversation,) if turn is None else (turn, conversation)
    order = np.lexsort(keys)
    new, output = (np.nan_to_num(tokens).clip(0)[order] for tokens in (new_tokens, output_tokens))
    said = np.cumsum(new + output)
    mine = conversation[order]
    begins = np.flatnonzero(np.diff(mine, prepend=-1))
    earlier = np.repeat((said - new - output)[begins], np.diff(begins, append=len(mine)))
    prompts = np.empty(len(order))
    prompts[order] = said - output - earlier
    answers = np.empty(len(order))
    answers[order] = output
    lengths = (prompts + answers).astype(np.int64)
    there = lengths > 0
    offsets = np.concatenate([[0], np.cumsum(there)])
    texts = Texts(offsets, conversation[there], np.zeros(offsets[-1], dtype=np.int64), lengths[there])
    return np.where(new_tokens > 0, prompts, new_tokens), texts
