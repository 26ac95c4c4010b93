"""What a measured run asked of its server, as a workload to simulate.

every request, paced by a clock       the same lengths at the same times
every request, paced by answers       the same lengths in the same order from as many clients
numbers only                          so many requests of the mean lengths, at the rate or from the clients
"""

from math import isfinite

import numpy as np

from kvsim.sim.bench.measured import PER_S, MeasuredRun
from kvsim.sim.workload import PS_PER_S, Clients, Int64Column, Workload

MOST_TOKENS = 40_000_000
"""Of a run that is known by its numbers only: enough for its means."""
SHARED = "Prompts are taken to share nothing: the result does not hold them."


def workload_of(run: MeasuredRun) -> Workload:
    """The requests of a run; the workload's notes say what was assumed."""
    if run.requests is None:
        return _of_numbers(run)
    requests, notes = run.requests, [SHARED]
    n = len(requests)
    none = np.zeros(n, dtype=np.int64)
    waits, arrivals = None, none
    if run.closed:
        waits = Clients(min(run.clients or 1, n), none)
    elif requests.start_s is not None:
        arrivals = np.round(requests.start_s * PS_PER_S).astype(np.int64)
    else:
        arrivals = _arrivals(run.request_rate, run.burstiness, n)
        notes.append("Arrivals are drawn by the request rate: the result does not hold them.")
    return Workload(
        run.name, arrivals, requests.input_tokens, requests.output_tokens, tuple(notes), waits=waits
    )


def _of_numbers(run: MeasuredRun) -> Workload:
    lengths = [max(round(mean), 1) for mean in (run.input_tokens, run.output_tokens)]
    n = max(min(run.count, MOST_TOKENS // sum(lengths)), 1)
    notes = [SHARED, f"All prompts have {lengths[0]:,} tokens and all answers {lengths[1]:,}, the means."]
    if n < run.count:
        notes.append(f"The first {n:,} of {run.count:,} requests.")
    none = np.zeros(n, dtype=np.int64)
    columns = [np.full(n, length, dtype=np.int64) for length in lengths]
    if run.closed:
        waits = Clients(min(run.clients or 1, n), none)
        return Workload(run.name, none, columns[0], columns[1], tuple(notes), waits=waits)
    rate = run.request_rate
    if rate is None:
        rate = run.told.get(("requests", PER_S))
        notes.append("Requests arrive at the rate at which they were served: the result does not say which.")
    arrivals = _arrivals(rate, run.burstiness, n)
    return Workload(run.name, arrivals, columns[0], columns[1], tuple(notes))


def _arrivals(rate: float | None, burstiness: float, n: int) -> Int64Column:
    """Gamma gaps that all together take n / rate, as vllm bench serve draws them."""
    if not rate or not isfinite(rate):
        return np.zeros(n, dtype=np.int64)
    gaps = np.ones(n)
    if isfinite(burstiness) and burstiness > 0:
        gaps = np.random.default_rng(0).gamma(burstiness, 1.0, n)
    times = np.cumsum(gaps)
    times *= n / rate / times[-1]
    found: Int64Column = np.round((times - times[0]) * PS_PER_S).astype(np.int64)
    return found
