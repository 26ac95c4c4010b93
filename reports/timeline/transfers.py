"""Copies that overlap steps, as tracks of a timeline: from host to GPU, and from storage to host.

Such copies overlap each other and their requests' slices, so each is drawn as a pair of asynchronous events.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from kvsim.reports.lives.event_log import ASK, FETCHED, LOAD_BESIDE, LOAD_FIRST, LOADED, EventLog
from kvsim.reports.timeline.text import micro, quoted

COPIES: Final = (
    (LOAD_BESIDE, LOADED, "loads beside steps"),
    (LOAD_FIRST, LOADED, "loads before steps"),
    (ASK, FETCHED, "reads from the storage"),
)
"""The events at which a copy begins and ends, and the name of its track."""


def transfers(pid: int, log: EventLog, first: int, end: int) -> Iterator[tuple[int, str]]:
    """(nanoseconds, event) of each copy's begin and end, for requests from `first` up to but excluding `end`.

    A copy without an end event, cut off by its server's death, is not drawn.
    """
    request, time_ns = log.numbers["request"], (log.numbers["time_ps"] + 500) // 1000
    mine = (request >= first) & (request < end)
    found: list[tuple[int, int, str]] = []
    for begins, ends, name in COPIES:
        begun: dict[tuple[int, int], int] = {}
        for row in np.flatnonzero(mine & np.isin(log.kind, (begins, ends))).tolist():
            whose = int(request[row]), int(log.resent[row])
            if log.kind[row] == begins:
                begun[whose] = row
                continue
            start = begun.pop(whose, None)
            if start is None:
                continue
            args = {"request": whose[0], "tokens": int(log.numbers["tokens"][row])}
            for phase, at in (("b", start), ("e", row)):
                when = int(time_ns[at])
                text = (
                    f'{{"ph": "{phase}", "pid": {pid}, "tid": {pid}, "ts": {micro(when)}, "cat": "transfer", '
                    f'"name": "{name}", "id": {pid << 40 | start}, "args": {quoted(args)}}}'
                )
                found.append((when, at, text))
    yield from ((when, text) for when, _, text in sorted(found))
