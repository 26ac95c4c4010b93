"""How many drafts are proposed and accepted: a number of each sampling event of a request.

An event is a step that gives a request tokens; the end of its prompt is event 0. Nothing is modelled of the
draft itself: lengths of acceptance are published numbers (sim/deployment/speculation.py), or recorded.

    rates        [.8, .6, .5]: the first draft is accepted so often, the second if the first was, ...
    recorded     (proposed, accepted) of each event
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import nextafter, prod
from random import Random
from typing import Final, Protocol

from kvsim.sim.serving.request import Request

AT_A_TIME: Final = 32
"""Events of a request that are drawn at a time, at least."""


class Acceptance(Protocol):
    """Says what becomes of drafts; `steady`: all are proposed, and what comes can be asked for ahead."""

    steady: bool

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """(drafts proposed behind this event, drafts accepted in it if there are as many)."""

    def ahead(self, request: Request, event: int, count: int) -> list[int]:
        """Drafts accepted in so many events from this one on; only where it is steady."""


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
        self._bounds = bounds(rates)
        self._streams: dict[tuple[int, int], tuple[Random, list[int]]] = {}

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """As in `Acceptance`."""
        found = self._streams.get((request.index, request.sample))
        if found is None or event >= len(found[1]):
            return self._all, self.ahead(request, event, 1)[0]
        return self._all, found[1][event]

    def ahead(self, request: Request, event: int, count: int) -> list[int]:
        """Drafts accepted in so many events from this one on."""
        name, end = (request.index, request.sample), event + count
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Random(f"{self._seed}/{request.index}/{request.sample}"), []
        stream, drawn = found
        if end > len(drawn):
            most, places, draw = self._all, self._bounds, stream.random
            more = max(end - len(drawn), AT_A_TIME)
            drawn += [most - bisect_right(places, draw()) for _ in range(more)]
        return drawn[event:end]


def bounds(rates: Sequence[float]) -> list[float]:
    """For each place, the last one first: the draft there is accepted by numbers below the bound.

    A number is divided by the rates up to the place, one after the other, and must stay below 1. That rounds,
    so the bound is near their product: the least number that does not stay below.
    """
    found: list[float] = []
    for places in range(1, len(rates) + 1):
        bound = prod(rates[:places])
        while bound > 0 and not _accepts(rates[:places], nextafter(bound, 0)):
            bound = nextafter(bound, 0)
        while _accepts(rates[:places], bound):
            bound = nextafter(bound, 2)
        found.append(bound)
    return found[::-1]


def _accepts(rates: Sequence[float], at: float) -> bool:
    """Whether a number that is drawn stays below 1 when it is divided by all rates."""
    for rate in rates:
        at = at / rate if rate else 2.0
        if at >= 1:
            return False
    return True


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

    def ahead(self, request: Request, event: int, count: int) -> list[int]:
        """As in `Acceptance`, for who proposes all."""
        return [self.event(request, each)[1] for each in range(event, event + count)]
