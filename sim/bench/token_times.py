"""When each token of a simulated request came, from the step log and the events.

    steps     |  7  |  8  |  9  | 10  | 11  |        end of step 7: first token, event `decode`
    tokens          1     2     3     .     .        preempted in step 10: none, until it decodes again

A request gets a token at the end of the step of its `decode` event and of each later step that decodes
anything, until it is preempted, swapped out or finished; one that was swapped out goes on in the step of its
`swap_in`. Requests of several answers are told by their first one.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvsim.sim.bench.measured import Gaps
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import Texts
from kvsim.sim.record.metrics import Table
from kvsim.sim.run import Outcome

Int64 = npt.NDArray[np.int64]
BEGINS, ENDS = ("decode", "swap_in"), ("preempt", "swap_out", "finish")


def token_gaps(outcome: Outcome, rows: Int64) -> Gaps:
    """The times between the tokens of these requests.

    Raises
    ------
    KvsimError
        A run without step log or events, or one in which they do not tell every token: an engine of one's
        own whose sequences stand still at times.
    """
    steps, events = outcome.steps, outcome.events
    if steps is None or events is None:
        raise KvsimError("token times need the step log and the events of a run")
    numbers = np.asarray(steps["step"], dtype=np.int64)
    ends = np.asarray(steps["start_s"], dtype=np.float64) + np.asarray(steps["duration_s"], dtype=np.float64)
    decodes = np.asarray(steps["decode_tokens"], dtype=np.int64) > 0
    first = int(numbers[0]) if len(numbers) else 0
    spans = _spans(events)
    tokens = np.asarray(outcome.requests["output_tokens"], dtype=np.int64)
    found: list[list[float]] = []
    for row in rows.tolist():
        times: list[float] = []
        for prompt, begin, end in spans.get(row, []):
            low, high = begin - first, end - first
            chosen = np.arange(low, high)
            kept = decodes[low:high].copy()
            if prompt and len(kept):
                kept[0] = True
            times += ends[chosen[kept]].tolist()
        if len(times) != tokens[row]:
            raise KvsimError(
                f"result_format: request {row} has {tokens[row]} tokens, of which {len(times)} are told: "
                "leave it out with this scheduler, or with several answers to a prompt"
            )
        found.append(np.diff(times).tolist())
    return Gaps.of(found)


def _spans(events: Table) -> dict[int, list[tuple[bool, int, int]]]:
    """Request -> (begins with a prompt's token, first step, step after the last), in turn."""
    found: dict[int, list[tuple[bool, int, int]]] = {}
    open_: dict[int, tuple[bool, int]] = {}
    for event, request, step in _rows(events):
        if event in BEGINS:
            open_[request] = (event == "decode", step)
        elif event in ENDS and request in open_:
            prompt, begin = open_.pop(request)
            found.setdefault(request, []).append((prompt, begin, step + (event == "finish")))
    return found


def _rows(events: Table) -> Iterator[tuple[str, int, int]]:
    """Those of first answers, in their order."""
    said = events["event"]
    assert isinstance(said, Texts)
    columns = [np.asarray(events[name]).tolist() for name in ("request", "step", "sample")]
    for code, request, step, sample in zip(said.codes.tolist(), *columns, strict=True):
        if sample == 0:
            yield said.texts[code], request, step
