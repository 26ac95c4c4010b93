"""A benchmark tool's result as a trace: the lengths, start times and conversations of its requests.

    sim run --trace result.json        the same requests, on any server
    sim replay result.json             the same requests, beside the measurement

For a closed loop these are the measured start times; use `--clients N` to make requests wait again. Requests
cut off by the time limit get a typical answer. The file is read by sim/bench/read.py.
"""

from pathlib import Path

import numpy as np

from kvsim.sim.bench.measured import MeasuredRun
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.turns import has_turns, texts_of, turns_of
from kvsim.sim.bench.workload import SHARED, asked_of, workload_of
from kvsim.sim.workload import PS_PER_S
from kvsim.workloads.lengths import Lengths


def load_result(path: str) -> Lengths:
    """The requests of a result, in order of start time.

    Raises
    ------
    KvsimError
        A file that cannot be read, or holds no answered request.
    """
    return lengths_of(read_result(Path(path)))


def lengths_of(run: MeasuredRun) -> Lengths:
    """The requests of a measured run."""
    notes = [note.replace("; another: --run N", "") for note in run.notes]
    notes.append(f"The requests that {run.tool} measured; to compare them with simulated ones: sim replay.")
    turns = run.requests is not None and has_turns(run.requests)
    if turns:
        notes.append("Turns arrive when they did; with --closed-sessions they wait for answers again.")
    elif run.closed:
        notes.append(
            f"They came from {run.clients:,} clients; with --clients {run.clients} they wait for answers."
        )
    if run.requests is None:
        work = workload_of(run)
        arrival_s = None if work.waits is not None else work.arrival_ps / PS_PER_S
        return Lengths(
            run.name, work.prompt_tokens, work.output_tokens, (*notes, *work.notes), arrival_s=arrival_s
        )
    requests, _, said = asked_of(run)
    said = [note.replace(", and count in no number", "") for note in said]
    labels: dict[str, np.ndarray] = {}
    if has_turns(requests):
        _, chain = turns_of(requests, None, None)
        labels = {"session": np.array(requests.session, dtype=object), "delay_s": chain.think_ps / PS_PER_S}
    texts = texts_of(requests)
    return Lengths(
        run.name,
        requests.input_tokens,
        requests.output_tokens,
        (*notes, *said, *([SHARED] if texts is None else [])),
        arrival_s=requests.start_s,
        texts=texts,
        labels=labels,
    )
