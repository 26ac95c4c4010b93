"""The user's choice of when requests arrive, at most one of these:

    replayed    the trace's own arrivals, or another trace's             --rate-scale, --spread
    drawn       a process: poisson, gamma, onoff, diurnal                --request-rate, --burstiness
    clients     each sends its next request after the answer             --clients, --think-time

Options of different choices exclude each other. In closed sessions later turns wait for an answer, whether
first turns are replayed or drawn.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.workload import PS_PER_S, Chain, Clients, Int64Column
from kvsim.workloads.arrivals import PROCESSES, arrival_times_ps
from kvsim.workloads.closed import TOLD, USUAL_THINK_TIME, closed_loop, closed_sessions, in_words
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.replay import replayed

USUAL_PROCESS = "gamma"
USUAL_RATE_AND_BURSTINESS = (2.0, 1.0)
"""Defaults of drawn arrivals."""

TRACE = "trace"
"""Arrivals of the trace itself; `trace:NAME` means those of another trace."""


class Arrivals(NamedTuple):
    """Arrival data for the engine, with any notes."""

    arrival_ps: Int64Column
    waits: Chain | Clients | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class When:
    """The traffic options for arrivals; None if not given."""

    arrivals: str | None = None
    request_rate: float | None = None
    burstiness: float | None = None
    rate_scale: float = 1.0
    spread: float = 0.0
    clients: int | None = None
    think_time: str | None = None
    closed_sessions: bool = False

    @classmethod
    def of(cls, traffic: Traffic) -> Self:
        """The choices in a traffic."""
        return cls(**{each.name: getattr(traffic, each.name) for each in fields(cls)})

    @property
    def others(self) -> str | None:
        """The other trace whose arrivals are used."""
        name, _, other = (self.arrivals or "").partition(":")
        return other if name == TRACE and other else None

    def replays(self, lengths: Lengths) -> bool:
        """Whether requests arrive at times from a trace."""
        if self.arrivals is None:
            return self.clients is None and lengths.arrival_s is not None
        return self.arrivals.partition(":")[0] == TRACE

    def usual(self, lengths: Lengths) -> dict[str, str | float | None]:
        """The defaults; None where there is nothing to choose."""
        drawn = self.clients is None and not self.replays(lengths)
        rate, burstiness = USUAL_RATE_AND_BURSTINESS if drawn else (None, None)
        waits = self.clients is not None or self.closed_sessions
        process = USUAL_PROCESS if drawn else TRACE if self.clients is None else None
        return {
            "arrivals": process,
            "request_rate": rate,
            "burstiness": burstiness,
            "think_time": self._usual_think_time(lengths) if waits else None,
        }

    def _usual_think_time(self, lengths: Lengths) -> str:
        """The trace's own delays if it has any; clients ignore these."""
        return TOLD if self.clients is None and "delay_s" in lengths.labels else USUAL_THINK_TIME

    def check(self, lengths: Lengths) -> None:
        """Raise KvsimError if two choices exclude each other for this trace."""
        if self.clients is None and not self.closed_sessions:
            self._only("think_time", why="without clients or closed_sessions")
        if self.clients is not None:
            why = "with clients, which send when they have their answers"
            self._only(
                "arrivals", "request_rate", "burstiness", "rate_scale", "spread", "closed_sessions", why=why
            )
        elif self.replays(lengths):
            if lengths.arrival_s is None:
                known = f"one of {', '.join(PROCESSES)}, {TRACE}:NAME"
                why = f"for trace {lengths.name}, which has no arrivals of its own"
                raise KvsimError(f"arrivals must be {known} {why}, got {self.arrivals!r}")
            whose = f"trace {lengths.name}, which has its own arrivals (arrivals gamma draws others)"
            why = f"for {whose}" if self.others is None else f"for arrivals {self.arrivals}"
            self._only("request_rate", "burstiness", why=why)
        else:
            why = (
                "for arrivals that are drawn"
                if self.arrivals
                else f"for trace {lengths.name}, which has no arrivals"
            )
            self._only("rate_scale", "spread", why=f"{why} (request_rate sets their rate)")

    def timed(self, lengths: Lengths, rng: np.random.Generator) -> Lengths:
        """The requests with replayed arrivals, or without arrivals."""
        if self.replays(lengths):
            return replayed(lengths, self.spread, self.rate_scale, rng)
        if lengths.arrival_s is None:
            return lengths
        note = f"The arrivals of {lengths.name} are left aside."
        return replace(lengths, arrival_s=None, notes=(*lengths.notes, note))

    def drawn(
        self, lengths: Lengths, arrivals_rng: np.random.Generator, think_rng: np.random.Generator
    ) -> Arrivals:
        """When each request arrives, or which other it waits for."""
        n = len(lengths)
        if self.clients is not None:
            loop = closed_loop(self.clients, self.think_time, n, think_rng)
            return Arrivals(np.zeros(n, dtype=np.int64), loop, (in_words(loop, self.think_time),))
        chain = closed_sessions(lengths, self.think_time, think_rng) if self.closed_sessions else None
        told = self.think_time in (None, TOLD) and "delay_s" in lengths.labels
        notes: tuple[str, ...] = () if chain is None else (in_words(chain, self.think_time, told),)
        if lengths.arrival_s is not None:
            return Arrivals(np.rint(lengths.arrival_s * PS_PER_S).astype(np.int64), chain, notes)
        first = np.ones(n, dtype=bool) if chain is None else chain.after < 0
        arrival_ps = np.zeros(n, dtype=np.int64)
        arrival_ps[first] = self._process(int(first.sum()), arrivals_rng)
        if self.arrivals is not None and PROCESSES[self.arrivals.partition(":")[0]]:
            notes += (f"Arrivals: {self.arrivals}, at the mean rate.",)
        return Arrivals(np.maximum.accumulate(arrival_ps), chain, notes)

    def _process(self, n: int, rng: np.random.Generator) -> Int64Column:
        rate, burstiness = USUAL_RATE_AND_BURSTINESS
        return arrival_times_ps(
            n,
            rate if self.request_rate is None else self.request_rate,
            burstiness if self.burstiness is None else self.burstiness,
            rng,
            USUAL_PROCESS if self.arrivals is None else self.arrivals,
        )

    def _only(self, *names: str, why: str) -> None:
        """Raise KvsimError unless these options have their defaults."""
        for name in names:
            value, nothing = getattr(self, name), getattr(When, name)
            if value != nothing:
                must = "be left out" if nothing is None or nothing is False else f"be {nothing:g}"
                raise KvsimError(f"{name} must {must} {why}, got {value!r}")
