"""How many drafts are proposed and accepted: a number of each sampling event of a request.

An event is a step that gives a request tokens; the end of its prompt is event 0. Nothing is modelled of the
draft itself: lengths of acceptance are published numbers (sim/deployment/speculation.py), or recorded.

    rates        [.8, .6, .5]: the first draft is accepted so often, the second if the first was, ...
    recorded     (proposed, accepted) of each event
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol

from kvsim.sim.serving.request import Request


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
        self._rates, self._seed = tuple(rates), seed
        self._streams: dict[tuple[int, int], tuple[Random, list[int]]] = {}

    def event(self, request: Request, event: int) -> tuple[int, int]:
        """As in `Acceptance`."""
        return len(self._rates), self.ahead(request, event, 1)[0]

    def ahead(self, request: Request, event: int, count: int) -> list[int]:
        """Drafts accepted in so many events from this one on."""
        name = request.index, request.sample
        stream, drawn = self._streams.get(name, (None, []))
        if stream is None:
            stream = Random(f"{self._seed}/{request.index}/{request.sample}")
            self._streams[name] = stream, drawn
        while len(drawn) < event + count:
            accepted, at = 0, stream.random()
            for rate in self._rates:  # one number decides: it is below the product of the rates so far
                at = at / rate if rate else 2.0
                if at >= 1:
                    break
                accepted += 1
            drawn.append(accepted)
        return drawn[event : event + count]


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
