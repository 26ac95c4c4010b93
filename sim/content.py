"""The tokens that requests have in common: turns their texts into the shared prefixes of a Workload.

A token is a position in a *stream*: the system prompt of a service, a conversation, the model's vocabulary. A
text is a list of runs (stream, first, length). Neighbours that continue each other are merged into one run,
so that texts begin with the same tokens exactly as far as their runs agree:

    request 0    system 0..511 | chat-7 0..79             two requests share 512 tokens, not 591:
    request 1    system 0..511 | chat-8 0..79             content is ((system, 0, 512),) for both

Parts that no other request can have (a stream that only one text uses) are cut off first; equal texts
count once; the rest is sorted. In sorted order, the text that shares most with another is one of its two
neighbours: a text between two others has every run that both have, or one of a length in between. So
one pass over the neighbours finds all prefixes, in O(runs log requests).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kvsim.allocators.base import Content, Run
from kvsim.sim.workload import Int64Column, gathered

VOCABULARY = 0
"""The stream whose positions are token ids; every other name is text."""

ROWS_AT_ONCE = 4096
"""Number of texts that are Python objects at a time; only distinct ones are kept."""


@dataclass(frozen=True)
class Texts:
    """Texts of requests and their first answers: request i's runs are `offsets[i] : offsets[i + 1]`.

    A text without runs belongs to its request alone, and so does everything after the last run.

    Attributes
    ----------
    offsets : int64 array, shape (n + 1,)
    streams, firsts, lengths : int64 arrays, shape (offsets[n],)
        The runs, each at least one token long.
    """

    offsets: Int64Column
    streams: Int64Column
    firsts: Int64Column
    lengths: Int64Column

    def rows(self, chosen: Int64Column) -> "Texts":
        """The texts of these requests, in this order; requests may repeat."""
        offsets, runs = gathered(self.offsets, chosen)
        return Texts(offsets, self.streams[runs], self.firsts[runs], self.lengths[runs])


def behind(prefixes: Int64Column, tokens: int, texts: Texts | None) -> Texts:
    """The texts of n requests, each preceded by a prefix.

    Parameters
    ----------
    prefixes : int64 array, shape (n,)
        The number of the prefix, from 0.
    tokens : int
        The length of all prefixes.
    texts : Texts or None
        None: every request's text is its own.
    """
    n = len(prefixes)
    first = np.arange(n + 1, dtype=np.int64)
    if texts is None:
        return Texts(first, prefixes, np.zeros(n, dtype=np.int64), np.full(n, tokens, dtype=np.int64))
    at = texts.offsets[:-1]
    return Texts(
        texts.offsets + first,
        np.insert(texts.streams, at, prefixes + int(texts.streams.max(initial=-1)) + 1),
        np.insert(texts.firsts, at, 0),
        np.insert(texts.lengths, at, tokens),
    )


class TextBuilder:
    """Collects texts, request by request, and numbers streams by their first appearance.

    With a `session`, the answer has a name, so that a later request can begin with it:

        prompt                        answer
        nothing else is known         continues the stream `session`, whose start is the prompt
        ends with segment `session`   continues that segment
        other segments, token ids     the stream "session/turn"
    """

    def __init__(self) -> None:
        self._numbers: dict[str | int, int] = {}
        self._turns: dict[str, int] = {}
        self._offsets = array("q", [0])
        self._columns = (array("q"), array("q"), array("q"))

    def add(
        self,
        prompt_tokens: int,
        answer_tokens: int,
        *,
        segments: Sequence[tuple[str, int]] = (),
        token_ids: Sequence[int] = (),
        session: str | None = None,
        turn: int | None = None,
    ) -> None:
        """Add the next request.

        Parameters
        ----------
        segments : sequence of (name, tokens)
            The prompt: the given number of tokens from the start of each stream.
        token_ids : sequence of int
            The prompt as ids of the vocabulary, instead of segments.
        turn : int or None
            None: the number of earlier requests of the session.
        """
        for name, tokens in segments:
            self._run(name, 0, tokens)
        for first, tokens in ascending(token_ids) if len(token_ids) else ():
            self._run(VOCABULARY, first, tokens)
        if session is not None:
            earlier = self._turns.get(session, 0)
            self._turns[session] = earlier + 1
            if not len(token_ids) and not segments:
                self._run(session, 0, prompt_tokens + answer_tokens)
            elif segments and segments[-1][0] == session:
                self._run(session, segments[-1][1], answer_tokens)
            else:
                self._run(f"{session}/{earlier if turn is None else turn}", 0, answer_tokens)
        self._offsets.append(len(self._columns[0]))

    def texts(self) -> Texts:
        """All texts added so far."""
        return Texts(*(np.array(column, dtype=np.int64) for column in (self._offsets, *self._columns)))

    def _run(self, name: str | int, first: int, length: int) -> None:
        streams, firsts, lengths = self._columns
        stream = self._numbers.setdefault(name, len(self._numbers))
        begun = len(streams) > self._offsets[-1]
        if begun and streams[-1] == stream and firsts[-1] + lengths[-1] == first:
            lengths[-1] += length
            return
        streams.append(stream)
        firsts.append(first)
        lengths.append(length)


def ascending(ids: Sequence[int]) -> list[tuple[int, int]]:
    """The runs (first, length) of ids that increase by one: [900, 901, 902, 1] has (900, 3) and (1, 1)."""
    values = np.asarray(ids, dtype=np.int64)
    starts = np.flatnonzero(np.diff(values, prepend=values[0]) != 1)
    lengths = np.diff(starts, append=len(values))
    return list(zip(values[starts].tolist(), lengths.tolist(), strict=True))


def shared_content(
    texts: Texts | None, prompt_tokens: Int64Column, several: npt.NDArray[np.bool_] | None = None
) -> list[Content] | None:
    """For each request, the longest prefix of its text that another text also starts with.

    Parameters
    ----------
    texts : Texts or None
        None: every request's text is its own.
    prompt_tokens : int64 array, shape (n,)
    several : bool array, shape (n,), or None
        Which requests have several answers; these share the whole prompt.

    Returns
    -------
    list of n Contents, or None
        None if nothing is shared. Equal contents are one object. A prompt, or the rest of one, that belongs
        to its request alone has its own stream, numbered after all others.
    """
    if texts is None and (several is None or not several.any()):
        return None
    contents: list[Content] = [()] * len(prompt_tokens) if texts is None else _between_requests(texts)
    if several is not None:
        named = 0 if texts is None else int(texts.streams.max(initial=-1)) + 1
        for row in np.flatnonzero(several).tolist():
            prompt = _prompt(texts, row, int(prompt_tokens[row]))
            if own := int(prompt_tokens[row]) - _tokens(prompt):
                prompt += ((named + row, 0, own),)
            if _tokens(prompt) > _tokens(contents[row]):
                contents[row] = prompt
    return contents if any(contents) else None


def _between_requests(texts: Texts) -> list[Content]:
    """The prefixes that requests share with others."""
    counts: dict[Content, int] = {}
    one: dict[Content, Content] = {}
    kept: list[Content] = []
    for text in _shareable(texts):
        counts[text] = counts.get(text, 0) + 1
        kept.append(one.setdefault(text, text))
    alone = {text: prefix for text, prefix in _longest(sorted(counts)) if counts[text] == 1}
    one |= {prefix: prefix for prefix in alone.values() if prefix not in one}
    return [one[alone[text]] if text in alone else text for text in kept]


def _shareable(texts: Texts) -> "list[Content]":
    """Each text up to the first stream that only it uses; equal runs become one object."""
    uses = np.bincount(texts.streams, minlength=1)
    total = len(texts.streams)
    lonely = np.append(np.where(uses[texts.streams] == 1, np.arange(total), total), total)
    next_lonely = np.minimum.accumulate(lonely[::-1])[::-1]
    begins = texts.offsets[:-1]
    ends = np.minimum(texts.offsets[1:], next_lonely[begins])
    one: dict[Run, Run] = {}
    same: dict[Content, Content] = {}
    found: list[Content] = []
    for start in range(0, len(begins), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        low, high = int(texts.offsets[start]), int(texts.offsets[min(start + ROWS_AT_ONCE, len(begins))])
        columns = (column[low:high].tolist() for column in (texts.streams, texts.firsts, texts.lengths))
        runs = [one.setdefault(run, run) for run in zip(*columns, strict=True)]
        for begin, end in zip((begins[rows] - low).tolist(), (ends[rows] - low).tolist(), strict=True):
            text = tuple(runs[begin:end])
            found.append(same.setdefault(text, text))
    return found


def _longest(texts: list[Content]) -> list[tuple[Content, Content]]:
    """Sorted, distinct texts, each with the longest prefix that it shares with another."""
    lengths = [(0, 0), *(_common(one, other) for one, other in pairwise(texts)), (0, 0)]
    found = []
    for text, before, after in zip(texts, lengths, lengths[1:], strict=False):
        whole, part = max(before, after)
        prefix = text[:whole]
        if part:
            stream, first, _ = text[whole]
            prefix += ((stream, first, part),)
        found.append((text, prefix))
    return found


def _common(one: Content, other: Content) -> tuple[int, int]:
    """The number of whole runs that two texts share at their start, and the shared tokens of the next run."""
    for whole, (run, mate) in enumerate(zip(one, other, strict=False)):
        if run != mate:
            return whole, min(run[2], mate[2]) if run[:2] == mate[:2] else 0
    return min(len(one), len(other)), 0


def _prompt(texts: Texts | None, row: int, tokens: int) -> Content:
    """The first `tokens` tokens of a text, without the end that only this request has."""
    if texts is None:
        return ()
    prompt: list[Run] = []
    for place in range(int(texts.offsets[row]), int(texts.offsets[row + 1])):
        length = min(int(texts.lengths[place]), tokens)
        if length:
            prompt.append((int(texts.streams[place]), int(texts.firsts[place]), length))
        tokens -= length
    return tuple(prompt)


def _tokens(content: Content) -> int:
    return sum(length for _, _, length in content)
