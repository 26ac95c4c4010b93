"""The load of a measured run on its server, as a workload to simulate.

every request, paced by a clock       the same lengths at the same times
every request, paced by answers       the same lengths in the same order from as many clients
conversations                         a turn comes after the previous answer and a pause (turns.py)
numbers only                          as many requests of the mean lengths, at the rate or from the clients

Requests cut by the tool's time limit had a seat and memory until then: they are included, without times.
"""

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from kvsim.sim.bench.measured import PER_S, MeasuredRun, Requests
from kvsim.sim.bench.turns import SharedPrefix, has_turns, pauses_ps, texts_of, turns_of
from kvsim.sim.content import shared_content
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import LATEST_ARRIVAL_S, PS_PER_S, Chain, Clients, Int64Column, Workload

MOST_TOKENS = 40_000_000
"""Limit for a run known only by its numbers: enough for its means."""
SHARED = "Prompts are assumed to share nothing, because the result does not contain them."
MEASURED = "measured"
"""Label with the index of the measured request; -1 if the tool's time limit cut it off."""


LOAD = ("rate_scale", "request_rate", "burstiness", "clients")
"""Load settings that `--what-if` changes."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Arrivals that differ from the measured ones: the options of `sim run` with these names."""

    rate_scale: float = 1.0
    request_rate: float | None = None
    burstiness: float | None = None
    clients: int | None = None
    shared_prefix: SharedPrefix | None = None

    def __post_init__(self) -> None:
        for name in LOAD:
            value = getattr(self, name)
            if value is not None and not (value > 0 and (name == "request_rate" or isfinite(value))):
                raise KvsimError(f"{name} must be above 0, got {value}")
        if self.clients is not None:
            self._alone("clients", ("request_rate", "burstiness"))
        if self.request_rate is not None or self.clients is not None:
            self._alone("request_rate" if self.clients is None else "clients", ("rate_scale",))
        if self.burstiness is not None and self.request_rate is None:
            raise KvsimError(
                f"burstiness needs request_rate, whose arrivals it shapes, got {self.burstiness}"
            )

    def _alone(self, given: str, others: tuple[str, ...]) -> None:
        for name in others:
            value = getattr(self, name)
            if value not in (None, 1.0):
                raise KvsimError(f"{name} must be left out with {given}, got {value}")


AS_MEASURED = Load()


def workload_of(run: MeasuredRun, load: Load = AS_MEASURED) -> Workload:
    """The requests of a run; the workload's notes say what was assumed.

    Raises
    ------
    KvsimError
        A load that this run cannot have: a closed loop has no rate to scale.
    """
    closed = load.clients is not None or (run.closed and load.request_rate is None)
    if closed and load.rate_scale != 1:
        raise KvsimError(
            f"rate_scale must be 1 for a closed loop, in which answers decide when requests arrive "
            f"(clients: how many send), got {load.rate_scale:g}"
        )
    if run.requests is None:
        if load.shared_prefix is not None:
            raise KvsimError("shared_prefix must be left out: the result holds no requests, only numbers")
        return _of_numbers(run, load, closed)
    requests, measured, notes = asked_of(run)
    clients, measured_clients = load.clients or run.clients or 1, run.clients if run.closed else None
    arrivals, said = _when(run, requests, load, closed)
    waits: Chain | Clients | None = None
    if has_turns(requests):
        order, waits = turns_of(requests, measured_clients, clients if closed else None)
        requests, measured, arrivals = requests.rows(order), measured[order], arrivals[order]
    elif closed:
        arrivals = np.zeros(len(requests), dtype=np.int64)
        waits = Clients(min(clients, len(requests)), pauses_ps(requests, measured_clients, clients))
    if waits is not None and run.closed and requests.start_s is not None:
        said += _in_words(waits)
    texts = texts_of(requests, load.shared_prefix)
    return Workload(
        run.name,
        arrivals,
        requests.input_tokens,
        requests.output_tokens,
        tuple([*notes, *said, *([SHARED] if texts is None else [])]),
        content=shared_content(texts, requests.input_tokens),
        waits=waits,
        labels={MEASURED: measured},
    )


def _in_words(waits: Chain | Clients) -> tuple[str, ...]:
    """How long clients wait before they send again, if any wait."""
    pauses = (
        waits.think_ps[waits.clients :] if isinstance(waits, Clients) else waits.think_ps[waits.after >= 0]
    )
    if not len(pauses):
        return ()
    pause_ms = 1e3 * float(pauses.mean()) / PS_PER_S
    return (f"Clients ask again {pause_ms:,.1f} ms after an answer on average, as measured.",)


def asked_of(run: MeasuredRun) -> tuple[Requests, Int64Column, list[str]]:
    """All requests that arrived, in order of start time; their labels; and notes on them."""
    answered, cut = run.requests, run.cut
    assert answered is not None
    if cut is None or not len(cut) or answered.start_s is None:
        return answered, np.arange(len(answered)), []
    usual = round(float(answered.output_tokens.mean()))
    guessed = replace(cut, output_tokens=np.maximum(cut.output_tokens + 1, usual))
    both = answered.joined(guessed)
    begun = both.start_s
    assert begun is not None
    order = np.argsort(begun, kind="stable").astype(np.int64)
    note = (
        f"{len(cut):,} requests were cut by the time limit: they are simulated, too, with the tokens of a "
        f"typical answer ({usual:,}), but count in no number."
    )
    measured = np.concatenate([np.arange(len(answered)), np.full(len(cut), -1)]).astype(np.int64)
    return replace(both, start_s=begun - begun.min()).rows(order), measured[order], [note]


def _when(
    run: MeasuredRun, requests: Requests, load: Load, closed: bool
) -> tuple[Int64Column, tuple[str, ...]]:
    """Arrival of each request, if paced by a clock; zeros if paced by answers."""
    n = len(requests)
    if load.request_rate is not None:
        return _arrivals(load.request_rate, load.burstiness or run.burstiness, n), ()
    if requests.start_s is not None and not load.clients:
        start_s = requests.start_s / load.rate_scale
        if (latest := float(start_s.max(initial=0))) > LATEST_ARRIVAL_S:
            ends = f"the clock ends at {LATEST_ARRIVAL_S:,.0f} s"
            raise KvsimError(f"the last request begins {latest:g} s after the first: {ends}")
        return np.round(start_s * PS_PER_S).astype(np.int64), ()
    if closed:
        return np.zeros(n, dtype=np.int64), ()
    note = "Arrivals are drawn by the request rate: the result does not hold them."
    return _scaled(_arrivals(run.request_rate, run.burstiness, n), load), (note,)


def _of_numbers(run: MeasuredRun, load: Load, closed: bool) -> Workload:
    lengths = [max(round(mean), 1) for mean in (run.input_tokens, run.output_tokens)]
    n = max(min(run.count, MOST_TOKENS // sum(lengths)), 1)
    notes = [SHARED, f"All prompts have {lengths[0]:,} tokens and all answers {lengths[1]:,}, the means."]
    if n < run.count:
        notes.append(f"The first {n:,} of {run.count:,} requests.")
    none = np.zeros(n, dtype=np.int64)
    columns = [np.full(n, length, dtype=np.int64) for length in lengths]
    if closed:
        waits = Clients(min(load.clients or run.clients or 1, n), none)
        return Workload(run.name, none, columns[0], columns[1], tuple(notes), waits=waits)
    rate = run.request_rate if load.request_rate is None else load.request_rate
    if rate is None:
        rate = run.told.get(("requests", PER_S))
        notes.append("Requests arrive at the rate at which they were served: the result does not say which.")
    arrivals = _scaled(_arrivals(rate, load.burstiness or run.burstiness, n), load)
    return Workload(run.name, arrivals, columns[0], columns[1], tuple(notes))


def _scaled(arrivals: Int64Column, load: Load) -> Int64Column:
    found: Int64Column = np.round(arrivals / load.rate_scale).astype(np.int64)
    return arrivals if load.rate_scale == 1 else found


def _arrivals(rate: float | None, burstiness: float, n: int) -> Int64Column:
    """Gamma gaps that sum to n / rate, as drawn by vllm bench serve."""
    if not rate or not isfinite(rate):
        return np.zeros(n, dtype=np.int64)
    gaps = np.ones(n)
    if isfinite(burstiness) and burstiness > 0:
        gaps = np.random.default_rng(0).gamma(burstiness, 1.0, n)
    times = np.cumsum(gaps)
    times *= n / rate / times[-1]
    found: Int64Column = np.round((times - times[0]) * PS_PER_S).astype(np.int64)
    return found
