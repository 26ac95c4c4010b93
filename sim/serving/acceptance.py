"""How many drafts are proposed and accepted: a number of each sampling event of a request.

An event is a step that gives a request tokens; the end of its prompt is event 0. Nothing is modelled of the
draft itself: lengths of acceptance are published numbers (sim/deployment/speculation.py), or recorded.

    rates        [.8, .6, .5]: the first draft is accepted so often, the second if the first was, ...
    recorded     (proposed, accepted) of each event
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from typing import Final, Protocol

import numpy as np

from kvsim.sim.serving.request import Request

Given = np.ndarray[tuple[int], np.dtype[np.uint8]]

ROWS: Final = 64
EVENTS: Final = 128
"""Requests that are drawn together, and events of each; so many more when it comes to them."""
NUMBERS: Final = 1 << 16
"""Equally likely numbers that are drawn: rates are rounded to so many parts."""
SPARE: Final = 16
"""Events beyond those that are needed on average, which most often suffice."""
KEPT: Final = 64
"""Draws that are kept; others are made again."""


class Acceptance(Protocol):
    """Says what becomes of drafts; `steady`: all are proposed, and what comes can be asked for ahead."""

    steady: bool

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """(drafts proposed behind this event, drafts accepted in it if there are as many)."""

    def ahead(
        self, request: Request, event: int, drafts: int, tokens: int, final: int
    ) -> tuple[bytes, list[int]]:
        """What events from this one on give with so many drafts: one more than are accepted.

        And the tokens of the sequence before each of them and behind the last, `tokens` before the first and
        more than `final` behind the last; only where it is steady.
        """


class Drawn:
    """Each draft is accepted at its rate, if the one before it was; drawn by the seed for each event.

    Parameters
    ----------
    rates : sequence of float
        Of each place: how often a draft there is accepted if those before it were. All are proposed.
    """

    def __init__(self, rates: Sequence[float], seed: int) -> None:
        self.steady = True
        self._all, self._seed = len(rates), seed
        self._given = given_by_number(rates)
        self._sixteen = int(self._given.mean() * 16)  # tokens of so many events, on average
        self._cuts = [bytes([min(given, drafts + 1) for given in range(256)]) for drafts in range(self._all)]
        self._draws: dict[tuple[int, int, int], bytes] = {}  # what events give, row by row

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """As in `Acceptance`."""
        return self._all, self._drawn(request, event // EVENTS)[event % EVENTS] - 1

    def ahead(
        self, request: Request, event: int, drafts: int, tokens: int, final: int
    ) -> tuple[bytes, list[int]]:
        """As in `Acceptance`."""
        part, first = divmod(event, EVENTS)
        given, events = self._drawn(request, part)[first:], (final - tokens) * 16 // self._sixteen + SPARE
        while True:
            while len(given) < events:
                part += 1
                given += self._drawn(request, part)
            some = given[:events]
            if drafts < self._all:
                some = some.translate(self._cuts[drafts])
            known = list(accumulate(some, initial=tokens))
            if known[-1] > final:
                return some, known
            events *= 2

    def _drawn(self, request: Request, part: int) -> bytes:
        """What so many events of a request give: one more than are accepted."""
        block, row = divmod(request.index, ROWS)
        name = request.sample, block, part
        found = self._draws.get(name)
        if found is None:
            drawn = np.random.default_rng([self._seed, *name])
            numbers = drawn.integers(NUMBERS, size=ROWS * EVENTS, dtype=np.uint16)
            found = self._draws[name] = self._given.take(numbers).tobytes()
            if len(self._draws) > KEPT:
                del self._draws[next(iter(self._draws))]
        return found[row * EVENTS : (row + 1) * EVENTS]


def given_by_number(rates: Sequence[float]) -> Given:
    """For each number that is drawn, how many drafts are accepted, and one more."""
    given: Given = np.ones(NUMBERS, np.uint8)
    for chance in np.cumprod(rates):
        given[: ceil(chance * NUMBERS - 0.5)] += 1  # the middles of so many parts lie below it
    return given


class Recorded:
    """What was recorded of each request; behind the last event all drafts are proposed, and none accepted.

    Parameters
    ----------
    events : sequence of sequences of (int, int)
        By row: (proposed, accepted) of each event.
    """

    def __init__(self, events: Sequence[Sequence[tuple[int, int]]], most: int) -> None:
        self.steady = False
        self._events, self._most = events, most

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """As in `Acceptance`."""
        events = self._events[request.index]
        return events[event] if event < len(events) else (self._most, 0)

    def ahead(
        self, request: Request, event: int, drafts: int, tokens: int, final: int
    ) -> tuple[bytes, list[int]]:
        """As in `Acceptance`, of nobody."""
        raise NotImplementedError
