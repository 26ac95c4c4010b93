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

from kvsim.sim.serving.request import Request

Given = np.ndarray[tuple[int], np.dtype[np.uint8]]
Block = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Counts = np.ndarray[tuple[int], np.dtype[np.int64]]
Sums = np.ndarray[tuple[int, int], np.dtype[np.int64]]

ROWS: Final = 64
EVENTS: Final = 128
"""Requests that are drawn together, and events of each; as many more when they are needed."""
NUMBERS: Final = 1 << 16
"""Equally likely numbers that are drawn: rates are rounded to this many parts."""
KEPT: Final = 32
"""Blocks of draws that are kept; others are drawn again."""


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

    Parameters
    ----------
    rates : sequence of float
        Per position: how often a draft is accepted if those before it were. All are proposed.
    """

    def __init__(self, rates: Sequence[float], seed: int) -> None:
        self.steady = True
        self._all, self._seed = len(rates), seed
        self._given = given_by_number(rates)
        self._draws: dict[tuple[int, int], Block] = {}  # by sample and rows: tokens of events, row by row
        self._sums: dict[tuple[int, int, int], Sums] = {}  # by drafts, too: tokens of all events before

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """See `Acceptance`."""
        block, row = divmod(request.index, ROWS)
        return self._all, self._drawn((request.sample, block), event + 1).item(row, event) - 1

    def ahead(self, request: Request, event: int, drafts: int, stored: int, final: int) -> tuple[Counts, int]:
        """See `Acceptance`."""
        block, row = divmod(request.index, ROWS)
        events = event + 1
        while True:
            sums = self._summed(request.sample, block, drafts, events)[row]
            before = sums.item(event) - stored
            last = int(sums.searchsorted(final + before))
            if last < len(sums):
                break
            events = len(sums)  # one more than there are
        counts: Counts = sums[event : last + 1] - before
        beyond = counts.item(-1) - final
        counts[-1] = final
        return counts, beyond

    def _summed(self, sample: int, block: int, drafts: int, events: int) -> Sums:
        """Tokens that all earlier events give, for at least `events` events of a block of requests."""
        name = sample, block, drafts
        found = self._sums.get(name)
        if found is None or events >= found.shape[1]:
            given = self._drawn((sample, block), events)
            if drafts < self._all:
                given = np.minimum(given, drafts + 1)
            found = self._sums[name] = np.empty((ROWS, given.shape[1] + 1), np.int64)
            found[:, 0] = 0
            given.cumsum(axis=1, out=found[:, 1:])
            if len(self._sums) > KEPT:
                del self._sums[next(iter(self._sums))]
        return found

    def _drawn(self, name: tuple[int, int], events: int) -> Block:
        """Tokens that at least `events` events of requests give: the accepted drafts plus one each."""
        found = self._draws.get(name)
        if found is None or events > found.shape[1]:
            found = self._draws[name] = self._more_drawn(name, found, events)
            if len(self._draws) > KEPT:
                del self._draws[next(iter(self._draws))]
        return found

    def _more_drawn(self, name: tuple[int, int], found: Block | None, events: int) -> Block:
        """At least `events` events of a block of requests, beginning with those in `found`."""
        parts = [] if found is None else [found]
        for part in range(0 if found is None else found.shape[1] // EVENTS, -(-events // EVENTS)):
            drawn = np.random.default_rng([self._seed, *name, part])
            numbers = drawn.integers(NUMBERS, size=(ROWS, EVENTS), dtype=np.uint16)
            parts.append(self._given.take(numbers))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def given_by_number(rates: Sequence[float]) -> Given:
    """For each number that can be drawn, how many drafts are accepted, plus one."""
    given: Given = np.ones(NUMBERS, np.uint8)
    for chance in np.cumprod(rates):
        given[: ceil(chance * NUMBERS - 0.5)] += 1  # the midpoints of this many parts lie below it
    return given


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
