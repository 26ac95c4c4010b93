"""Every request for the page: a row of the table each, and what happened to it, from the events.

Times are whole *ticks* since the start of the run, a millionth of a second or, in long runs, more.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from reports.html.packing import NOTHING, Column, Pack
from reports.html.tables import Texts, read_columns
from reports.rundir import Columns
from sim.errors import KvsimError

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STATUS = ("finished", "truncated", "rejected")
EVENTS = ("admit", "refuse", "decode", "preempt", "swap_out", "swap_in", "fork", "copy", "finish", "reject")
_AMOUNTS = ("tokens", "cached", "by", "need", "free", "largest")
_NUMBERS = ("time_s", "request", "sample", *_AMOUNTS)
_MOST_TICKS = 1 << 28


def tick_s(end_s: float) -> float:
    """The smallest power of ten, from a microsecond on, that counts the run in few enough ticks."""
    tick = 1e-6
    while end_s / tick > _MOST_TICKS:
        tick *= 10
    return tick


def packed_requests(requests: Columns, tick: float) -> Pack:
    """The table of requests: what is asked for, when things happened after the arrival, latencies."""
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
    for name in ("tpot_s", "normalized_s_per_token"):
        pack.add(name, requests[name].astype(np.float32))
    return pack


def packed_events(path: Path, tick: float) -> tuple[Pack, list[str]]:
    """The events by request and then by time, and the reasons that they name."""
    numbers, texts = read_columns(path, _NUMBERS, ("event", "reason"))
    request = numbers["request"].astype(np.int64)
    if len(request) and request.min() < 0:
        raise KvsimError(f"{path} is damaged: requests must be numbers from 0, got {request.min()}")
    reason, reasons = _sorted(texts["reason"])
    kind = _codes(texts["event"], EVENTS)
    order = np.lexsort((numbers["time_s"], request))
    track = request * (1 << 20) + numbers["sample"].astype(np.int64)
    order = order[_told_once((kind == EVENTS.index("refuse"))[order], track[order], reason[order])]
    pack = Pack()
    pack.add("request", request[order], delta=True)
    pack.add("time", _ticks(numbers["time_s"][order], tick), delta=True)
    pack.add("sample", _whole(numbers["sample"])[order])
    pack.add("event", kind[order])
    for name in _AMOUNTS:
        column = _whole(numbers[name])[order]
        pack.add(name, np.where(column == NOTHING, 0, column + 1))  # 0: none
    pack.add("reason", reason[order])
    return pack, reasons


def _told_once(refused: Bools, track: Int64, reason: Int64) -> Bools:
    """Which rows to keep: of refusals that follow each other for one reason, the first and the last."""
    same = refused[1:] & refused[:-1] & (track[1:] == track[:-1]) & (reason[1:] == reason[:-1])
    return ~(np.concatenate([[False], same]) & np.concatenate([same, [False]]))[: len(refused)]


def _ticks(seconds: Column, tick: float) -> Int64:
    known = np.isfinite(seconds)
    ticks = np.rint(np.where(known, seconds, 0.0) / tick).astype(np.int64)
    return np.where(known, np.maximum(ticks, 0), NOTHING)


def _whole(column: Column) -> Int64:
    """Whole numbers, with NOTHING where there is none."""
    if column.dtype.kind != "f":
        return column.astype(np.int64)
    return np.where(np.isnan(column), NOTHING, np.nan_to_num(column)).astype(np.int64)


def _codes(texts: Texts, known: tuple[str, ...]) -> Int64:
    """The place of each text among those known; of others, one beyond."""
    places = [known.index(text) if text in known else len(known) for text in texts.texts]
    return np.array(places, np.int64)[texts.codes]


def _sorted(texts: Texts) -> tuple[Int64, list[str]]:
    """Codes of the texts in the order of the alphabet, each once."""
    names = sorted(set(texts.texts))
    return np.array([names.index(text) for text in texts.texts], np.int64)[texts.codes], names
