"""Shared system prompts: every request gets one of a few before its own prompt.

    10x200          10 system prompts of 200 tokens, equally likely
    10x200:1.5      the k-th most popular with a probability proportional to k**-1.5

The turns of a session have the same one. Prompts after the same system prompt still share what they shared
before. The stream of each system prompt is shared from its first token, so a prefix cache holds it once.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvsim.sim.content import behind
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Int64Column
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.synthetic import MOST_RANKS, MOST_TOKENS, zipf_ranks


def with_shared_prefix(lengths: Lengths, text: str, rng: np.random.Generator) -> Lengths:
    """The requests, each with one of the system prompts in front.

    Parameters
    ----------
    text : str
        `GROUPSxTOKENS` or `GROUPSxTOKENS:ALPHA`.
    rng : numpy Generator
        Draws one number per request, whatever the text.

    Raises
    ------
    KvsimError
        Wrong syntax, or no groups or tokens.
    """
    groups, tokens, alpha = _parsed(text)
    drawn = zipf_ranks(alpha, groups, len(lengths), rng)
    if "session" in lengths.labels:
        drawn = drawn[_first_rows(lengths.labels["session"].tolist())]
    which = "the same system prompt" if groups == 1 else f"one of {groups:,} system prompts"
    return replace(
        lengths,
        prompt_tokens=lengths.prompt_tokens + tokens,
        texts=behind(drawn, tokens, lengths.texts),
        notes=(*lengths.notes, f"In front of every prompt: {which}, {tokens:,} tokens."),
    )


def _parsed(text: str) -> tuple[int, int, float]:
    """The number of prompts, their length, and their skew in popularity."""
    found = re.fullmatch(r"(\d{1,12})x(\d{1,12})(?::(\d+(?:\.\d*)?))?", text, re.ASCII)
    if not found:
        must = "GROUPSxTOKENS, as in 10x200, or GROUPSxTOKENS:ALPHA"
        raise KvsimError(f"shared_prefix must be {must}, got {text!r}")
    groups, tokens = int(found[1]), int(found[2])
    if not (1 <= groups <= MOST_RANKS and 1 <= tokens <= MOST_TOKENS):
        limits = f"from 1 to {MOST_RANKS:,} groups of 1 to {MOST_TOKENS:,} tokens"
        raise KvsimError(f"shared_prefix must be {limits}, got {text!r}")
    return groups, tokens, float(found[3] or 0)


def _first_rows(sessions: Sequence[object]) -> Int64Column:
    """For each row, the first row of its session, or itself."""
    first: dict[object, int] = {}
    rows = (row if name is None else first.setdefault(name, row) for row, name in enumerate(sessions))
    return np.fromiter(rows, np.int64, len(sessions))
