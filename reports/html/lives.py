"""Every request for the page: its row in the table, its events, and the spans of its life.

Times are whole *ticks* since the start of the run: microseconds or, in long runs, a larger unit. Events and
spans come from reports/lives, so the page agrees with `sim explain`.
"""

import numpy as np

from kvsim.reports.arrays import Int64
from kvsim.reports.html.packing import NOTHING, Column, Pack
from kvsim.reports.lives.event_log import NOTHING as NONE
from kvsim.reports.lives.event_log import REFUSE, EventLog
from kvsim.reports.lives.spans import STATES, Lives
from kvsim.reports.rundir.formats import Columns
from kvsim.sim.record.events import Texts
from kvsim.sim.workload import PS_PER_S

STATUS = ("finished", "truncated", "rejected")
_AMOUNTS = ("tokens", "cached", "by", "need", "free", "largest")
SAID = len(STATES)
"""Added to the state of a span that starts with a rejection."""
_MOST_TICKS = 1 << 28


def tick_s(end_s: float) -> float:
    """The smallest power of ten, at least a microsecond, that keeps the number of ticks small enough."""
    tick = 1e-6
    while end_s / tick > _MOST_TICKS:
        tick *= 10
    return tick


def packed_requests(requests: Columns, tick: float) -> Pack:
    """The table of requests: lengths, event times relative to the arrival, latencies."""
    pack = Pack()
    arrival = requests["arrival_s"]
    pack.add("request", requests["request"].astype(np.int64), delta=True)
    pack.add("arrival", _ticks(arrival, tick), delta=True)
    rows = len(arrival)
    for name in ("prompt_tokens", "output_tokens", "num_preemptions"):
        pack.add(name, _whole(requests.get(name, np.full(rows, np.nan))))
    names, codes = np.unique(requests["status"].astype(str), return_inverse=True)
    pack.add("status", _codes(Texts(codes, names.tolist()), STATUS) if rows else codes)
    for name, column in (("wait", "first_scheduled_s"), ("first", "first_token_s"), ("whole", "finish_s")):
        pack.add(name, _ticks(requests.get(column, np.full(rows, np.nan)) - arrival, tick))
    for name in ("read_begin", "read_end"):
        if f"{name}_s" in requests:
            pack.add(name, _ticks(requests[f"{name}_s"] - arrival, tick))
    if "resent" in requests:
        pack.add("resent", requests["resent"].astype(np.int64))
    for name in ("ttft", "e2e"):  # including the front end
        pack.add(name, _ticks(requests[f"{name}_s"], tick))
    for name in ("tpot_s", "normalized_s_per_token"):
        pack.add(name, requests[name])
    return pack


def packed_events(log: EventLog, lives: Lives, tick: float) -> Pack:
    """The events, sorted by request and then in order; `sample` is the sample of each event's track."""
    request = log.numbers["request"]
    order = np.argsort(request, kind="stable")
    tracked = lives.track_of != NONE
    sample = np.where(tracked, lives.sample[lives.track_of], log.numbers["sample"])
    pack = Pack()
    pack.add("request", request[order], delta=True)
    pack.add("time", _ticks_of_ps(log.numbers["time_ps"], tick)[order], delta=True)
    pack.add("sample", sample[order])
    pack.add("event", log.kind[order])
    if "resent" in log.numbers:
        pack.add("resent", log.resent[order])
    for name in _AMOUNTS:
        pack.add(name, log.numbers[name][order] + 1)  # 0: none
    pack.add("reason", log.reason[order])
    return pack


def packed_spans(lives: Lives, tick: float, several: bool = False) -> Pack:
    """The tracks with their numbers of spans; for each span its state and its start, except arrivals.

    `several`: requests may visit several replicas, so a track need not start at the arrival.
    """
    pack = Pack()
    said = (lives.row != NONE) & (lives.log.kind[lives.row] == REFUSE)
    start = _ticks_of_ps(lives.start_ps, tick)
    if not several:
        start[lives.first[:-1][(lives.parent == NONE) & (np.diff(lives.first) > 0)]] = 0
    pack.add("request", lives.request, delta=True)
    pack.add("sample", lives.sample)
    if "resent" in lives.log.numbers:
        pack.add("resent", lives.resent)
    pack.add("many", np.diff(lives.first))
    pack.add("state", lives.state + np.where(said, SAID, 0))
    pack.add("start", start, delta=True)
    return pack


def _ticks_of_ps(time_ps: Int64, tick: float) -> Int64:
    unit = round(tick * PS_PER_S)
    return (time_ps + unit // 2) // unit


def _ticks(seconds: Column, tick: float) -> Int64:
    known = np.isfinite(seconds)
    ticks = np.rint(np.where(known, seconds, 0.0) / tick).astype(np.int64)
    return np.where(known, np.maximum(ticks, 0), NOTHING)


def _whole(column: Column) -> Int64:
    """Integers, with NOTHING for missing values."""
    if column.dtype.kind != "f":
        return column.astype(np.int64)
    return np.where(np.isnan(column), NOTHING, np.nan_to_num(column)).astype(np.int64)


def _codes(texts: Texts, known: tuple[str, ...]) -> Int64:
    """The index of each string in `known`; len(known) for others."""
    places = [known.index(text) if text in known else len(known) for text in texts.texts]
    return np.array(places, np.int64)[texts.codes]
