"""Runs as a timeline for Perfetto or chrome://tracing: a file in the Trace Event Format.

    process per run      thread "engine steps"   a slice per step, if there is a step log
                         thread "replica"        a slice while it is dead or off
                         thread "request 17"     a slice per request, with one inside per state of its life
                         counters                the memory ledger, running and waiting, preemptions, tiers
                         tracks of copies        loads that overlap steps, reads from storage below the host

Each of several answers has its own thread, from its fork on. Copies and forks are instants, and an arrow goes
from the request that needed room to the one that lost its memory. Slices of one thread nest, and events are
in order of time: they are sorted as numbers and formatted one by one while writing, so even a long file needs
memory only for its numbers.

The format: JSON with `traceEvents`; `ts` and `dur` in microseconds, here with three decimals.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from kvsim.reports.arrays import Int64
from kvsim.reports.away import Away
from kvsim.reports.lives.event_log import COPY, FORK, NOTHING, PREEMPT, SWAP_OUT
from kvsim.reports.lives.spans import HEAD, PREEMPTED, STATES, WAITS_LOADED, Lives
from kvsim.reports.lives.words import STATES as LOOKS
from kvsim.reports.lives.words import reason_name
from kvsim.reports.palette import KINDS, number
from kvsim.reports.rundir.run import Run
from kvsim.reports.rundir.stack import HELD, held_by, is_told_by
from kvsim.reports.timeline.steps import Steps, step_slices
from kvsim.reports.timeline.text import complete, instant, micro, named, quoted
from kvsim.reports.timeline.transfers import transfers
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.whole_file import whole_file

MOST_REQUESTS = 1000
"""As many tracks as a viewer can still scroll through."""
_FIRST_THREAD = 1000
_REPLICA_THREAD = _FIRST_THREAD - 1
_AT_ONCE = 8192
_PARENT, _ARROW_END, _STATE, _ARROW_START, _INSTANT = range(5)
"""The order at equal times. An arrow ends at the next slice to begin, and starts in the latest one begun."""

Timed = tuple[int, str]
"""(nanoseconds, an event as text)"""


@dataclass(frozen=True)
class Traced:
    """A run to draw: its lives, its steps if known, and when it was absent."""

    run: Run
    lives: Lives
    steps: Steps | None = None
    away: Sequence[Away] = ()


@dataclass(frozen=True)
class Written:
    """The contents of a written file."""

    events: int
    requests: int
    submitted: int
    bytes: int


def chosen_requests(text: str | None) -> tuple[int, int | None]:
    """The first and the last request of `N` (the first N), `A-B` or `all`; the last is None for no end."""
    if text is None:
        return 0, MOST_REQUESTS - 1
    if text == "all":
        return 0, None
    first, dash, last = text.partition("-")
    parts = (first, last) if dash else (first,)
    if not all(part.isascii() and part.isdigit() for part in parts) or not int(parts[-1]) + bool(dash):
        raise KvsimError(f"requests must be a number of them, A-B or all, got {text!r}")
    if not dash:
        return 0, int(first) - 1
    if int(last) < int(first):
        raise KvsimError(f"requests must go up, got {text!r}")
    return int(first), int(last)


def write_trace(
    traced: Sequence[Traced], out: Path, first: int, last: int | None, force: bool = False
) -> Written:
    """Write requests `first` to `last` of these runs, atomically; gzip if the name ends with .gz.

    Replaces an earlier timeline; any other file only with `force`.
    """
    if out.is_dir() or not out.name:
        raise KvsimError(f"out must be a file, and {out} is a directory")
    rows = 1 + max(int(each.run.columns.requests["request"].max(initial=-1)) for each in traced)
    if rows and first >= rows:
        raise KvsimError(f"requests must begin below {rows:,}, the number of them, got {first:,}")
    end = rows if last is None else min(last + 1, rows)
    streams = [_Process(pid, each, first, end) for pid, each in enumerate(traced, 1)]
    head = {"displayTimeUnit": "ms", "otherData": {"kvsim": traced[0].run.config.get("kvsim")}}
    events = 0
    with _whole_file(out, force) as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        parts = chain(
            (text for stream in streams for text in stream.names()),
            (text for _, text in merge(*(part for s in streams for part in s.parts()), key=lambda e: e[0])),
        )
        for text in parts:
            file.write(",\n" + text if events else text)
            events += 1
        file.write("\n]}\n")
    return Written(events, end - first, rows, out.stat().st_size)


@contextmanager
def _whole_file(out: Path, force: bool) -> Iterator[IO[str]]:
    """A file to write that gets its name once it is complete."""
    with whole_file(out, force=force, ours=is_timeline) as part, part.open("wb") as raw:
        if out.name.endswith(".gz"):
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0)
            with packed, _as_text(packed) as file:
                yield file
        else:
            with _as_text(raw) as file:
                yield file


def is_timeline(path: Path) -> bool:
    """Whether a file is a timeline by kvsim, judging by its first bytes."""
    try:
        with (gzip.open if path.name.endswith(".gz") else open)(path, "rb") as file:
            return b'"otherData": {"kvsim": ' in file.read(200)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False


def _as_text(raw: Any) -> IO[str]:  # noqa: ANN401 - a binary file
    return io.TextIOWrapper(raw, encoding="utf-8", newline="\n")


class _Slices(NamedTuple):
    """Events of requests in order of time: what to draw (rank), the track, from, to, a row to look up."""

    time_ns: Int64
    rank: Int64
    track: Int64
    end_ns: Int64
    row: Int64


class _Process:
    """The events of one run."""

    def __init__(self, pid: int, traced: Traced, first: int, end: int) -> None:
        self.pid, self.run, self.lives, self.steps = pid, traced.run, traced.lives, traced.steps
        self.away = traced.away
        request, twice = self.lives.request, np.diff(self.lives.request) == 0
        self.chosen = np.flatnonzero((request >= first) & (request < end))
        self._requested = first, end
        self.whole = len(self.chosen) == len(request)
        twice &= np.diff(self.lives.resent) == 0
        self._several = np.zeros(max(end, int(request.max(initial=-1)) + 1), np.bool_)
        self._several[request[1:][twice]] = True
        self._place = np.full(len(request), NOTHING)
        self._place[self.chosen] = np.arange(len(self.chosen))

    def names(self) -> Iterator[str]:
        """Name and order the process and its threads."""
        pid = self.pid
        yield named(pid, pid, "process_name", {"name": self.run.label})
        yield named(pid, pid, "process_sort_index", {"sort_index": pid})
        if self.steps is not None:
            yield named(pid, pid, "thread_name", {"name": "engine steps"})
            yield named(pid, pid, "thread_sort_index", {"sort_index": 0})
        if self.away:
            yield named(pid, _REPLICA_THREAD, "thread_name", {"name": "replica"})
            yield named(pid, _REPLICA_THREAD, "thread_sort_index", {"sort_index": 1})
        for track in self.chosen.tolist():
            tid = self._tid(track)
            yield named(pid, tid, "thread_name", {"name": self._name(track)})
            yield named(pid, tid, "thread_sort_index", {"sort_index": tid})

    def parts(self) -> Iterator[Iterator[Timed]]:
        """Streams of events, each in order of time."""
        yield self._requests()
        yield self._counters()
        yield transfers(self.pid, self.lives.log, *self._requested)
        yield self._not_there()
        if self.steps is not None:
            window = None
            if not self.whole and len(self.chosen):
                lives = self.lives
                window = int(lives.begin_ps[self.chosen].min()), int(lives.end_ps[self.chosen].max())
            yield step_slices(self.pid, self.steps, window, self.run.place)

    def _tid(self, track: int) -> int:
        return _FIRST_THREAD + int(self._place[track])

    def _name(self, track: int) -> str:
        request, sample = int(self.lives.request[track]), int(self.lives.sample[track])
        again = int(self.lives.resent[track])
        times = f", sent again {again:,} time{'s' * (again > 1)}" if again else ""
        return f"request {request}" + (f", answer {sample}" if self._several[request] else "") + times

    # -- requests -----------------------------------------------------------------------------

    def _requests(self) -> Iterator[Timed]:
        end, start = partial(self._arrow, "f"), partial(self._arrow, "s")
        write = (self._whole_life, end, self._state, start, self._instant)
        slices = self._slices()
        for start in range(0, len(slices.time_ns), _AT_ONCE):
            some = (column[start : start + _AT_ONCE].tolist() for column in slices)
            for time_ns, rank, *rest in zip(*some, strict=True):
                yield time_ns, write[rank](time_ns, *rest)

    def _slices(self) -> _Slices:
        lives, log = self.lives, self.lives.log
        whose = np.repeat(np.arange(len(lives.request)), np.diff(lives.first))
        spans = np.flatnonzero((self._place[whose] != NOTHING) & (lives.stop_ps > lives.start_ps))
        instants = np.flatnonzero(np.isin(log.kind, (COPY, FORK)) & (lives.track_of != NOTHING))
        instants = instants[self._place[lives.track_of[instants]] != NOTHING]
        arrows, sources = self._arrows()
        time_ps = log.numbers["time_ps"]
        none = np.full(len(self.chosen), NOTHING)
        columns = [
            (_PARENT, lives.begin_ps[self.chosen], self.chosen, lives.end_ps[self.chosen], none),
            (_STATE, lives.start_ps[spans], whose[spans], lives.stop_ps[spans], spans),
            (_INSTANT, time_ps[instants], lives.track_of[instants], time_ps[instants], instants),
            (_ARROW_END, time_ps[arrows], lives.track_of[arrows], time_ps[arrows], arrows),
            (_ARROW_START, time_ps[arrows], sources, time_ps[arrows], arrows),
        ]
        slices = _Slices(
            _ns(np.concatenate([time for _, time, _, _, _ in columns])),
            np.concatenate([np.full(len(time), rank) for rank, time, _, _, _ in columns]),
            np.concatenate([track for _, _, track, _, _ in columns]),
            _ns(np.concatenate([end for _, _, _, end, _ in columns])),
            np.concatenate([row for *_, row in columns]),
        )
        order = np.lexsort((slices.row, slices.rank, slices.time_ns))
        return _Slices(*(column[order] for column in slices))

    def _arrows(self) -> tuple[Int64, Int64]:
        """Evictions, and the track of the request that needed the room, if it is drawn."""
        lives, log = self.lives, self.lives.log
        by = log.numbers["by"]
        rows = np.flatnonzero(np.isin(log.kind, (PREEMPT, SWAP_OUT)) & (by != NOTHING))
        rows = rows[by[rows] != log.numbers["request"][rows]]
        sources = np.searchsorted(lives.request, by[rows])
        drawn = self._place[np.minimum(sources, max(len(lives.request) - 1, 0))] != NOTHING
        drawn &= self._place[lives.track_of[rows]] != NOTHING
        drawn[drawn] &= ~self._several[by[rows[drawn]]]
        return rows[drawn], sources[drawn]

    def _whole_life(self, time_ns: int, track: int, end_ns: int, row: int) -> str:
        requests, place = self.run.columns.requests, self.run.row_of(int(self.lives.request[track]))
        args = {name: requests[name][place].item() for name in ("prompt_tokens", "output_tokens")}
        args["status"] = str(requests["status"][place])
        over_again = "resent" in requests and self.lives.resent[track] < requests["resent"][place]
        if over_again:
            args["status"] = "lost"
        for name in () if over_again else ("ttft_s", "tpot_s", "e2e_s"):
            value = number(requests[name][place].item())
            if value is not None:
                args[name] = round(value, 9)
        return complete(self.pid, self._tid(track), time_ns, end_ns, self._name(track), "request", args)

    def _state(self, time_ns: int, track: int, end_ns: int, span: int) -> str:
        lives = self.lives
        state, row = int(lives.state[span]), int(lives.row[span])
        reason = lives.why_refused(row)
        name = LOOKS[STATES[state]].name
        if reason and state in (HEAD, PREEMPTED, WAITS_LOADED):
            name += f": {reason_name(reason)}"
        args: dict[str, Any] = {}
        if row != NOTHING:
            numbers = lives.log.row(row)
            args = {key: numbers[key] for key in ("step", *_ARGUMENTS) if key in numbers}
        if reason:
            args["reason"] = reason
        return complete(self.pid, self._tid(track), time_ns, end_ns, name, STATES[state], args)

    def _instant(self, time_ns: int, track: int, end_ns: int, row: int) -> str:
        log = self.lives.log
        name = "fork" if log.kind[row] == FORK else "copy"
        tokens = int(log.numbers["tokens"][row])
        args = {"tokens" if name == "fork" else "slots": tokens, "step": int(log.numbers["step"][row])}
        return instant(self.pid, self._tid(track), time_ns, name, name, args)

    def _arrow(self, phase: str, time_ns: int, track: int, end_ns: int, row: int) -> str:
        name = "goes first" if self.lives.reason(row) else "needs the room"
        return (
            f'{{"ph": "{phase}", "pid": {self.pid}, "tid": {self._tid(track)}, "ts": {micro(time_ns)}, '
            f'"cat": "preemption", "name": "{name}", "id": {self.pid << 40 | row}}}'
        )

    def _not_there(self) -> Iterator[Timed]:
        for from_s, to_s, why in self.away:
            start_ns, end_ns = round(from_s * 1e9), round(to_s * 1e9)
            yield start_ns, complete(self.pid, _REPLICA_THREAD, start_ns, end_ns, why, "replica", {})

    # -- counters -----------------------------------------------------------------------------

    def _counters(self) -> Iterator[Timed]:
        timeline = self.run.columns.timeline
        kinds = tuple(kind for kind in KINDS if kind in timeline)
        groups = {"KV memory (slots)": kinds, "requests": ("running", "waiting")}
        if "preemptions" in timeline:
            groups["preemptions"] = ("preemptions",)
        if HELD in timeline:
            once = [column for column in held_by(timeline).values() if is_told_by(column, self.run.place)]
            groups["tier: held (bytes)"] = tuple(once)
            groups["tier: moved so far (bytes)"] = ("tier_loaded_bytes", "tier_stored_bytes")
        columns = {name: timeline[name].tolist() for names in groups.values() for name in names}
        times = np.rint(timeline["time_s"] * 1e9).astype(np.int64).tolist()
        for row, time_ns in enumerate(times):
            for group, names in groups.items():
                args = {name: columns[name][row] for name in names}
                yield (
                    time_ns,
                    f'{{"ph": "C", "pid": {self.pid}, "tid": {self.pid}, "ts": {micro(time_ns)}, '
                    f'"name": "{group}", "args": {quoted(args)}}}',
                )


_ARGUMENTS = ("tokens", "cached", "by", "need", "free", "largest")


def _ns(time_ps: Int64) -> Int64:
    """Round picoseconds to nanoseconds; adjacent slices stay adjacent."""
    return (time_ps + 500) // 1000
