"""The life of one request: what happened to it, line by line, and where its time went.

    chosen(runs, "slowest")       -> the runs that served it, its number, and how it came to be chosen
    story(run, lives, request)    -> Story: a line per event, and how E2E divides

The story of a request with several answers follows the answer that ended last, so its parts sum to E2E.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.reports.alike import seed_of, traffic
from kvsim.reports.lives.lines import Line, Teller
from kvsim.reports.lives.passed import passed_over
from kvsim.reports.lives.spans import HEAD, STATES, WAITS_LOADED, Lives, Span
from kvsim.reports.rundir.run import REQUEST_COLUMNS, REQUEST_NUMBERS, Run
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S

CHOICES = ("slowest", "median", "most-preempted")
_KNOWN = {*REQUEST_COLUMNS, *REQUEST_NUMBERS}
_KNOWN |= {"prompt_computed_s", "read_begin_s", "read_end_s", "held_until_s", "reserved_s"}
_KNOWN |= {"migration_begin_s", "migration_stop_s", "migration_end_s", "resent"}


@dataclass(frozen=True)
class Part:
    """The time a request spent in one state; `reason`: why it was not scheduled although it was next."""

    state: str
    reason: str
    time_ps: int


@dataclass(frozen=True)
class Answer:
    """One of several answers to a request."""

    sample: int
    end_ps: int
    rejected: bool
    parts: list[Part]


@dataclass(frozen=True)
class Story:
    """The whole story of a request; times are relative to the start of the run."""

    label: str
    request: int
    how: str
    facts: dict[str, Any]
    labels: dict[str, Any]
    arrival_ps: int
    end_ps: int
    spans: list[Span]
    lines: list[Line]
    parts: list[Part]
    sample: int
    answers: list[Answer]
    passed_over: str = ""

    @property
    def e2e_ps(self) -> int:
        """From the arrival to the end."""
        return self.end_ps - self.arrival_ps

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON types; seconds beside the picoseconds, which sum exactly."""
        return {
            "run": self.label,
            "request": self.request,
            **({"chosen": self.how} if self.how else {}),
            **self.facts,
            "labels": self.labels,
            **({"passed_over": self.passed_over} if self.passed_over else {}),
            "division": _parts_json(self.parts),
            "lines": [
                {
                    "time_s": line.time_ps / PS_PER_S,
                    "after_s": (line.time_ps - self.arrival_ps) / PS_PER_S,
                    "event": line.event,
                    "text": line.text,
                }
                for line in self.lines
            ],
            "spans": [
                {
                    "start_s": span.start_ps / PS_PER_S,
                    "end_s": span.end_ps / PS_PER_S,
                    "state": STATES[span.state],
                    "reason": span.reason or None,
                }
                for span in self.spans
            ],
            "samples": [
                {
                    "sample": answer.sample,
                    "end_s": answer.end_ps / PS_PER_S,
                    "rejected": answer.rejected,
                    "division": _parts_json(answer.parts),
                }
                for answer in self.answers
            ],
        }


def _parts_json(parts: list[Part]) -> list[dict[str, Any]]:
    return [
        {
            "state": part.state,
            "reason": part.reason or None,
            "seconds": part.time_ps / PS_PER_S,
            "picoseconds": part.time_ps,
        }
        for part in parts
    ]


# -- which request ------------------------------------------------------------------------------


def chosen(runs: Sequence[Run], text: str) -> tuple[list[Run], int, str]:
    """The runs that served the request, its number, and how it was chosen, in words.

    A number is looked up in all runs, which must have served the same requests. `slowest`, `median` and
    `most-preempted` are searched in all runs, and the runs that served that request are returned.
    """
    if text in CHOICES:
        return _chosen_by(runs, text)
    for other in runs[1:]:
        if not _same_requests(other, runs[0]):
            raise KvsimError(
                f"{other.path} and {runs[0].path} served different requests: explain one of them at a time"
            )
    if not text.isascii() or not text.isdigit() or runs[0].row_of(int(text)) < 0:
        numbers, whole = runs[0].columns.requests["request"], "in the run, which has no requests"
        if len(numbers):
            whole = f"a number from {numbers[0]:,} to {numbers[-1]:,}"
        raise KvsimError(f"request must be {whole}, or one of {', '.join(CHOICES)}, got {text!r}")
    return list(runs), int(text), ""


def _same_requests(one: Run, other: Run) -> bool:
    """Whether both had the same prompts and the same traffic, including the seed."""
    return (
        np.array_equal(one.columns.requests["prompt_tokens"], other.columns.requests["prompt_tokens"])
        and traffic(one) == traffic(other)
        and seed_of(one) == seed_of(other)
    )


def _chosen_by(runs: Sequence[Run], text: str) -> tuple[list[Run], int, str]:
    """Choose among finished requests of all runs; of equals the last, but by preemptions the first."""
    finished = [np.flatnonzero(np.isfinite(run.columns.requests["e2e_s"])) for run in runs]
    place = np.repeat(np.arange(len(runs)), list(map(len, finished)))
    row = np.concatenate(finished)
    where = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    if not len(row):
        raise KvsimError(f"request cannot be {text}: no request of {where} finished")
    e2e_s = np.concatenate(
        [run.columns.requests["e2e_s"][rows] for run, rows in zip(runs, finished, strict=True)]
    )
    slowest_last = np.argsort(e2e_s, kind="stable")
    of = f"of the {len(row):,} that finished in {where}"
    if text == "slowest":
        found, how = slowest_last[-1], f"the slowest {of}"
    elif text == "median":
        found, how = slowest_last[(len(row) - 1) // 2], f"the median by E2E {of}"
    else:
        counts = np.concatenate([_preemptions(run)[rows] for run, rows in zip(runs, finished, strict=True)])
        found, most = np.argmax(counts), int(counts.max())
        if not most:
            raise KvsimError(f"request cannot be most-preempted: no request was preempted in {where}")
        how = f"preempted {most:,} time{'s' * (most > 1)}, most {of}"
    run = runs[int(place[found])]
    told = [each for each in runs if _same_requests(each, run)]
    number = int(run.columns.requests["request"][row[found]])
    return told, number, how if len(runs) == 1 else f"{how}, in {run.label}"


def _preemptions(run: Run) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How often each request was preempted; 0 if unknown."""
    return np.nan_to_num(
        run.columns.requests.get("num_preemptions", np.zeros(len(run.columns.requests["e2e_s"])))
    )


# -- its story ----------------------------------------------------------------------------------


def story(  # noqa: PLR0917 - which part of a life
    run: Run, lives: Lives, request: int, how: str = "", stay: int | None = None, resent: int | None = None
) -> Story:
    """The life of one request; only this `stay` if it moved, only its life after it was `resent` so often."""
    of_it = lives.request == request
    if stay is not None:
        of_it &= lives.sample == stay
    if resent is not None:
        of_it &= lives.resent == resent
    tracks = np.flatnonzero(of_it).tolist()
    last = max(tracks, key=lambda track: (int(lives.end_ps[track]), not lives.cut[track], -track))
    spans = [span for span in lives.spans(last) if span.end_ps > span.start_ps]
    row = {name: column[run.row_of(request)] for name, column in run.columns.requests.items()}
    arrival_ps = int(lives.spans(last)[0].start_ps)
    answers = [
        Answer(
            int(lives.sample[track]),
            int(lives.end_ps[track]),
            bool(lives.cut[track]),
            divided(lives.spans(track)),
        )
        for track in tracks
    ]
    facts = {name: _plain(value) for name, value in row.items() if name in _KNOWN and name != "request"}
    over_again = resent is not None and resent < facts.get("resent", 0)
    told = facts | (dict.fromkeys(("ttft_s", "e2e_s")) if over_again else {})  # of its last life
    return Story(
        label=run.label,
        request=request,
        how=how,
        facts=facts,
        labels={name: _plain(value) for name, value in row.items() if name not in _KNOWN},
        arrival_ps=arrival_ps,
        end_ps=int(lives.end_ps[last]),
        spans=spans,
        lines=list(Teller(run, lives, last, told).lines()),
        parts=divided(spans),
        sample=int(lives.sample[last]),
        answers=answers if len(answers) > 1 else [],
        passed_over=passed_over(run, lives.log).get(request, ""),
    )


def divided(spans: list[Span]) -> list[Part]:
    """Time by state, and by reason for the head of the queue; in the order of STATES."""
    sums: dict[tuple[int, str], int] = {}
    for span in spans:
        why = span.reason if span.state in (HEAD, WAITS_LOADED) else ""
        sums[span.state, why] = sums.get((span.state, why), 0) + span.end_ps - span.start_ps
    ordered = sorted(sums.items(), key=lambda item: (item[0][0], -item[1]))
    return [Part(STATES[state], why, time_ps) for (state, why), time_ps in ordered if time_ps]


def _plain(value: Any) -> Any:  # noqa: ANN401 - a cell of a table
    """A cell as a JSON type: integers as int, None if not finite."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
