"""Who arrives, when, how long, and with what in common: a trace becomes a Workload.

    trace --loader--> Lengths --take--> n rows ---------------+
    seed ---spawn---> two streams                             +--> Workload
    request_rate, burstiness, or the trace's own -> arrivals -+
    texts, samples ------------------------------> content ---+

Lengths and arrivals draw from streams of their own, so the lengths do not depend on the rate, and
twice the rate gives the same arrivals at half the time. Adding a trace is one file and one line here.
"""

import os
from collections.abc import Callable
from importlib import import_module

import numpy as np

from sim.content import shared_content
from sim.errors import KvsimError, unknown
from sim.workload import PS_PER_S, Beam, Int64Column, Samples, Workload, gathered
from workloads.arrivals import arrival_times_ps
from workloads.lengths import MOST_SAMPLES, Lengths, take

TRACES: dict[str, str] = {
    "sharegpt": "workloads.sharegpt:load_lengths",
    "alpaca": "workloads.histogram:load_alpaca",
    "sharegpt-paper": "workloads.histogram:load_sharegpt_paper",
}
"""Name of a trace -> `module:function` that returns its Lengths; imported only when asked for."""

FILE_ENDINGS = (".jsonl", ".json", ".csv", ".parquet")
"""What ends so is a file, even where there is none; a file that is there may be named anything."""

USUAL_PROMPTS = 1000
USUAL_RATE_AND_BURSTINESS = (2.0, 1.0)
"""What a run has when nothing else is said: rows of a built-in trace, arrivals of a trace without."""


def trace_names() -> list[str]:
    """The built-in traces, in the order of the table."""
    return list(TRACES)


def load(trace: str, *, count: Callable[[str], int] | None = None, turns: str = "first") -> Lengths:
    """All requests of a built-in trace, of a file, or of the user's own `package.module:Class`.

    Parameters
    ----------
    trace : str
        A file may be in any of the formats of workloads/formats.py. The user's own is whatever returns
        Lengths when it is called without arguments.
    count, turns
        How many tokens a text has, and which turns of a conversation to take, for files that hold texts.

    Raises
    ------
    KvsimError
        An unknown trace, or a file that cannot be used.
    """
    if (os.path.exists(trace) and trace not in TRACES) or os.sep in trace or trace.endswith(FILE_ENDINGS):
        from workloads.formats import load_file

        return load_file(trace, count=count, turns=turns)
    if trace not in TRACES and ":" not in trace:
        raise unknown("trace", trace, trace_names())
    module, _, attribute = TRACES.get(trace, trace).partition(":")
    try:
        made: Callable[[], Lengths] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise KvsimError(f"trace {trace!r} cannot be imported: {error}") from error
    lengths = made() if callable(made) else made
    if not isinstance(lengths, Lengths):
        raise KvsimError(
            f"trace {trace!r} must return workloads.lengths.Lengths, got {type(lengths).__name__}"
        )
    return lengths


def build(
    trace: str | Lengths,
    *,
    num_prompts: int | None,
    request_rate: float | None,
    burstiness: float | None,
    seed: int,
    n: int = 1,
    beam_width: int = 1,
    beam_process: str = "replace:0.1",
) -> Workload:
    """The workload of one run; the same arguments give the same bytes.

    Parameters
    ----------
    trace : str or Lengths
        One of `trace_names()`, a file, or what `load` made of it.
    num_prompts : int or None
        How many requests; None takes the whole trace. More than it has draws with replacement, unless they
        come at its own arrivals.
    request_rate : float or None
        Requests per second; infinity lets all of them arrive at 0. None is 2, or the trace's own arrivals,
        beside which there is no other choice.
    burstiness : float or None
        1, or None, is a Poisson process, less is burstier, more is more regular.
    seed : int
        At least 0.
    n : int
        Answers to each prompt of which the trace does not say otherwise, all of the same length.
    beam_width : int
        Candidates of a beam search; 1 is none.
    beam_process : str
        How the candidates that survive are drawn, see sim/beam.py.

    Raises
    ------
    KvsimError
        An unknown trace, a value out of its range, or two that exclude each other.
    """
    if not isinstance(seed, int) or seed < 0:
        raise KvsimError(f"seed must be a whole number of at least 0, got {seed}")
    for name, value in (("n", n), ("beam_width", beam_width)):
        if not isinstance(value, int) or not 1 <= value <= MOST_SAMPLES:
            raise KvsimError(f"{name} must be a whole number from 1 to {MOST_SAMPLES}, got {value}")
    if not beam_process:
        raise KvsimError("beam_process must be a name, as in replace:0.1, got ''")
    if n > 1 and beam_width > 1:
        raise KvsimError(f"n must be 1 with beam search (beam_width {beam_width}), got {n}")
    lengths_seed, arrivals_seed = np.random.SeedSequence(seed).spawn(2)
    whole = load(trace) if isinstance(trace, str) else trace
    lengths = take(whole, num_prompts, np.random.default_rng(lengths_seed))
    arrival_ps = _arrivals(lengths, request_rate, burstiness, np.random.default_rng(arrivals_seed))
    samples = _samples(lengths, n)
    if samples and beam_width > 1:
        why = f"for trace {lengths.name}, in which some requests have several answers"
        raise KvsimError(f"beam_width must be 1 {why}, got {beam_width}")
    return Workload(
        lengths.name,
        arrival_ps,
        lengths.prompt_tokens,
        lengths.output_tokens,
        lengths.notes,
        samples=samples,
        beam=Beam(beam_width, beam_process, seed) if beam_width > 1 else None,
        content=shared_content(lengths.texts, lengths.prompt_tokens, samples.counts > 1 if samples else None),
        priority=lengths.priority,
        labels=lengths.labels,
    )


def usual(trace: str, lengths: Lengths) -> dict[str, int | float | None]:
    """What `num_prompts`, `request_rate` and `burstiness` are when nothing is said of them."""
    rate, burstiness = USUAL_RATE_AND_BURSTINESS if lengths.arrival_s is None else (None, None)
    count = USUAL_PROMPTS if trace in TRACES else len(lengths)
    return {"num_prompts": count, "request_rate": rate, "burstiness": burstiness}


def _arrivals(
    lengths: Lengths, request_rate: float | None, burstiness: float | None, rng: np.random.Generator
) -> Int64Column:
    """The trace's own arrivals, or drawn ones."""
    if lengths.arrival_s is None:
        rate, usual_burstiness = USUAL_RATE_AND_BURSTINESS
        return arrival_times_ps(
            len(lengths),
            rate if request_rate is None else request_rate,
            usual_burstiness if burstiness is None else burstiness,
            rng,
        )
    for name, value in (("request_rate", request_rate), ("burstiness", burstiness)):
        if value is not None:
            why = f"for trace {lengths.name}, which has its own arrivals"
            raise KvsimError(f"{name} must be left out {why}, got {value}")
    return np.rint(lengths.arrival_s * PS_PER_S).astype(np.int64)


def _samples(lengths: Lengths, n: int) -> Samples | None:
    """The answers of each request: as many as the trace says, else n; None when all have one."""
    told = np.zeros(len(lengths), dtype=np.int64) if lengths.samples is None else lengths.samples.counts
    counts = np.where(told > 0, told, n)
    if counts.max() == 1:
        return None
    offsets = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.repeat(lengths.output_tokens, counts)
    if lengths.samples is not None:
        tokens[gathered(offsets, np.flatnonzero(told))[1]] = lengths.samples.tokens
    return Samples(offsets, tokens)
