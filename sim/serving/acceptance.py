"""How many drafts are proposed and accepted in each sampling event of a request.

An event is a step that gives a request tokens; the end of its prompt is event 0. The draft itself is not
modelled: acceptance lengths are published numbers (sim/deployment/speculation.py), or recorded.

    rates        [.8, .6, .5]: how often the first draft is accepted, the second if the first was, ...
    recorded     (proposed, accepted) of each event
"""

from collections.abc import Sequence
from math import ceil
from typing import Final, Protocol

import numpy as np

from kvsim.sim.serving.courses import Counts, Course, Ruled, Tokens, courses
from kvsim.sim.serving.request import Request

Lengths = tuple[Counts, Counts]
"""Tokens of the prompts and of the answers, by row of the trace."""

NUMBERS: Final = 1 << 16
"""Equally likely numbers that are drawn: rates are rounded to this many parts."""
NUMBER: Final = np.dtype("<u2")
BYTES: Final = 2
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
TOGETHER: Final = 64
"""Most requests whose courses are drawn together."""
RESERVE: Final = 1 / 16
LEAST: Final = 16
"""Events that are drawn beyond those that a request needs on average: such a part of them, and so many."""


class Acceptance(Protocol):
    """Says what happens to drafts; `steady`: all are proposed, and later events can be asked for ahead."""

    steady: bool

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """(drafts proposed after this event, drafts accepted in it if there are as many)."""

    def ahead(self, asked: list[tuple[Request, int]], ruled: Ruled) -> list[Course]:
        """For each request its events from that one on, `base` tokens stored before; only if it is steady."""


class Drawn:
    """Each draft is accepted at its rate, if the previous one was; drawn from the seed for each event.

    All draws are one long sequence, in which each request has its place: they depend on nothing else.

    Parameters
    ----------
    rates : sequence of float
        Per position: how often a draft is accepted if those before it were. All are proposed.
    lengths : Lengths, optional
        What the requests are expected to be; others may come, but these are faster.
    """

    def __init__(self, rates: Sequence[float], seed: int, lengths: Lengths | None = None) -> None:
        self.steady = True
        self._all = len(rates)
        self._tokens = [tokens_by_number(rates[:drafts]) for drafts in range(len(rates) + 1)]
        self._mean = [1 + sum(np.cumprod(rates)[:drafts].tolist()) for drafts in range(len(rates) + 1)]
        self._words, self._at = np.random.PCG64DXSM([seed, STREAM]), 0
        self._parts: dict[int, bytes] = {}  # by place: tokens of events
        self._lengths = lengths
        self._drawn: dict[int, Course] = {}  # by row: courses that nobody has taken yet
        self._ruled = Ruled(-1, 1, 0)  # in these
        self._next, self._together = 0, TOGETHER  # the row behind those drawn; how many are drawn next

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """See `Acceptance`."""
        part, at = divmod(event, EVENTS)
        place = place_of(request.index, request.sample, part * EVENTS)
        given = self._parts.get(place)
        if given is None:
            numbers = np.frombuffer(self._numbers(place, EVENTS), NUMBER)
            given = self._tokens[self._all][numbers].tobytes()
            if len(self._parts) >= KEPT:
                del self._parts[next(iter(self._parts))]
            self._parts[place] = given
        return self._all, given[at] - 1

    def ahead(self, asked: list[tuple[Request, int]], ruled: Ruled) -> list[Course]:
        """See `Acceptance`."""
        found = [self._foreseen(request, event, ruled) for request, event in asked]
        times = 1
        while None in found:
            lack = [(at, *asked[at]) for at, course in enumerate(found) if course is None]
            stored = np.array([request.base for _, request, _ in lack])
            final = np.array([request.final_tokens for _, request, _ in lack])
            events = times * self._events(stored, final, ruled)
            places = [place_of(request.index, request.sample, event) for _, request, event in lack]
            given = self._given(places, events, ruled.drafts)
            for (at, _, _), course in zip(lack, courses(given, events, stored, final, ruled), strict=True):
                found[at] = course
            times *= 2
        return [course for course in found if course is not None]

    def _foreseen(self, request: Request, event: int, ruled: Ruled) -> Course | None:
        """The course of a request that is as it is in the trace, unless it was taken before."""
        if event != 1 or self._lengths is None or request.sample:
            return None
        row = request.index
        if row >= self._next or ruled != self._ruled:
            self._draw_from(row, ruled, *self._lengths)
        course = self._drawn.pop(row, None)
        if course is not None and course.stored(0) == request.base:
            return course if course.stored(course.steps) == request.final_tokens else None
        return None

    def _draw_from(self, row: int, ruled: Ruled, prompts: Counts, answers: Counts) -> None:
        """Draw the course of a request as it is in the trace, with those of the rows behind it.

        Fewer at a time if others were not asked for, as another server has those requests.
        """
        drawn, same = self._drawn, ruled == self._ruled
        if 2 * len(drawn) > self._together:
            self._together = max(self._together // 2, 1)
            drawn.clear()
        else:
            self._together = min(2 * self._together, TOGETHER)
        if not same:
            self._ruled = ruled
            drawn.clear()
        first = self._next if same and row < self._next + self._together else row
        self._next = min(first + self._together, len(prompts))
        stored = prompts[first : self._next]
        final = stored + answers[first : self._next] - 1
        events = self._events(stored, final, ruled)
        given = self._given([place_of(each, 0, 1) for each in range(first, self._next)], events, ruled.drafts)
        for each, course in enumerate(courses(given, events, stored, final, ruled), first):
            if course is not None:
                drawn[each] = course

    def _events(self, stored: Counts, final: Counts, ruled: Ruled) -> Counts:
        """Events that almost always suffice for so many tokens, and the one before them."""
        expected = (final - stored) * ((1 + RESERVE) / self._mean[ruled.drafts]) + LEAST
        events: Counts = expected.astype(np.int64)
        return events

    def _given(self, places: list[int], events: Counts, drafts: int) -> Tokens:
        """Tokens of events from these places on, each with one in front that means nothing."""
        each = zip(places, events.tolist(), strict=True)
        numbers = b"".join([self._numbers(place - 1, many) for place, many in each])
        return self._tokens[drafts].take(np.frombuffer(numbers, NUMBER))

    def _numbers(self, place: int, many: int) -> bytes:
        """So many numbers, from this place on."""
        word, skipped = divmod(place, PER_WORD)
        words = (skipped + many + PER_WORD - 1) // PER_WORD
        self._words.advance(word - self._at)
        self._at = word + words
        numbers: bytes = self._words.random_raw(words).tobytes()
        return numbers[BYTES * skipped : BYTES * (skipped + many)]


def place_of(index: int, sample: int, event: int) -> int:
    """Where the number of an event is among all numbers."""
    return (1 + index * APART + sample * FAR_APART) * PER_WORD + event


def least_numbers(rates: Sequence[float]) -> list[int]:
    """For 1, 2, ... tokens, the least number with which an event gives as many; nothing gives the others."""
    accepted = [ceil(chance * NUMBERS - 0.5) for chance in np.cumprod(rates)]  # midpoints lie below chances
    return [0, *[NUMBERS - each for each in accepted if each]]


def tokens_by_number(rates: Sequence[float]) -> Tokens:
    """The tokens that an event gives, by its number."""
    least = [*least_numbers(rates), NUMBERS]
    return np.arange(1, len(least), dtype=np.uint8).repeat(np.diff(least))


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

    def ahead(self, asked: list[tuple[Request, int]], ruled: Ruled) -> list[Course]:
        """Never called: it is not steady."""
        raise NotImplementedError
