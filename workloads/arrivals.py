"""Arrival times: gaps drawn from a gamma distribution, as in vLLM's serving benchmark.

    shape = burstiness    scale = 1 / (request_rate * burstiness)

The mean gap is 1 / request_rate, its coefficient of variation 1 / sqrt(burstiness): 1 is a Poisson process,
less is burstier, more is more regular. The first request arrives after the first gap. The gaps are not
rescaled; newer versions of vLLM stretch them to end at exactly n / request_rate.

A changing rate speeds up or slows down the same process: a request arrives when the expected number of
arrivals is the same as at the constant rate, so the mean over whole cycles remains request_rate.

    onoff:ON_S:OFF_S               request_rate * (ON_S + OFF_S) / ON_S for ON_S seconds, none for OFF_S
    diurnal:PERIOD_S:PEAK_TO_MEAN  request_rate * (1 - (PEAK_TO_MEAN - 1) * cos(2 pi t / PERIOD_S))

The first cycle begins with a burst, or at the lowest rate.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import LATEST_ARRIVAL_S, PS_PER_S, Int64Column
from kvsim.workloads.choices import chosen

FloatColumn = npt.NDArray[np.float64]

PROCESSES = {"poisson": "", "gamma": "", "onoff": "ON_S:OFF_S", "diurnal": "PERIOD_S:PEAK_TO_MEAN"}
"""Name of a process -> its parameters; all but `poisson` take a burstiness."""

LEAST_S = 0.001
"""Shortest burst or period in seconds; the rate may not change faster."""

HALVINGS = 50
"""Bisection steps to invert the expected number of arrivals under a changing rate."""


def arrival_times_ps(
    n: int, request_rate: float, burstiness: float, rng: np.random.Generator, process: str = "gamma"
) -> Int64Column:
    """Arrival times of n requests.

    Parameters
    ----------
    n : int
        How many requests, at least 0.
    request_rate : float
        Requests per second; infinity: all arrive at 0.
    burstiness : float
        Shape of the gamma distribution; no effect at an infinite rate.
    rng : numpy Generator
        The same state gives the same gaps, in units of the mean gap, at any rate.
    process : str
        One of `PROCESSES` with its parameters; `poisson` needs a burstiness of 1.

    Returns
    -------
    int64 array, shape (n,)
        Picoseconds from the start, never decreasing.

    Raises
    ------
    KvsimError
        A rate or burstiness that is not positive, an invalid process, or an arrival too late for the clock.
    """
    if not request_rate > 0:
        raise KvsimError(f"request_rate must be above 0 requests/s (inf: all at once), got {request_rate}")
    if not 0 < burstiness < math.inf:
        raise KvsimError(f"burstiness must be above 0 and finite, got {burstiness}")
    name, numbers = _checked(process)
    if name == "poisson" and burstiness != 1:
        raise KvsimError(f"burstiness must be 1 for poisson arrivals (gamma takes others), got {burstiness}")
    if math.isinf(request_rate):
        if numbers:
            raise KvsimError(f"request_rate must be finite for arrivals {process}, got {request_rate}")
        return np.zeros(n, dtype=np.int64)
    with np.errstate(over="ignore"):
        times_s = np.cumsum(rng.standard_gamma(burstiness, n) / burstiness / request_rate)
        if times_s.max(initial=0.0) <= LATEST_ARRIVAL_S:
            times_s = CHANGES.get(name, _unchanged)(times_s, *numbers)
    last_s = times_s.max(initial=0.0)
    if not last_s <= LATEST_ARRIVAL_S:
        raise KvsimError(
            f"request_rate {request_rate} is too low for {n} requests: the last would arrive at "
            f"{last_s:.3g} s, the clock ends at {LATEST_ARRIVAL_S:.3g} s"
        )
    return np.rint(times_s * PS_PER_S).astype(np.int64)


def _checked(process: str) -> tuple[str, list[float]]:
    """Parse and check a process and its parameters."""
    name, numbers = chosen("arrivals", process, PROCESSES)
    if name == "onoff" and not (numbers[0] >= LEAST_S and numbers[1] >= 0):
        must = f"an ON_S of at least {LEAST_S} and an OFF_S of at least 0"
    elif name == "diurnal" and not (numbers[0] >= LEAST_S and 1 <= numbers[1] <= 2):
        must = f"a PERIOD_S of at least {LEAST_S} and a PEAK_TO_MEAN from 1 to 2"
    else:
        return name, numbers
    raise KvsimError(f"arrivals must have {must}, got {process!r}")


def _in_bursts(times_s: FloatColumn, on_s: float, off_s: float) -> FloatColumn:
    """Insert pauses into arrivals: only seconds within bursts count."""
    busy_s = times_s * (on_s / (on_s + off_s))
    return busy_s + np.floor(busy_s / on_s) * off_s


def _by_the_hour(times_s: FloatColumn, period_s: float, peak_to_mean: float) -> FloatColumn:
    """Move each arrival t to the x with x - a sin(x) = t, where a cycle is 2 pi."""
    cycles = np.floor(times_s / period_s)
    part = times_s / period_s - cycles
    low, high = np.zeros_like(part), np.ones_like(part)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        early = middle - (peak_to_mean - 1) / math.tau * np.sin(math.tau * middle) < part
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    return (cycles + low) * period_s


def _unchanged(times_s: FloatColumn) -> FloatColumn:
    return times_s


CHANGES: dict[str, Callable[..., FloatColumn]] = {"onoff": _in_bursts, "diurnal": _by_the_hour}
"""Name of a process with a changing rate -> transform of arrivals at the mean rate."""
