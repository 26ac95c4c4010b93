"""Lives on several replicas: those seen by one replica, and a request's stays combined into one life.

    arrival |-- behind, head, prefill --| handed |-- behind, head --| loading | loaded |-- prefill, decode --|
             on the prefill replica                on the decode replica

A prefill replica sees a request until its prompt is computed, a decode replica from then on. A request that
migrates has one stay per replica. If its replica dies, a request starts over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from kvsim.reports.lives.event_log import (
    HAND_OVER,
    LOST,
    NOTHING,
    REJECT,
    RESERVE,
    SEND,
    EventLog,
    whole_ps,
)
from kvsim.reports.lives.lines import Line
from kvsim.reports.lives.spans import DOWN, HANDED, MOVING, STATES, Came, Lives, Span, came_at, lives
from kvsim.reports.lives.story import Story, divided, story
from kvsim.reports.lives.words import line_text
from kvsim.reports.palette import seconds
from kvsim.reports.rundir.run import Run
from kvsim.sim.counted import several
from kvsim.sim.serving.pulling import LATENCY_PS
from kvsim.sim.workload import PS_PER_S

COMPUTED = "prompt_computed_s"
MOVED = "migration_end_s"
AGAIN = "resent"


def lives_of(run: Run, server: Run, log: EventLog) -> Lives:
    """All lives on one server of a run: a replica, or the run's only server."""
    here, requests = log.of_replica(server.place), seen_by(run, server, log).columns.requests
    came: Came | None = None
    later_ps = 0 if (log.kind == RESERVE).any() else LATENCY_PS  # what is pushed needs no proxy
    if _role(run, server.place) == "decode" and AGAIN in log.numbers:
        came = came_at(log, HAND_OVER, later_ps)
    elif _role(run, server.place) == "decode":
        computed_s = np.asarray(requests[COMPUTED], dtype=np.float64)
        came_s = np.where(np.isnan(computed_s), requests["arrival_s"], computed_s + later_ps / PS_PER_S)
        requests = {**requests, "arrival_s": came_s}
    return lives(here, requests, str(run.path), came)


def on_several(run: Run) -> bool:
    """Whether requests may be served by several replicas in turn."""
    return not {COMPUTED, MOVED, AGAIN}.isdisjoint(run.columns.requests)


def between_stays(run: Run) -> str | None:
    """The state between a request's stays on two replicas; None if requests do not move."""
    requests = run.columns.requests
    if not on_several(run):
        return None
    return STATES[HANDED if COMPUTED in requests else MOVING if MOVED in requests else DOWN]


def seen_by(run: Run, server: Run, log: EventLog) -> Run:
    """The server with the rows of all requests that it saw, even if another replica answered them."""
    requests = run.columns.requests
    if server.place is None or not on_several(run):
        return server
    rows = np.isin(requests["request"], log.of_replica(server.place).numbers["request"])
    mine = {name: column[rows] for name, column in requests.items()}
    return replace(server, columns=replace(server.columns, requests=mine))


def _role(run: Run, place: int | None) -> str:
    roles = [pool["role"] for pool in run.config.get("pools", ()) for _ in range(pool["replicas"])]
    return str(roles[place]) if roles and place is not None else "both"


def story_of(run: Run, log: EventLog, request: int, how: str = "") -> Story:
    """The life of one request across all of its replicas, including restarts after replicas died."""
    if run.place is not None or AGAIN not in log.numbers:
        return _once(run, log, request, how)
    times = np.unique(log.resent[log.numbers["request"] == request]).tolist()
    told = [_once(run, log, request, how, again) for again in times]
    first, last = told[0], told[-1]
    spans, lines = [*first.spans], [*first.lines]
    arrival_ps = int(whole_ps(run.columns.requests["arrival_s"])[run.row_of(request)])
    if arrival_ps < first.arrival_ps:
        spans.insert(0, Span(arrival_ps, first.arrival_ps, DOWN, "", NOTHING))
        lines.insert(0, Line(arrival_ps, "down", _goes_on("none at first", run, log, first, arrival_ps)))
    for again, (before, after) in zip(times, pairwise(told), strict=False):
        more, line = _died(run, log, before, after, again)
        spans += [*more, *after.spans]
        lines += [line, *(after.lines if _rows(log, request, again + 1, SEND) else after.lines[1:])]
    label = run.server_of(request).label
    return replace(_joined(last, arrival_ps, spans, lines), label=label)


def _joined(last: Story, arrival_ps: int, spans: list[Span], lines: list[Line]) -> Story:
    """The last of several stories, with the spans and lines of all."""
    return replace(last, arrival_ps=arrival_ps, spans=spans, lines=lines, parts=divided(spans))


def _died(run: Run, log: EventLog, before: Story, after: Story, again: int) -> tuple[list[Span], Line]:
    """The spans between two lives of a request, and a line about the death."""
    row = _rows(log, before.request, again, LOST)[-1]
    at_ps, tokens, spans = int(log.numbers["time_ps"][row]), int(log.numbers["tokens"][row]), []
    if before.end_ps < at_ps:
        between = STATES.index(between_stays(run) or STATES[DOWN])
        spans.append(Span(before.end_ps, at_ps, between, "", NOTHING))
    if at_ps < after.arrival_ps:
        spans.append(Span(at_ps, after.arrival_ps, DOWN, "", NOTHING))
    replica = log.reasons[log.reason[row]]
    text = line_text("died" if tokens else "died empty", replica=replica, tokens=several(tokens, "token"))
    if _rows(log, after.request, again + 1, SEND):
        how = "sent again" if at_ps == after.arrival_ps else "none alive"
        text += _goes_on(how, run, log, after, at_ps, again + 1)
    return spans, Line(at_ps, "lost", text)


def _goes_on(  # noqa: PLR0917 - what a line tells
    how: str, run: Run, log: EventLog, after: Story, since_ps: int, again: int = 0
) -> str:
    """Where the router sent a request after a delay, and how long no replica was alive."""
    row = _rows(log, after.request, again, SEND)[0]
    replica = run.replicas[int(log.numbers["replica"][row])].label
    return line_text(how, replica=replica, time=seconds((after.arrival_ps - since_ps) / PS_PER_S))


def _rows(log: EventLog, request: int, again: int | None, *kinds: int) -> list[int]:
    """A request's events of these kinds (all if none are given), after it was sent `again` times."""
    chosen = log.numbers["request"] == request
    if again is not None:
        chosen &= log.resent == again
    if kinds:
        chosen &= np.isin(log.kind, kinds)
    return np.flatnonzero(chosen).tolist()


def _once(run: Run, log: EventLog, request: int, how: str, again: int | None = None) -> Story:
    """The life of a request, or only its life after it was sent `again` times."""
    if MOVED in run.columns.requests and run.place is None:
        return _moved(run, log, request, how, again)
    places = _places(log, request, again)
    server = run.server_of(request) if again is None else run.replicas[places[-1]]
    seen = server if again is None else seen_by(run, server, log)
    told = story(seen, lives_of(run, server, log), request, how, resent=again)
    last = again is None or again == told.facts.get(AGAIN, 0)
    computed = told.facts.get(COMPUTED) is not None if again is None else len(places) > 1
    if _role(run, server.place) != "decode" or not computed or run.place is not None:
        return told
    prefill = seen_by(run, run.replicas[places[0]], log)
    before = story(prefill, lives_of(run, prefill, log), request, resent=again)
    spans = [*before.spans, Span(before.end_ps, told.arrival_ps, HANDED, "", NOTHING), *told.spans]
    decode = run.replicas[places[-1]].label
    room = line_text("reserved", replica=decode)
    reserved = [replace(line, text=room) for line in told.lines if line.event == "reserve"]
    told = replace(told, lines=[line for line in told.lines if line.event != "reserve"])
    prompt = [line for line in before.lines if line.event != "decode"]  # no token of the answer
    lines = sorted([*prompt, *reserved], key=lambda line: line.time_ps)
    lines.append(Line(told.arrival_ps, "arrive", line_text("comes", replica=decode)))
    read_s = [told.facts[name] for name in ("read_begin_s", "read_end_s")]
    if last and None not in read_s:
        lines += _of_answer(told, decode, whole_ps(np.array(read_s)).tolist())
    else:
        lines += told.lines[1:]
    return _joined(told, before.arrival_ps, spans, lines)


def _places(log: EventLog, request: int, again: int | None) -> list[int]:
    """The replicas that a request visited, in order; empty for a single server."""
    if "replica" not in log.numbers:
        return []
    rows = [row for row in _rows(log, request, again) if log.kind[row] != RESERVE]
    return list(dict.fromkeys(log.numbers["replica"][rows].tolist()))


def _moved(run: Run, log: EventLog, request: int, how: str, again: int | None) -> Story:
    """The life of a request that may have moved: its stays, and the time between them."""
    rows = [row for row in _rows(log, request, again) if log.kind[row] not in {REJECT, LOST, SEND}]
    stays = dict(zip(*(log.numbers[name][rows].tolist() for name in ("sample", "replica")), strict=True))
    told: list[Story] = []
    for stay, place in stays.items() or [(0, _places(log, request, again)[-1])]:
        server = run.replicas[place]
        seen = seen_by(run, server, log)
        told.append(story(seen, lives_of(run, server, log), request, how, stay, again))
    first, last = told[0], told[-1]
    spans, lines = [*first.spans], [*first.lines]
    for before, after in pairwise(told):
        spans += [Span(before.end_ps, after.arrival_ps, MOVING, "", NOTHING), *after.spans]
        here = line_text("moved", replica=after.label)
        lines += [Line(after.arrival_ps, "move_in", here), *after.lines[2:]]
    return replace(_joined(last, first.arrival_ps, spans, lines), sample=0)


def _of_answer(told: Story, decode: str, read_ps: Sequence[int]) -> Iterator[Line]:
    """The decode replica's lines, with the time it took to load the prompt."""
    begin_ps, end_ps = read_ps
    took = line_text("read", replica=decode, time=seconds((end_ps - begin_ps) / PS_PER_S))
    lines = [line for line in told.lines[1:] if line.event != "loaded"]
    yield from sorted([Line(end_ps, "read", took), *lines], key=lambda line: line.time_ps)
