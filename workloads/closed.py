"""Closed loops: requests that wait for an answer and a think time before they arrive.

    --clients 2          client 1   |ask......answer| think |ask...answer| think |ask
                         client 2   |ask...answer| think |ask..........answer| think
    --closed-sessions    session    |turn 0...answer| think |turn 1......answer| think |turn 2

The first free client takes the next request of the trace; arrivals are ignored. In closed sessions each turn
follows the answer to the previous one, and only first turns have an arrival, so faster servers get later
turns sooner, as from real users. Turns are in the order of the trace's rows.
"""

from collections.abc import Sequence

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import LATEST_ARRIVAL_S, PS_PER_S, Chain, Clients, Int64Column
from kvsim.workloads.choices import chosen
from kvsim.workloads.lengths import Lengths

THINK_TIMES = {"fixed": "S", "exponential": "MEAN_S"}
"""Name of a distribution of think times -> its parameter."""

USUAL_THINK_TIME = "fixed:0"
TOLD = "trace"
"""The think time that means the trace's own delays."""
MOST_CLIENTS = 1_000_000


def think_times_ps(text: str, n: int, rng: np.random.Generator) -> Int64Column:
    """For n requests, the time from the answer that each waits for to its own arrival.

    Raises
    ------
    KvsimError
        An unknown distribution, or an invalid time.
    """
    name, (mean_s,) = chosen("think_time", text, THINK_TIMES)
    if not 0 <= mean_s <= LATEST_ARRIVAL_S / 100:
        raise KvsimError(f"think_time must be from 0 to {LATEST_ARRIVAL_S / 100:,.0f} s, got {text!r}")
    shape = rng.standard_exponential(n) if name == "exponential" else np.ones(n)
    return np.rint(shape * mean_s * PS_PER_S).astype(np.int64)


def closed_loop(clients: int, think_time: str | None, n: int, rng: np.random.Generator) -> Clients:
    """A closed loop of `clients` clients for n requests.

    Raises
    ------
    KvsimError
        Fewer than one client, or an invalid think time.
    """
    if not 1 <= clients <= MOST_CLIENTS:
        raise KvsimError(f"clients must be from 1 to {MOST_CLIENTS:,}, got {clients}")
    return Clients(clients, think_times_ps(think_time or USUAL_THINK_TIME, n, rng))


def closed_sessions(lengths: Lengths, think_time: str | None, rng: np.random.Generator) -> Chain:
    """Each turn waits for the previous one, or for the call and the delay given in the trace.

    Raises
    ------
    KvsimError
        A trace without sessions, or an invalid think time.
    """
    if "session" not in lengths.labels:
        raise KvsimError(f"closed_sessions needs a trace with sessions, which {lengths.name} has not")
    told = {"call", "after"} <= lengths.labels.keys()
    after = _calls_before(lengths) if told else _turns_before(lengths.labels["session"].tolist())
    if think_time in (None, TOLD) and "delay_s" in lengths.labels:
        delay_s = np.asarray(lengths.labels["delay_s"], dtype=np.float64)
        return Chain(after, np.rint(delay_s.clip(0, LATEST_ARRIVAL_S / 100) * PS_PER_S).astype(np.int64))
    return Chain(after, think_times_ps(think_time or USUAL_THINK_TIME, len(lengths), rng))


def _calls_before(lengths: Lengths) -> Int64Column:
    """For each row, the row of the call it waits for; -1 if it waits for none."""
    rows = {call: row for row, call in enumerate(lengths.labels["call"].tolist())}
    after = [rows.get(call, -1) for call in lengths.labels["after"].tolist()]
    return np.array([other if other < row else -1 for row, other in enumerate(after)], dtype=np.int64)


def _turns_before(sessions: Sequence[object]) -> Int64Column:
    """For each row, the previous row of its session; -1 if there is none."""
    last: dict[object, int] = {}
    after = np.full(len(sessions), -1, dtype=np.int64)
    for row, name in enumerate(sessions):
        if name is not None:
            after[row] = last.get(name, -1)
            last[name] = row
    return after


def in_words(waits: Chain | Clients, think_time: str | None, told: bool = False) -> str:
    """A note on which requests wait for which; `told`: the trace gives the delays."""
    if told:
        return (
            "Closed sessions: a request is sent after the answer that it waits for and the trace's own delay."
        )
    think = think_time or USUAL_THINK_TIME
    if isinstance(waits, Clients):
        who = f"{waits.clients:,} client{'s' * (waits.clients > 1)}"
        return (
            f"Closed loop: {who}, each sends its next request after its answer and a think time, {think} s."
        )
    return (
        f"Closed sessions: a turn is sent after the answer to the previous one and a think time, {think} s."
    )
