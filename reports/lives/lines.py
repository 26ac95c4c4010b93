"""What happened to one request, one line per event, with the numbers that explain it.

The lines contain only what the tables show: how many requests were queued at its arrival, which request took
its memory, how much was free when it was first refused. The HTML report's story.js writes the same lines:
change both together; a test compares them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from kvsim.reports.lives.event_log import COPY, EVENTS, FINISH, FORK, NOTHING, REFUSE, REJECT, SEND
from kvsim.reports.lives.spans import DECODING, LOADING, PREFILL, RECOMPUTE, STATES, WAITING, Lives, Span
from kvsim.reports.lives.words import LINES, event_text, line_text, more_of, reason_name, reason_text
from kvsim.reports.palette import number, seconds
from kvsim.reports.rundir.run import Run
from kvsim.sim.counted import several
from kvsim.sim.workload import PS_PER_S

_NUMBERED = ("no room", "watermark")
_COPYING = ("paged", "dynamic")
"""Allocators that copy, each for its own reason."""
_EACH = 3  # up to this many periods at the head of the queue get a line each; more are summed up


@dataclass(frozen=True)
class Line:
    """One thing that happened."""

    time_ps: int
    event: str
    text: str


@dataclass(frozen=True)
class Teller:
    """Describes a track in words."""

    run: Run
    lives: Lives
    track: int
    facts: dict[str, Any]

    def lines(self) -> Iterator[Line]:
        """The lines in order of time."""
        spans = self.lives.spans(self.track)
        told = [(NOTHING, Line(spans[0].start_ps, "arrive", self._arrival(spans[0].start_ps)))]
        told += self._events()
        for waiting, spell in groupby(spans, key=lambda span: span.state in WAITING):
            if waiting:
                told += self._queue(list(spell))
        yield from (line for _, line in sorted(told, key=lambda each: (each[1].time_ps, each[0])))

    def _rows(self) -> list[int]:
        """The events of the track, including those before its fork and forks from it."""
        lives, track = self.lives, self.track
        parent = int(lives.parent[track])
        rows = np.flatnonzero(lives.track_of == track).tolist()
        if parent != NOTHING:
            before = np.flatnonzero(lives.track_of == parent)
            rows = before[before < rows[0]].tolist() + rows
        children = np.flatnonzero(lives.parent == track)
        rows += [int(np.flatnonzero(lives.track_of == child)[0]) for child in children]
        if lives.cut[track]:
            owner = lives.log.numbers["request"] == lives.request[track]
            owner &= lives.log.resent == lives.resent[track]
            rows += np.flatnonzero(owner & (lives.log.kind == REJECT)).tolist()
        return sorted(rows)

    def _events(self) -> list[tuple[int, Line]]:
        told, evicted, decoded = [], False, False
        rows = [row for row in self._rows() if self.lives.log.kind[row] not in {REFUSE, SEND}]
        for (what, _), alike in groupby(rows, key=self._alike(rows)):
            group = list(alike)
            event = EVENTS[self.lives.log.kind[group[0]]]
            again = evicted if event == "admit" else decoded
            told.append((group[0], Line(self._time_ps(group[0]), event, self._text(what, group, again))))
            evicted, decoded = evicted or event == "preempt", decoded or event in {"decode", "move_in"}
        return told

    def _alike(self, rows: list[int]) -> Callable[[int], tuple[str, int]]:
        """A key per event; adjacent events with equal keys share a line."""
        lives, kind, forks = self.lives, self.lives.log.kind, self._forks(rows)

        def key(row: int) -> tuple[str, int]:
            if kind[row] == COPY:
                return "survivors" if forks else "copy", 0
            if kind[row] != FORK:
                return EVENTS[kind[row]], self._time_ps(row) if kind[row] == FINISH else -row
            if forks:
                return "candidates" if self._time_ps(row) == self._time_ps(forks[0]) else "survivors", 0
            if lives.track_of[row] == self.track:
                return "forked", 0
            return "fork", self._time_ps(row)

        return key

    def _forks(self, rows: list[int]) -> list[int]:
        """The forks between candidates of a beam search, which start no tracks."""
        lives = self.lives
        if lives.parent[self.track] != NOTHING or lives.cut[self.track]:
            return []
        own = lives.track_of[rows] == self.track
        return [row for row, mine in zip(rows, own, strict=True) if mine and lives.log.kind[row] == FORK]

    def _time_ps(self, row: int) -> int:
        return int(self.lives.log.numbers["time_ps"][row])

    def _text(self, what: str, group: list[int], again: bool) -> str:
        """The text of one line: what its events did, and details from the tables."""
        log = self.lives.log
        numbers, forks = log.row(group[0]), sum(1 for row in group if log.kind[row] == FORK)
        copies = [row for row in group if log.kind[row] == COPY]
        if what in {"copy", "survivors"}:
            numbers["tokens"] = sum(log.row(row)["tokens"] for row in copies)
            what = what if forks else "copy"
        more = {
            "answers": more_of(forks, "answer"),
            "candidates": more_of(forks, "candidate"),
            "times": "once" if forks == 1 else f"{forks:,} times",
            "until": seconds(self._time_ps(group[-1]) / PS_PER_S),
        }
        text = event_text(what, numbers, again, self.lives.reason(group[0]), **more)
        return text + self._more(what, len(copies), numbers, again)

    def _more(self, what: str, copies: int, numbers: Mapping[str, int], again: bool) -> str:
        facts, allocator = self.facts, str(self._setting("allocator"))
        if copies:
            why = line_text(allocator) if allocator in _COPYING else ""
            steps = line_text("steps", steps=copies) if what == "copy" and copies > 1 else ""
            return why + steps
        if what == "admit" and not again and numbers["tokens"] < facts["prompt_tokens"]:
            return line_text("whole prompt", prompt=facts["prompt_tokens"])
        if what == "decode" and not again and number(facts.get("ttft_s")) is not None:
            return line_text("ttft", ttft=seconds(facts["ttft_s"]))
        if what == "finish" and number(facts.get("e2e_s")) is not None:
            took = {"e2e": "e2e_s", "tpot": "tpot_s", "normalized": "normalized_s_per_token"}
            return line_text("e2e", **{name: seconds(facts[column]) for name, column in took.items()})
        return ""

    def _arrival(self, arrival_ps: int) -> str:
        others, entered_ps = self._others(arrival_ps)
        if not others:
            return line_text("alone")
        first = self._setting("policy") in (None, "fcfs")
        text = line_text("behind" if first else "among", others=several(others, "other"))
        if entered_ps is not None:
            entered = "entered" if others == 1 else "all entered"
            text += line_text(entered, time=seconds(entered_ps / PS_PER_S))
        return text

    def _others(self, arrival_ps: int) -> tuple[int, int | None]:
        """How many requests were queued, and when the last one entered, if all entered before this one."""
        lives, request = self.lives, int(self.lives.request[self.track])
        whose = np.repeat(np.arange(len(lives.request)), np.diff(lives.first))
        opening = np.zeros(len(whose), np.bool_)
        opening[lives.first[:-1][np.diff(lives.first) > 0]] = True
        at_once = lives.cut[whose] & (lives.end_ps[whose] == lives.start_ps) & opening
        before = lives.start_ps < arrival_ps
        before |= (lives.start_ps == arrival_ps) & opening & (lives.request[whose] < request)
        there = np.isin(lives.state, WAITING) & before & (lives.stop_ps >= arrival_ps) & ~at_once
        there &= lives.request[whose] != request
        tracks = np.unique(whose[there])
        if not len(tracks):
            return 0, None
        enters = [self._enters(int(track), arrival_ps) for track in tracks]
        own = self._enters(self.track, arrival_ps)
        known = [when for when in enters if when is not None]
        complete = own is not None and len(known) == len(enters) and max(known) <= own
        return len(np.unique(lives.request[tracks])), max(known) if complete else None

    def _enters(self, track: int, since_ps: int) -> int | None:
        for span in self.lives.spans(track):
            if span.state in (LOADING, PREFILL, RECOMPUTE) and span.start_ps >= since_ps:
                return span.start_ps
        return None

    def _queue(self, stay: list[Span]) -> Iterator[tuple[int, Line]]:
        """Lines on one stay in the queue: when it was at the head, and why it was not admitted."""
        spell = [span for span in stay if span.end_ps > span.start_ps]
        heads = [span for span in spell if span.reason]
        if spell and (len(heads) > _EACH or STATES[spell[0].state] == "preempted"):
            yield stay[0].row, Line(spell[0].start_ps, "refuse", self._summed(spell))
            return
        if spell and not spell[0].reason and STATES[spell[0].state] == "loaded":
            text = line_text("waited", time=_lasted(spell[:1]))
            yield stay[0].row, Line(spell[0].start_ps, "behind", text)
        for span in heads:
            text = line_text("head", time=_lasted([span]), why=self._why(span))
            yield span.row, Line(span.start_ps, "refuse", text)
        for span in spell[1:]:
            if not span.reason and heads and span.start_ps > heads[0].start_ps:
                yield NOTHING, Line(span.start_ps, "behind", line_text("again", time=_lasted([span])))

    def _summed(self, spell: list[Span]) -> str:
        """A stay in the queue in one line: how long for each reason, with the reason's first numbers."""
        each = []
        for reason in dict.fromkeys(span.reason for span in spell):
            alike = [span for span in spell if span.reason == reason]
            detail = self._why(alike[0]) if reason in _NUMBERED else ""
            name = reason_name(reason) if reason else LINES["others"]
            part = line_text("part", time=_lasted(alike), reason=name)
            each.append(part + (f" ({detail})" if detail else ""))
        if len(each) == 1:
            each = [self._why(spell[0]) if spell[0].reason else LINES["others"]]
        return line_text("queue", time=_lasted(spell), parts=", ".join(each))

    def _why(self, span: Span) -> str:
        numbers = self.lives.log.row(span.row)
        seats, budget = (self._setting(n) for n in ("max_num_seqs", "max_num_batched_tokens"))
        text = reason_text(span.reason, numbers, seats, budget)
        return text + (self._spent_on(span.start_ps) if span.reason == "token budget" else "")

    def _spent_on(self, now_ps: int) -> str:
        """Whose prompts, and how many decodes, took the token budget of the step that starts now."""
        lives = self.lives
        whose = np.repeat(lives.request, np.diff(lives.first))
        now = (lives.start_ps <= now_ps) & (lives.stop_ps > now_ps)
        prompts = np.unique(whose[now & np.isin(lives.state, (PREFILL, RECOMPUTE))]).tolist()
        on = []
        if prompts:
            names = ", ".join(map(str, prompts)) if len(prompts) <= _EACH else f"{len(prompts):,} requests"
            on.append(line_text("prompt" if len(prompts) == 1 else "prompts", requests=names))
        decodes = int((now & (lives.state == DECODING)).sum())
        if decodes and str(self._setting("scheduler")).startswith("vllm-v1"):
            on.append(several(decodes, "decode"))
        return line_text("spent", on=", ".join(on)) if on else ""

    def _setting(self, name: str) -> Any:  # noqa: ANN401 - JSON is any value
        return self.run.engine.get(name)


def _lasted(spans: list[Span]) -> str:
    return seconds(sum(span.end_ps - span.start_ps for span in spans) / PS_PER_S)
