"""Which requests arrive, when, how long they are, and what text they share: a trace becomes a Workload.

    trace --loader--> Lengths --part, take--> n rows ---------+
    seed ---spawn---> one stream per choice                   +--> Workload
    its own arrivals, a process, or clients -----> when ------+
    texts, shared prefixes, samples -------------> content ---+

Each random quantity has its own stream, so the lengths do not depend on the rate, and no choice affects
unrelated ones; twice the rate gives the same arrivals in half the time. A new trace takes a file and a line
here.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from kvsim.sim.content import shared_content
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.plugins import named_object
from kvsim.sim.workload import Beam, Samples, Workload, gathered
from kvsim.workloads.clients_mix import paced, with_clients
from kvsim.workloads.lengths import MOST_SAMPLES, Lengths, take, within_clock
from kvsim.workloads.prefixes import with_shared_prefix
from kvsim.workloads.replay import part_of
from kvsim.workloads.synthetic import USUAL_LENGTHS, draw_lengths
from kvsim.workloads.when import TRACE, When

TRACES: dict[str, str] = {
    "sharegpt": "kvsim.workloads.sharegpt:load_lengths",
    "alpaca": "kvsim.workloads.histogram:load_alpaca",
    "sharegpt-paper": "kvsim.workloads.histogram:load_sharegpt_paper",
    "agents": "kvsim.workloads.agents:load_lengths",
    "synthetic": "kvsim.workloads.synthetic:load_lengths",
}
"""Name of a trace -> `module:function` that returns its Lengths; imported on demand."""

FILE_ENDINGS = (".jsonl", ".json", ".csv", ".parquet")
"""A name with such an ending means a file, even if missing; an existing file may have any name."""

USUAL_PROMPTS = 1000
"""Default number of requests from a built-in trace."""


class Streams(NamedTuple):
    """One random stream per drawn quantity; append new ones at the end."""

    rows: np.random.Generator
    arrivals: np.random.Generator
    input_len: np.random.Generator
    output_len: np.random.Generator
    shared_prefix: np.random.Generator
    spread: np.random.Generator
    think_time: np.random.Generator
    clients_mix: np.random.Generator

    @classmethod
    def of(cls, seed: int) -> "Streams":
        """The streams of a seed."""
        return cls(*map(np.random.default_rng, np.random.SeedSequence(seed).spawn(len(cls._fields))))


def trace_names() -> list[str]:
    """The built-in traces, in table order."""
    return list(TRACES)


def load(
    trace: str,
    *,
    count: Callable[[str], int] | None = None,
    turns: str = "first",
    columns: str | None = None,
) -> Lengths:
    """All requests of a trace: built-in, fetched, a file, or the user's `package.module:Class`.

    Parameters
    ----------
    trace : str
        Files may have any format of workloads/formats.py. The user's class is anything that returns Lengths
        when called without arguments.
    count, turns
        For files that hold texts: counts the tokens of a text, and selects turns of conversations.
    columns : str or None
        Field names in a user's file, as in `prompt_tokens=isl`, see workloads/columns.py.

    Raises
    ------
    KvsimError
        An unknown trace, or a file that cannot be used.
    """
    if (os.path.exists(trace) and trace not in TRACES) or os.sep in trace or trace.endswith(FILE_ENDINGS):
        from kvsim.workloads.formats import load_file

        return load_file(trace, count=count, turns=turns, columns=columns)
    if columns is not None:
        raise KvsimError(f"columns must be left out for trace {trace}, which is no file, got {columns!r}")
    if trace not in TRACES and ":" not in trace:
        from kvsim.workloads.catalogue import entries, kept

        if trace not in entries():
            near = get_close_matches(trace, entries(), 1) and not get_close_matches(trace, TRACES, 1)
            raise unknown("trace", trace, list(entries()) if near else trace_names())
        return replace(load(kept(trace), count=count, turns=turns), name=trace)
    made: Any
    if trace in TRACES:
        module, _, attribute = TRACES[trace].partition(":")
        made = getattr(import_module(module), attribute)
    else:
        made = named_object("trace", trace)
    lengths = made() if callable(made) else made
    if not isinstance(lengths, Lengths):
        raise KvsimError(
            f"trace {trace!r} must return kvsim.workloads.lengths.Lengths, got {type(lengths).__name__}"
        )
    return lengths


def build(trace: str | Lengths, **choices: Any) -> Workload:  # noqa: ANN401 - those of Traffic
    """The workload of one run; the same arguments give the same bytes.

    Parameters
    ----------
    trace : str or Lengths
        One of `trace_names()`, a file, or a result of `load`.
    **choices
        Other fields of `Traffic`, which documents them; `num_prompts` None takes the whole trace.

    Raises
    ------
    KvsimError
        An unknown trace, a value out of range, or two values that exclude each other.
    """
    asked = Traffic(**choices)
    _check(asked)
    streams = Streams.of(asked.seed)
    when = When.of(asked)
    lengths = _rows(load(trace) if isinstance(trace, str) else trace, asked, when, streams)
    lengths = _with_lengths(lengths, asked.input_len, asked.output_len, streams)
    if asked.shared_prefix is not None:
        lengths = with_shared_prefix(lengths, asked.shared_prefix, streams.shared_prefix)
    if asked.clients_mix is not None:
        lengths = with_clients(lengths, asked.clients_mix, streams.clients_mix)
    drawn = when.drawn(lengths, streams.arrivals, streams.think_time)
    lengths, drawn = paced(lengths, drawn, asked.clients_mix, streams.clients_mix)
    samples, width = _samples(lengths, asked.n), asked.beam_width
    if samples and width > 1:
        why = f"for trace {lengths.name}, in which some requests have several answers"
        raise KvsimError(f"beam_width must be 1 {why}, got {width}")
    return Workload(
        lengths.name,
        drawn.arrival_ps,
        lengths.prompt_tokens,
        lengths.output_tokens,
        (*lengths.notes, *drawn.notes),
        samples=samples,
        beam=Beam(width, asked.beam_process, asked.seed) if width > 1 else None,
        content=shared_content(lengths.texts, lengths.prompt_tokens, samples.counts > 1 if samples else None),
        priority=lengths.priority,
        drafts=lengths.drafts,
        seed=asked.seed,
        waits=drawn.waits,
        labels=lengths.labels,
    )


def usual(lengths: Lengths, traffic: Traffic) -> dict[str, int | float | str | None]:
    """Defaults for options that the traffic leaves open; `lengths` are its trace's."""
    when = When.of(traffic)
    part = bool(traffic.start) or traffic.duration is not None or when.others is not None
    rows = USUAL_PROMPTS if traffic.trace in TRACES else len(lengths)
    prompt, output = USUAL_LENGTHS if lengths.endless else (None, None)
    return {
        "num_prompts": None if part else rows,
        "shuffle": False,
        "input_len": prompt,
        "output_len": output,
        **when.usual(lengths),
    }


def _check(asked: Traffic) -> None:
    """Raise KvsimError for an invalid number."""
    if not isinstance(asked.seed, int) or asked.seed < 0:
        raise KvsimError(f"seed must be a whole number of at least 0, got {asked.seed}")
    for name, value in (("n", asked.n), ("beam_width", asked.beam_width)):
        if not isinstance(value, int) or not 1 <= value <= MOST_SAMPLES:
            raise KvsimError(f"{name} must be a whole number from 1 to {MOST_SAMPLES}, got {value}")
    if not asked.beam_process:
        raise KvsimError("beam_process must be a name, as in replace:0.1, got ''")
    if asked.n > 1 and asked.beam_width > 1:
        raise KvsimError(f"n must be 1 with beam search (beam_width {asked.beam_width}), got {asked.n}")


def _rows(whole: Lengths, asked: Traffic, when: When, streams: Streams) -> Lengths:
    """The selected rows of a trace, with their arrivals if these are replayed."""
    most, shuffle = asked.num_prompts, bool(asked.shuffle)
    if when.others is not None:
        whole = _at_times_of(whole, load(when.others), streams.rows, shuffle)
        shuffle = False  # already drawn
    when.check(whole)
    if whole.endless and most is None:
        most = USUAL_PROMPTS
    part = when.timed(part_of(whole, asked.start, asked.duration), streams.spread)
    if asked.closed_sessions and most is not None and most > len(part):
        limit = f"at most {len(part)} with closed_sessions, the requests there are"
        raise KvsimError(f"num_prompts must be {limit}, got {most}")
    if shuffle:
        _check_shuffled(part, asked.closed_sessions)
    return within_clock(take(part, most, streams.rows, shuffle))


def _check_shuffled(lengths: Lengths, closed_sessions: bool) -> None:
    """Raise KvsimError if shuffling would break the order of the rows, or have no effect."""
    whose = f"for trace {lengths.name}"
    if closed_sessions:
        raise KvsimError("shuffle must be left out with closed_sessions, whose turns have an order, got True")
    if lengths.arrival_s is not None:
        raise KvsimError(f"shuffle must be left out {whose}, which has its own arrival times, got True")
    if lengths.endless:
        raise KvsimError(f"shuffle must be left out {whose}, whose rows are all equal, got True")


def _at_times_of(lengths: Lengths, other: Lengths, rng: np.random.Generator, shuffle: bool) -> Lengths:
    """As many requests as the other trace has, at its arrival times."""
    if other.arrival_s is None:
        raise KvsimError(f"arrivals must be those of a trace that has some, got trace {other.name}")
    rows = take(replace(lengths, arrival_s=None), len(other), rng, shuffle)
    notes = (*rows.notes, f"At the arrivals of trace {other.name}.")
    return replace(rows, arrival_s=other.arrival_s, notes=notes, endless=False)


def _with_lengths(
    lengths: Lengths, input_len: str | None, output_len: str | None, streams: Streams
) -> Lengths:
    """The requests, with lengths drawn from distributions where requested."""
    for option, column, text, rng in (
        ("input_len", "prompt_tokens", input_len, streams.input_len),
        ("output_len", "output_tokens", output_len, streams.output_len),
    ):
        if text is None:
            continue
        why = None
        if lengths.texts is not None:
            why = "tells what its requests consist of"
        elif lengths.samples is not None and column == "output_tokens":
            why = "tells how many answers there are"
        if why:
            raise KvsimError(f"{option} must be left out for trace {lengths.name}, which {why}, got {text!r}")
        kind, _, source = text.partition(":")
        if kind == TRACE and source:
            known = getattr(load(source), column)
            tokens = known[rng.integers(len(known), size=len(lengths))]
        else:
            tokens = draw_lengths(option, text, len(lengths), rng)
        notes = (*lengths.notes, f"{option.capitalize().replace('_len', ' lengths')} drawn: {text}.")
        lengths = replace(lengths, notes=notes, **{column: tokens})
    return lengths


def _samples(lengths: Lengths, n: int) -> Samples | None:
    """The answers of each request: as many as the trace says, else n; None if all have one."""
    told = np.zeros(len(lengths), dtype=np.int64) if lengths.samples is None else lengths.samples.counts
    counts = np.where(told > 0, told, n)
    if counts.max() == 1:
        return None
    offsets = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.repeat(lengths.output_tokens, counts)
    if lengths.samples is not None:
        tokens[gathered(offsets, np.flatnonzero(told))[1]] = lengths.samples.tokens
    return Samples(offsets, tokens)
