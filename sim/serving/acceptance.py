"""How many drafts are proposed and accepted in each sampling event of a request.

An event is a step that gives a request tokens; the end of its prompt is event 0. The draft itself is not
modelled: acceptance lengths are published numbers (sim/deployment/speculation.py), or recorded.

    rates        [.8, .6, .5]: how often the first draft is accepted, the second if the first was, ...
    recorded     (proposed, accepted) of each event
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from typing import Final, Protocol

import numpy as np

from kvsim.sim.serving.request import Request

Counts = np.ndarray[tuple[int], np.dtype[np.int64]]

NUMBERS: Final = 1 << 16
"""Equally likely numbers that are drawn: rates are rounded to this many parts."""
BYTE: Final = 8
"""Bits of a byte: a number has an upper and a lower one."""
PER_WORD: Final = 4
"""Numbers in one word of the generator."""
APART: Final = 0x9E3779B97F4A7C15
FAR_APART: Final = APART << 40 | 1
"""Words from one request to the next, and from one answer to the next: no two ever draw the same words."""
STREAM: Final = 0xD4AF7
"""Keeps these draws apart from others with the same seed."""
EVENTS: Final = 64
"""Events that are drawn together when they are asked for one by one."""
KEPT: Final = 1 << 12
"""Most of these parts that are kept; others are drawn again."""


class Acceptance(Protocol):
    """Says what happens to drafts; `steady`: all are proposed, and later events can be asked for ahead."""

    steady: bool

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """(drafts proposed after this event, drafts accepted in it if there are as many)."""

    def ahead(self, request: Request, event: int, drafts: int, stored: int, final: int) -> tuple[Counts, int]:
        """Tokens that events from this one on give with `drafts` drafts; only if it is steady.

        Returns the tokens of the sequence that are stored before each event and after the last, from `stored`
        to `final`, as an int64 array; and the tokens that the last event gives beyond the end of the answer.
        """


class Drawn:
    """Each draft is accepted at its rate, if the previous one was; drawn from the seed for each event.

    All draws are one long sequence, in which each request has its place: they depend on nothing else.

    Parameters
    ----------
    rates : sequence of float
        Per position: how often a draft is accepted if those before it were. All are proposed.
    """

    def __init__(self, rates: Sequence[float], seed: int) -> None:
        self.steady = True
        self._all, least = len(rates), least_numbers(rates)
        self._least = [least[: drafts + 1] for drafts in range(len(rates) + 1)]
        self._by_byte = [tokens_by_byte(each) for each in self._least]
        self._mean = [1 + sum(np.cumprod(rates)[:drafts].tolist()) for drafts in range(len(rates) + 1)]
        self._words, self._at = np.random.PCG64DXSM([seed, STREAM]), 0
        self._parts: dict[tuple[int, int, int], bytes] = {}  # by request and part: tokens of events

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """See `Acceptance`."""
        part, place = divmod(event, EVENTS)
        name = request.index, request.sample, part
        given = self._parts.get(name)
        if given is None:
            given = self._given(request, part * EVENTS, EVENTS, self._all)
            if len(self._parts) >= KEPT:
                del self._parts[next(iter(self._parts))]
            self._parts[name] = given
        return self._all, given[place] - 1

    def ahead(self, request: Request, event: int, drafts: int, stored: int, final: int) -> tuple[Counts, int]:
        """See `Acceptance`."""
        events = int((final - stored) / self._mean[drafts])
        while True:
            events += events // 8 + 8
            given = self._given(request, event, events, drafts)
            counts = np.frombuffer(b"\0" + given, np.uint8).astype(np.int64)
            counts[0] = stored
            counts = np.add.accumulate(counts)
            last = int(counts.searchsorted(final))
            if last <= events:
                break
        counts = counts[: last + 1]
        beyond = counts.item(last) - final
        counts[last] = final
        return counts, beyond

    def _given(self, request: Request, event: int, events: int, drafts: int) -> bytes:
        """Tokens that this event and those after it give: the accepted drafts plus one each."""
        word, skipped = divmod(event + PER_WORD, PER_WORD)
        at, words = request.index * APART + word, (skipped + events + PER_WORD - 1) // PER_WORD
        if request.sample:
            at += request.sample * FAR_APART
        self._words.advance(at - self._at)
        self._at = at + words
        numbers: bytes = self._words.random_raw(words).tobytes()
        first, behind = 2 * skipped, 2 * (skipped + events)
        upper = numbers[first + 1 : behind : 2]
        given = upper.translate(self._by_byte[drafts])
        unclear = given.find(0)
        if unclear < 0:
            return given
        each, least = bytearray(given), self._least[drafts]
        while unclear >= 0:
            each[unclear] = bisect_right(least, upper[unclear] << BYTE | numbers[first + 2 * unclear])
            unclear = each.find(0, unclear)
        return bytes(each)


def least_numbers(rates: Sequence[float]) -> list[int]:
    """For 1, 2, ... tokens, the least number with which an event gives as many; nothing gives the others."""
    accepted = [ceil(chance * NUMBERS - 0.5) for chance in np.cumprod(rates)]  # midpoints lie below chances
    return [0, *[NUMBERS - each for each in accepted if each]]


def tokens_by_byte(least: list[int]) -> bytes:
    """The tokens that an event gives, by the upper byte of its number; 0 if the lower one decides, too."""
    starts = range(0, NUMBERS, 1 << BYTE)
    tokens = [(bisect_right(least, at), bisect_right(least, at + (1 << BYTE) - 1)) for at in starts]
    return bytes([first if first == last else 0 for first, last in tokens])


class Recorded:
    """Recorded events of each request; after the last one all drafts are proposed, and none accepted.

    Parameters
    ----------
    events : sequence of sequences of (int, int)
        By row: (proposed, accepted) of each event.
    """

    def __init__(self, events: Sequence[Sequence[tuple[int, int]]], most: int) -> None:
        self.steady = False
        self._events, self._most = events, most

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """See `Acceptance`."""
        events = self._events[request.index]
        return events[event] if event < len(events) else (self._most, 0)

    def ahead(self, request: Request, event: int, drafts: int, stored: int, final: int) -> tuple[Counts, int]:
        """Never called: it is not steady."""
        raise NotImplementedError
