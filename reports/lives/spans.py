"""Every request's life as spans of time, each with a state and the reason for it, derived from events.

    arrival |---- behind ----|-- head: no room --|-- prefill --|---- decode ----| last token

A *track* is the life of one sequence: a request, or one of its answers if it has several. Its spans have no
gaps from the arrival to the last token, so they sum to E2E exactly. A forked sample's track begins at the
fork; before that it shares its parent's life.

    step       arrived at an empty queue: until the end of the step in flight
    behind     in the queue behind others; also set aside, keeping its memory
    head       at the head of the queue and not admitted, for a reason
    prefill    admitted, until its prompt is computed
    decode     until its last token, including steps in which it stands still for other requests' prompts
    preempted  evicted and in the queue again, at its head or not
    recompute  admitted again, until everything that was thrown away is computed
    swapped    in the host pool
    loading    holds memory, into which keys and values of its prompt are loaded from elsewhere
    loaded     they have arrived, and it waits to be scheduled, for a reason like the head of the queue
    handed     its prompt was computed on another server, and it is on its way; then it waits here
    moving     the last of its blocks are copied to another replica, then it waits for the step in flight
    down       no replica is alive that it could be sent to

A request that moves between replicas has one track per stay, which begins with the move. If its replica dies
its track is cut off, and it has further tracks where it is sent again.

The candidates of a beam search are one track: the events do not distinguish them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvsim.reports.arrays import Bools
from kvsim.reports.lives.event_log import (
    ADMIT,
    DECODE,
    EVENTS,
    FINISH,
    FORK,
    HAND_OVER,
    LOAD,
    LOADED,
    LOST,
    MOVE_IN,
    MOVE_OUT,
    NOTHING,
    PREEMPT,
    REFUSE,
    REJECT,
    RESUME,
    SEND,
    SET_ASIDE,
    SWAP_IN,
    SWAP_OUT,
    EventLog,
    Int64,
    whole_ps,
)
from kvsim.reports.rundir.formats import Columns
from kvsim.reports.rundir.run import Run
from kvsim.sim import __version__
from kvsim.sim.errors import KvsimError

_ARRIVE, _DISPLACED = len(EVENTS), len(EVENTS) + 1
STATES = (
    *("step", "behind", "head", "prefill", "decode", "preempted", "recompute", "swapped"),
    *("loading", "loaded", "handed", "moving", "down"),
)
STEP, BEHIND, HEAD, PREFILL, DECODING, PREEMPTED, RECOMPUTE, SWAPPED = range(8)
LOADING, WAITS_LOADED, HANDED, MOVING, DOWN = range(8, len(STATES))
ENDS = (FINISH, HAND_OVER, MOVE_OUT)
"""Events that end a track."""
CUTS = (REJECT, LOST)
"""Events that end all open tracks of a request."""
WAITING = (STEP, BEHIND, HEAD, PREEMPTED, WAITS_LOADED)
"""States in which a track waits to be scheduled."""

_SAMPLE_BITS = 20
_AFTER = {
    REFUSE: (HEAD, PREEMPTED),
    ADMIT: (PREFILL, RECOMPUTE),
    DECODE: (DECODING, DECODING),
    PREEMPT: (PREEMPTED, PREEMPTED),
    SWAP_OUT: (SWAPPED, SWAPPED),
    SWAP_IN: (DECODING, DECODING),
    FORK: (DECODING, DECODING),
    LOAD: (LOADING, LOADING),
    LOADED: (WAITS_LOADED, WAITS_LOADED),
    MOVE_IN: (DECODING, DECODING),
    SET_ASIDE: (BEHIND, BEHIND),
    RESUME: (DECODING, DECODING),
    _ARRIVE: (BEHIND, BEHIND),
    _DISPLACED: (BEHIND, PREEMPTED),
}
"""The state after an event: of a track that was never preempted, and of one that was."""
INNER = (REFUSE, ADMIT, DECODE, PREEMPT, SWAP_OUT, SWAP_IN, LOAD, LOADED, MOVE_IN, SET_ASIDE, RESUME)
"""Events that change a track's state, besides ends and forks."""


class Span(NamedTuple):
    """A part of a life."""

    start_ps: int
    end_ps: int
    state: int
    reason: str
    row: int
    """The event that began it, or NOTHING."""


@dataclass(frozen=True)
class Lives:
    """The spans of all tracks: those of track i are `first[i]` to `first[i + 1]`.

    Tracks are sorted by request, then by how often it had been sent again (`resent`), then by sample.
    `end_ps` is when a track ends, `cut` whether it was cut off: rejected, or lost with its replica. `parent`
    is the track it was forked from, or NOTHING. `track_of` is each event's track (NOTHING for events that
    cut).
    """

    log: EventLog
    request: Int64
    resent: Int64
    sample: Int64
    parent: Int64
    begin_ps: Int64
    end_ps: Int64
    cut: Bools
    first: Int64
    start_ps: Int64
    stop_ps: Int64
    state: Int64
    row: Int64
    track_of: Int64

    def spans(self, track: int) -> list[Span]:
        """The whole life of a track from the arrival on, including what it shared before its fork."""
        own = [self._span(place) for place in range(int(self.first[track]), int(self.first[track + 1]))]
        parent = int(self.parent[track])
        if parent == NOTHING:
            return own
        born_ps = int(self.begin_ps[track])
        return [s for s in self.spans(parent) if s.end_ps <= born_ps and s.start_ps < born_ps] + own

    def reason(self, row: int) -> str:
        """The reason that an event gives, or ""."""
        return self.log.reasons[self.log.reason[row]] if row != NOTHING else ""

    def why_refused(self, row: int) -> str:
        """The reason of a refusal; "" for any other event."""
        return self.reason(row) if row != NOTHING and self.log.kind[row] == REFUSE else ""

    def _span(self, place: int) -> Span:
        row = int(self.row[place])
        start, stop = int(self.start_ps[place]), int(self.stop_ps[place])
        return Span(start, stop, int(self.state[place]), self.why_refused(row), row)


class Came(NamedTuple):
    """When requests entered a replica, if not at their arrival."""

    request: Int64
    resent: Int64
    time_ps: Int64

    def enter(self, of: Int64, times: int, arrive_ps: Int64) -> None:
        """Set the entry times of tracks, for request x with key x * `times` + resent in `of`, where known."""
        units = np.where(self.resent < times, self.request * times + self.resent, NOTHING)
        which, found = _looked_up(of, units)
        arrive_ps[which] = self.time_ps[found]


def came_at(log: EventLog, event: int, later_ps: int = 0) -> Came:
    """Entry times at which this event of the requests took place, plus `later_ps`."""
    rows = np.flatnonzero(log.kind == event)
    return Came(log.numbers["request"][rows], log.resent[rows], log.numbers["time_ps"][rows] + later_ps)


def lives(log: EventLog, requests: Columns, where: str = "events", came: Came | None = None) -> Lives:
    """All tracks of a run; KvsimError if the events do not belong to these requests.

    `came`: entry times, if requests did not arrive there directly; it may include other requests.
    """
    arrival_ps, ids = whole_ps(requests["arrival_s"]), np.asarray(requests["request"]).astype(np.int64)
    owner, time_ps, kind = log.numbers["request"], log.numbers["time_ps"], log.kind
    if not np.array_equal(np.unique(owner), ids):
        raise KvsimError(f"{where} is damaged: it does not tell of the {len(ids):,} requests of the run")
    times = int(log.resent.max(initial=0)) + 1
    whose = owner * times + log.resent
    sample, forked = _own_samples(log, whose)
    key = whose << _SAMPLE_BITS | sample
    cuts = np.isin(kind, CUTS)
    only_cut = cuts & ~np.isin(whose, whose[~cuts])
    keys = np.unique(np.concatenate([key[~cuts], whose[only_cut] << _SAMPLE_BITS]))
    of, track = keys >> _SAMPLE_BITS, np.searchsorted(keys, key)
    last, cut = _last_events(log, track, of, whose)
    if NOTHING in last:
        broken = int(of[last == NOTHING][0] // times)
        raise KvsimError(f"{where} is damaged: request {broken} neither finishes nor is rejected")
    child = np.isin(np.arange(len(keys)), track[forked])
    moved = np.isin(np.arange(len(keys)), track[kind == MOVE_IN])
    inner = np.isin(kind, INNER) | forked
    born = np.flatnonzero(~(child | moved))
    arrive_ps = arrival_ps[np.searchsorted(ids, of // times)]
    alone_cut = np.isin(of, whose[only_cut]) & (of % times > 0)  # it was never resent
    arrive_ps[alone_cut] = time_ps[last[alone_cut]]
    for each in (came, came_at(log, SEND)):
        if each is not None:
            each.enter(of, times, arrive_ps)
    rows = _Rows(
        np.concatenate([track[inner], born, np.arange(len(keys))]),
        np.concatenate([np.flatnonzero(inner), np.full(len(born), NOTHING), last]),
        np.concatenate([kind[inner], np.full(len(born), _ARRIVE), kind[last]]),
        np.concatenate([time_ps[inner], arrive_ps[born], time_ps[last]]),
    )
    table = rows.ordered().without_beside()
    alone = _came_alone(table, len(keys), cut)
    table = table.with_displaced(alone)
    end = np.isin(table.kind, (*ENDS, *CUTS))
    first = np.concatenate([[0], np.cumsum(np.bincount(table.track[~end], minlength=len(keys)))])
    opening = np.concatenate([[True], table.track[1:] != table.track[:-1]]) if len(keys) else end
    parent = np.where(child, np.searchsorted(of, of, "right") - 1, NOTHING)  # highest number
    return Lives(
        log=log,
        request=of // times,
        resent=of % times,
        sample=keys & ((1 << _SAMPLE_BITS) - 1),
        parent=parent,
        begin_ps=table.time_ps[opening],
        end_ps=table.time_ps[end],
        cut=cut,
        first=first,
        start_ps=table.time_ps[~end],
        stop_ps=table.time_ps[np.flatnonzero(~end) + 1],
        state=table.states(alone)[~end],
        row=np.where(np.isin(table.kind, (_ARRIVE, _DISPLACED)), NOTHING, table.place)[~end],
        track_of=np.where(cuts, NOTHING, track),
    )


def _last_events(log: EventLog, track: Int64, of: Int64, whose: Int64) -> tuple[Int64, Bools]:
    """The row of each track's last event, or of the event that cut it off, and whether it was cut off."""
    last = np.full(len(of), NOTHING)
    finishes = np.flatnonzero(np.isin(log.kind, ENDS))
    last[track[finishes]] = finishes
    cut = last == NOTHING
    rows = np.flatnonzero(np.isin(log.kind, CUTS))
    by = np.full(int(of.max(initial=-1)) + 1, NOTHING)
    by[whose[rows]] = rows
    last[cut] = by[of[cut]]
    return last, cut


def _looked_up(wanted: Int64, known: Int64) -> tuple[Bools, Int64]:
    """Which of the wanted numbers are known, and the last position of each of those."""
    order = np.argsort(known, kind="stable")
    places = np.searchsorted(known[order], wanted, "right") - 1
    found = places >= 0
    found[found] = known[order][places[found]] == wanted[found]
    return found, order[places[found]]


def check_same(run: Run, requests: Columns) -> None:
    """Raise KvsimError unless these requests' arrival and finish times match the run's."""
    for name in ("arrival_s", "finish_s"):
        then, now = np.asarray(run.columns.requests.get(name, [])), np.asarray(requests[name])
        if len(then) != len(now):
            what = f"it had {len(then):,} requests and has {len(now):,} now"
        elif np.array_equal(then, now, equal_nan=True):
            continue
        else:
            row = int(np.flatnonzero((then != now) & ~(np.isnan(then) & np.isnan(now)))[0])
            what = f"{name} of request {row} was {then[row]:.6f} and is {now[row]:.6f} now"
        raise KvsimError(
            f"{run.path} cannot be repeated: {what}; its trace changed, or kvsim did "
            f"({run.config.get('kvsim')} then, {__version__} now)"
        )


def _own_samples(log: EventLog, owner: Int64) -> tuple[Int64, Bools]:
    """The sample of each event, and which forks start a sample; `owner` numbers requests, anew when resent.

    Until it forks, a request with several answers is logged as sample 0. From the first fork on it is the
    last sample, and sample 0 is the first one forked off. Beam search candidates are all sample 0 and start
    no samples; nor do two answers that are dropped together before anything happens to the second.
    """
    sample, kind = log.numbers["sample"].copy(), log.kind
    forks = np.flatnonzero(kind == FORK)
    forked = np.zeros(len(kind), np.bool_)
    if not len(forks):
        return sample, forked
    count, highest = (np.zeros(int(owner.max()) + 1, np.int64) for _ in range(2))
    np.add.at(count, owner[forks], 1)
    np.maximum.at(highest, owner, sample)
    several = highest > 0
    forked[forks] = several[owner[forks]]
    before = np.full(len(count), NOTHING)
    before[owner[forks[::-1]]] = forks[::-1]  # each one's first fork
    shared = several[owner] & (np.arange(len(kind)) < before[owner])
    sample[shared] = count[owner[shared]]
    return sample, forked


class _Rows(NamedTuple):
    """State changes of tracks: track, event number, kind, time."""

    track: Int64
    place: Int64
    kind: Int64
    time_ps: Int64

    def ordered(self) -> "_Rows":
        order = np.lexsort((self.place, self.track))
        return _Rows(*(column[order] for column in self))

    def without_beside(self) -> "_Rows":
        """Drop the ends of loads that overlapped steps: their requests keep running."""
        keep = self.kind != LOADED
        keep[1:] |= self.kind[:-1] == LOAD
        return self if keep.all() else _Rows(*(column[keep] for column in self))

    def with_displaced(self, alone: Bools) -> "_Rows":
        """Add a row when another track is refused and so takes a track's place at the head of the queue."""
        refused = np.sort(self.place[self.kind == REFUSE])
        if not len(refused):
            return self
        when = np.empty(len(refused), np.int64)
        when[np.searchsorted(refused, self.place[self.kind == REFUSE])] = self.time_ps[self.kind == REFUSE]
        heads = np.flatnonzero((self.kind == REFUSE) | ((self.kind == _ARRIVE) & alone[self.track]))
        after = np.where(
            self.kind[heads] == REFUSE,
            np.searchsorted(refused, self.place[heads], "right"),
            np.searchsorted(when, self.time_ps[heads], "left"),
        )
        heads, after = heads[after < len(refused)], after[after < len(refused)]
        gone = self.place[heads + 1] > refused[after]  # its own next event is later
        heads, after = heads[gone], after[gone]
        return _Rows(
            np.concatenate([self.track, self.track[heads]]),
            np.concatenate([self.place, refused[after]]),
            np.concatenate([self.kind, np.full(len(heads), _DISPLACED)]),
            np.concatenate([self.time_ps, when[after]]),
        ).ordered()

    def states(self, alone: Bools) -> Int64:
        """The state that each row starts; arbitrary for the last row of a track."""
        table = np.zeros((2, _DISPLACED + 1), np.int64)
        for kind, (never, before) in _AFTER.items():
            table[:, kind] = never, before
        evictions = np.cumsum(self.kind == PREEMPT)
        openings = np.searchsorted(self.track, self.track)
        here = evictions - evictions[openings]  # a track does not start with an eviction
        states: Int64 = table[(here > 0).astype(np.int64), self.kind]
        states[(self.kind == _ARRIVE) & alone[self.track]] = STEP
        stays = np.isin(self.kind, (REFUSE, _DISPLACED))  # in the queue, or loaded and waiting behind it
        began = np.maximum.accumulate(np.where(stays, 0, np.arange(len(stays))))
        states[stays & (self.kind[began] == LOADED)] = WAITS_LOADED
        return states


def _came_alone(table: _Rows, tracks: int, cut: Bools) -> Bools:
    """Which tracks arrived at an empty queue."""
    arrive, leave = table.kind == _ARRIVE, np.isin(table.kind, (ADMIT, LOAD))
    leave[1:] &= ~((table.kind[1:] == ADMIT) & (table.kind[:-1] == LOAD))  # it had already left the queue
    dropped = np.flatnonzero(np.isin(table.kind, CUTS) & cut[table.track])
    queued = ~np.isin(table.kind[dropped - 1], (ADMIT, DECODE, SWAP_OUT, SWAP_IN, FORK, LOAD, MOVE_IN))
    at_once = (table.kind[dropped - 1] == _ARRIVE) & (table.time_ps[dropped - 1] == table.time_ps[dropped])
    enters = np.ones(tracks, np.bool_)
    enters[table.track[dropped[at_once]]] = False
    leaves_ps = np.sort(np.concatenate([table.time_ps[leave], table.time_ps[dropped[queued & ~at_once]]]))
    back_ps = np.sort(table.time_ps[np.isin(table.kind, (PREEMPT, LOADED))])
    came, when = table.track[arrive], table.time_ps[arrive]
    order = np.lexsort((came, when))
    came, when = came[order], when[order]
    before = np.cumsum(enters[came]) - enters[came]
    queue = before + np.searchsorted(back_ps, when, "left") - np.searchsorted(leaves_ps, when, "left")
    alone = np.zeros(tracks, np.bool_)
    alone[came[queue == 0]] = True
    return alone
