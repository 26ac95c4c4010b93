"""When requests arrive: gaps drawn from a gamma distribution, as in vLLM's serving benchmark.

    shape = burstiness    scale = 1 / (request_rate * burstiness)

The mean gap is 1 / request_rate, its coefficient of variation 1 / sqrt(burstiness): 1 is a Poisson
process, less is burstier, more is more regular. The first request comes after the first gap. The
gaps are left as drawn; newer versions of vLLM stretch them to end at exactly n / request_rate.
"""

import math

import numpy as np

from sim.errors import KvsimError
from sim.workload import LATEST_ARRIVAL_S, PS_PER_S, Int64Column


def arrival_times_ps(n: int, request_rate: float, burstiness: float, rng: np.random.Generator) -> Int64Column:
    """Arrival times of n requests.

    Parameters
    ----------
    n : int
        How many requests, at least 0.
    request_rate : float
        Requests per second; infinity lets all of them arrive at 0.
    burstiness : float
        Shape of the gamma distribution; has no effect at an infinite rate.
    rng : numpy Generator
        The only randomness: the same state gives the same gaps, in units of the mean gap, at any rate.

    Returns
    -------
    int64 array, shape (n,)
        Picoseconds from the start, never decreasing.

    Raises
    ------
    KvsimError
        A rate or burstiness that is not positive, or an arrival too late for the clock.
    """
    if not request_rate > 0:
        raise KvsimError(f"request_rate must be above 0 requests/s (inf: all at once), got {request_rate}")
    if not 0 < burstiness < math.inf:
        raise KvsimError(f"burstiness must be above 0 and finite, got {burstiness}")
    if math.isinf(request_rate):
        return np.zeros(n, dtype=np.int64)
    with np.errstate(over="ignore"):
        times_s = np.cumsum(rng.standard_gamma(burstiness, n) / burstiness / request_rate)
    last_s = times_s.max(initial=0.0)
    if not last_s <= LATEST_ARRIVAL_S:
        raise KvsimError(
            f"request_rate {request_rate} is too low for {n} requests: the last would arrive at "
            f"{last_s:.3g} s, the clock ends at {LATEST_ARRIVAL_S:.3g} s"
        )
    return np.rint(times_s * PS_PER_S).astype(np.int64)
