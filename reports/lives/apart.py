"""Lives on several replicas: those on one replica, and a request's on all of its replicas as one life.

    arrival |-- behind, head, prefill --| handed |-- behind, head --| loading | loaded |-- prefill, decode --|
             on the prefill replica                on the decode replica

A prefill replica sees a request until its prompt is computed, a decode replica from then on. A request that
migrates has one stay per replica on which it ran.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from kvsim.reports.lives.event_log import NOTHING, REJECT, EventLog, whole_ps
from kvsim.reports.lives.lines import Line
from kvsim.reports.lives.spans import HANDED, MOVING, STATES, Lives, Span, lives
from kvsim.reports.lives.story import Story, divided, story
from kvsim.reports.lives.words import line_text
from kvsim.reports.palette import seconds
from kvsim.reports.rundir.run import Run
from kvsim.sim.serving.hand_over import LATENCY_PS
from kvsim.sim.workload import PS_PER_S

COMPUTED = "prompt_computed_s"
MOVED = "migration_end_s"


def lives_of(run: Run, server: Run, log: EventLog) -> Lives:
    """All lives on one server of a run: a replica, or the run itself."""
    here, requests = log.of_replica(server.place), seen_by(run, server, log).columns.requests
    if _role(run, server.place) == "decode":
        computed_s = np.asarray(requests[COMPUTED], dtype=np.float64)
        came_s = np.where(np.isnan(computed_s), requests["arrival_s"], computed_s + LATENCY_PS / PS_PER_S)
        requests = {**requests, "arrival_s": came_s}
    return lives(here, requests, str(run.path))


def on_several(run: Run) -> bool:
    """Whether a request may be served by several replicas, one after the other."""
    return not {COMPUTED, MOVED}.isdisjoint(run.columns.requests)


def between_stays(run: Run) -> str | None:
    """The state between two stays of a request on different replicas; None if it stays on one."""
    requests = run.columns.requests
    if not on_several(run):
        return None
    return STATES[HANDED if COMPUTED in requests else MOVING]


def seen_by(run: Run, server: Run, log: EventLog) -> Run:
    """The server with the rows of all requests that it saw, even if another replica answered them."""
    requests = run.columns.requests
    if server.place is None or not on_several(run):
        return server
    rows = np.isin(requests["request"], log.of_replica(server.place).numbers["request"])
    mine = {name: column[rows] for name, column in requests.items()}
    return replace(server, columns=replace(server.columns, requests=mine))


def _role(run: Run, place: int | None) -> str:
    """The role of a replica: prefill, decode or both."""
    roles = [pool["role"] for pool in run.config.get("pools", ()) for _ in range(pool["replicas"])]
    return str(roles[place]) if roles and place is not None else "both"


def story_of(run: Run, log: EventLog, request: int, how: str = "") -> Story:
    """The life of one request of a run, across all of its replicas."""
    server = run.server_of(request)
    if MOVED in run.columns.requests and run.place is None:
        return _moved(run, log, request, how)
    told = story(server, lives_of(run, server, log), request, how)
    alone = _role(run, server.place) != "decode" or told.facts[COMPUTED] is None
    if alone or run.place is not None:
        return told
    row = int(np.flatnonzero(log.numbers["request"] == request)[0])
    place = int(log.numbers["replica"][row])
    prefill = seen_by(run, run.replicas[place], log)
    before = story(prefill, lives_of(run, prefill, log), request)
    read_ps = [int(whole_ps(np.array([told.facts[name]]))[0]) for name in ("read_begin_s", "read_end_s")]
    spans = [
        *before.spans,
        Span(before.end_ps, told.arrival_ps, HANDED, "", NOTHING),
        *told.spans,
    ]
    decode = run.replicas[told.facts["replica"]].label
    comes = Line(told.arrival_ps, "arrive", line_text("comes", replica=decode))
    return replace(
        told,
        arrival_ps=before.arrival_ps,
        spans=spans,
        lines=[*_of_prompt(before.lines), comes, *_of_answer(told, decode, read_ps)],
        parts=divided(spans),
    )


def _moved(run: Run, log: EventLog, request: int, how: str) -> Story:
    """The life of a request that may have moved: its stays, and the time between them."""
    rows = np.flatnonzero((log.numbers["request"] == request) & (log.kind != REJECT))
    stays = dict(
        zip(log.numbers["sample"][rows].tolist(), log.numbers["replica"][rows].tolist(), strict=True)
    )
    told: list[Story] = []
    for stay, place in stays.items() or [(0, run.server_of(request).place)]:
        server = run.replicas[place]
        seen = seen_by(run, server, log)
        told.append(story(seen, lives_of(run, server, log), request, how, stay))
    first, last = told[0], told[-1]
    spans, lines = [*first.spans], [*first.lines]
    for before, after in pairwise(told):
        spans += [Span(before.end_ps, after.arrival_ps, MOVING, "", NOTHING), *after.spans]
        here = line_text("moved", replica=after.label)
        lines += [Line(after.arrival_ps, "move_in", here), *after.lines[2:]]
    return replace(
        last, arrival_ps=first.arrival_ps, spans=spans, lines=lines, parts=divided(spans), sample=0
    )


def _of_prompt(lines: Sequence[Line]) -> list[Line]:
    """The lines of the prefill replica, without its first token, which is not part of the answer."""
    return [line for line in lines if line.event != "decode"]


def _of_answer(told: Story, decode: str, read_ps: Sequence[int]) -> Iterator[Line]:
    """The lines of the decode replica, with how long it read the prompt."""
    begin_ps, end_ps = read_ps
    took = line_text("read", replica=decode, time=seconds((end_ps - begin_ps) / PS_PER_S))
    lines = [line for line in told.lines[1:] if line.event != "loaded"]
    yield from sorted([Line(end_ps, "read", took), *lines], key=lambda line: line.time_ps)
