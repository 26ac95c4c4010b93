"""Texts as runs, and their common prefixes: work is proportional to runs, not to tokens.

    (7, 0, 24) (3, 0, 10)       tokens 0 to 23 of stream 7, then 0 to 9 of stream 3
    (7, 0, 24) (5, 0, 40)       the first 24 are the same

A run is (stream, first, length) (allocators/base.py); equal tokens of a stream are equal text. All radix
trees here are made of them: `radix` (radix_tree.py), SGLang's (sglang/tree.py), LightLLM's, TGI's.
"""

from collections.abc import Sequence

from kvsim.allocators.base import Content, Run


def cut(text: Sequence[Run], start: int, stop: int) -> list[Run]:
    """The tokens of a text from `start` up to `stop` (exclusive)."""
    piece: list[Run] = []
    for stream, first, length in text:
        if stop <= 0:
            break
        skipped = max(start, 0)
        taken = min(length, stop) - skipped
        if taken > 0:
            piece.append((stream, first + skipped, taken))
        start -= length
        stop -= length
    return piece


def take_common(runs: Sequence[Run], rest: list[Run]) -> int:
    """Remove its common prefix with `runs` from `rest` (runs in reverse order); returns the length."""
    common = 0
    for stream, first, length in runs:
        at, end = first, first + length
        while at < end:
            if not rest or rest[-1][0] != stream or rest[-1][1] != at:
                return common
            beyond = at + rest.pop()[2]
            if beyond > end:
                rest.append((stream, end, beyond - end))
                beyond = end
            common += beyond - at
            at = beyond
    return common


def text_of(content: Content, own: int, tokens: int) -> list[Run]:
    """The first tokens of a text: the part others may share, then a stream with the name `own`."""
    shared = sum([length for _, _, length in content])
    if tokens <= shared:
        return cut(content, 0, tokens)
    return [*content, (-1 - own, shared, tokens - shared)]
