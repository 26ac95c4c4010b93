"""When each token of a simulated request came, from the step log and the events.

    steps     |  7  |  8  |  9  | 10  | 11  |        end of step 7: first token, event `decode`
    tokens          1     2     3     .     .        preempted in step 10: none, until it decodes again

A sequence gets a token at the end of the step of its `decode` event and of each later step that decodes
anything, until it is preempted, set aside, swapped out or finished. A sequence that was swapped out continues
in the step of its `swap_in`, one that was set aside in the step of its `resume`. A sequence forked from a
prompt gets its first token in the step that computed the prompt. A client sees the answers to one prompt as
one stream: tokens of one step come at the same time. Steps are those of the replica that served the request;
tokens from a replica that died do not count.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvsim.sim.bench.measured import Floats, Gaps
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import Texts
from kvsim.sim.record.metrics import Table
from kvsim.sim.run import Outcome

Int64 = npt.NDArray[np.int64]
GO_ON = ("swap_in", "resume")
BEGINS, ENDS = ("decode", "fork", *GO_ON), ("preempt", "set_aside", "swap_out", "finish")
PARENT = -1
Span = tuple[bool, int, int]
"""Whether it starts with the token of a prompt, its first step, and the step after its last."""


class _Steps:
    """The steps of one replica: when each ended, and whether it decoded anything."""

    def __init__(self, log: Table, chosen: npt.NDArray[np.bool_]) -> None:
        def column(name: str) -> Floats:
            return np.asarray(log[name], dtype=np.float64)[chosen]

        numbers = np.asarray(log["step"], dtype=np.int64)[chosen]
        self._first = int(numbers[0]) if len(numbers) else 0
        self._ends_s = column("start_s") + column("duration_s")
        self._decodes = column("decode_tokens") > 0

    def times_s(self, span: Span) -> list[float]:
        """The times at which a sequence got a token in these steps."""
        prompt, begin, end = span
        part = slice(begin - self._first, end - self._first)
        kept = self._decodes[part].copy()
        if prompt and len(kept):
            kept[0] = True
        found: list[float] = self._ends_s[part][kept].tolist()
        return found


def token_gaps(outcome: Outcome, rows: Int64) -> Gaps:
    """The times between the tokens of these requests.

    Raises
    ------
    KvsimError
        The run has no step log or no events, or they do not account for every token, as with a user's own
        engine whose sequences sometimes stall.
    """
    log, events = outcome.steps, outcome.events
    if log is None or events is None:
        raise KvsimError("token times need the step log and the events of a run")
    n = len(outcome.requests["output_tokens"])
    of = np.asarray(outcome.requests.get("replica", np.zeros(n)), dtype=np.int64)
    at = np.asarray(log.get("replica", np.zeros(len(log["step"]))), dtype=np.int64)
    steps = {replica: _Steps(dict(log), at == replica) for replica in np.unique(of[rows]).tolist()}
    spans = _spans(events)
    tokens = np.asarray(outcome.requests["output_tokens"], dtype=np.int64)
    found: list[list[float]] = []
    for row in rows.tolist():
        own = steps[int(of[row])]
        times = sorted(time for span in spans.get(row, []) for time in own.times_s(span))
        if len(times) != tokens[row]:
            raise KvsimError(
                f"result_format must be left out with this scheduler: request {row} has {tokens[row]} tokens "
                f"and its events tell when {len(times)} came"
            )
        found.append(np.diff(times).tolist())
    return Gaps.of(found)


def _spans(events: Table) -> dict[int, list[Span]]:
    """Request -> the spans of its sequences.

    The first fork takes its parent's number; from then on the parent has the last number.
    """
    found: dict[int, list[Span]] = {}
    open_: dict[tuple[int, int], tuple[bool, int]] = {}
    for event, request, step, sample in _rows(events):
        sequence = request, sample
        if event == "lost":
            found.pop(request, None)
            open_ = {other: begun for other, begun in open_.items() if other[0] != request}
        if event in BEGINS:
            if event == "fork" and sequence in open_:
                open_[request, PARENT] = open_.pop(sequence)
            open_[sequence] = (event not in GO_ON, step - (event == "fork"))
        elif event in ENDS:
            begun = open_.pop(sequence, None) or open_.pop((request, PARENT), None)
            if begun is not None:
                found.setdefault(request, []).append((*begun, step + (event == "finish")))
    return found


def _rows(events: Table) -> Iterator[tuple[str, int, int, int]]:
    """Event, request, step and sample of each row."""
    said = events["event"]
    assert isinstance(said, Texts)
    columns = [np.asarray(events[name]).tolist() for name in ("request", "step", "sample")]
    for code, request, step, sample in zip(said.codes.tolist(), *columns, strict=True):
        yield said.texts[code], request, step, sample
