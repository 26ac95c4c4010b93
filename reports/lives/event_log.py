"""The events of a run as integers, read from its directory or taken from a repeated run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.reports.arrays import Int64
from kvsim.reports.html.tables import read_columns
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S

NOTHING = -1
"""In a column: no number."""
EVENTS = (
    *("refuse", "admit", "decode", "preempt", "swap_out", "swap_in", "fork", "copy", "finish", "reject"),
    *("load", "hand_over", "load_beside", "loaded", "ask", "fetched", "load_first", "move_out", "move_in"),
    *("set_aside", "resume", "lost", "send", "reserve"),
)
(REFUSE, ADMIT, DECODE, PREEMPT, SWAP_OUT, SWAP_IN, FORK, COPY, FINISH, REJECT, LOAD, HAND_OVER) = range(12)
LOAD_BESIDE, LOADED, ASK, FETCHED, LOAD_FIRST, MOVE_OUT, MOVE_IN, SET_ASIDE, RESUME = range(12, 21)
LOST, SEND, RESERVE = range(21, len(EVENTS))

_OF_FLEETS = ("replica", "resent")
_NUMBERS = ("step", "request", "sample", "tokens", "cached", "by", "need", "free", "largest")


@dataclass(frozen=True)
class EventLog:
    """The events in order, as integers; `kind` indexes EVENTS, `reason` indexes `reasons`."""

    numbers: dict[str, Int64]
    kind: Int64
    reason: Int64
    reasons: list[str]

    def of_replica(self, place: int | None) -> "EventLog":
        """The events of one replica of a fleet; None: all of them."""
        if place is None or "replica" not in self.numbers:
            return self
        rows = self.numbers["replica"] == place
        numbers = {name: column[rows] for name, column in self.numbers.items() if name != "replica"}
        return EventLog(numbers, self.kind[rows], self.reason[rows], self.reasons)

    @property
    def resent(self) -> Int64:
        """How often each event's request had been sent again by then."""
        return self.numbers.get("resent", np.zeros(len(self.kind), np.int64))

    def row(self, row: int) -> dict[str, int]:
        """The numbers that apply to an event."""
        return {name: int(c[row]) for name, c in self.numbers.items() if c[row] != NOTHING}


def whole_ps(seconds: npt.NDArray[Any]) -> Int64:
    """Seconds as picoseconds; NOTHING if not finite."""
    known = np.isfinite(seconds)
    return np.where(known, np.rint(np.where(known, seconds, 0.0) * PS_PER_S), NOTHING).astype(np.int64)


def read_events(directory: Path) -> EventLog | None:
    """The events of a run, None if none were recorded; KvsimError if the file is damaged."""
    path = directory / "events.parquet"
    if not path.exists():
        return None
    numbers, texts = read_columns(path, ("time_s", *_NUMBERS), ("event", "reason"), _OF_FLEETS)
    return event_log({**numbers, **texts}, str(path))


def event_log(table: Mapping[str, Any] | None, where: str = "events") -> EventLog:
    """Build an event log from a table of events, with integer columns and coded strings."""
    if table is None:
        raise KvsimError(f"{where} were not recorded")
    numbers = {"time_ps": whole_ps(np.asarray(table["time_s"], np.float64))}
    for name in (*_NUMBERS, *(each for each in _OF_FLEETS if each in table)):
        column = np.asarray(table[name])
        numbers[name] = (
            np.where(np.isnan(column), NOTHING, column) if column.dtype.kind == "f" else column
        ).astype(np.int64)
    unknown = sorted(set(table["event"].texts) - {*EVENTS, ""})
    if unknown:
        raise KvsimError(f"{where} is damaged: the event {unknown[0]!r} is unknown")
    places = np.array([EVENTS.index(text) if text else NOTHING for text in table["event"].texts], np.int64)
    kind = places[table["event"].codes] if len(places) else np.array([], np.int64)
    if NOTHING in kind or (len(kind) and numbers["request"].min() < 0):
        raise KvsimError(f"{where} is damaged: an event lacks its name or its request")
    return EventLog(numbers, kind, np.asarray(table["reason"].codes), list(table["reason"].texts))
