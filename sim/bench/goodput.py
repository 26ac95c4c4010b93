"""Which requests benchmark tools count as good: those within every limit on TTFT, TPOT and E2E.

    an answer of one token has no TPOT; if TPOT is limited,
        vllm       takes it as 0: within
        aiperf     has no such metric for the request: not good
        guidellm   does not judge it: it counts neither way

Per-request limits count; if all limits are quantiles, all of them count, as in the summary. With a limit that
the tools do not have (`queueing`, `normalized`), goodput is left out.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kvsim.sim.bench.served import Served

Bools = npt.NDArray[np.bool_]
NAMES = ("ttft", "tpot", "e2e")
"""Latencies that these tools can limit."""


def limits_of(run: Served) -> Mapping[str, float]:
    """Latency -> limit in seconds, the smallest; empty if there are none, or limits other than NAMES."""
    found: dict[str, float] = {}
    for limit in () if run.slo is None else run.slo.of_each:
        if limit.latency not in NAMES:
            return {}
        found[limit.latency] = min(limit.limit_s, found.get(limit.latency, limit.limit_s))
    return found


def good(run: Served, without_tpot: bool) -> Bools:
    """Which requests are within all limits; `without_tpot`: whether those without a TPOT count as within."""
    requests = run.requests
    values = {"ttft": requests.ttft_s, "tpot": requests.tpot_s, "e2e": requests.e2e_s}
    found = np.ones(len(requests), dtype=np.bool_)
    for name, limit_s in limits_of(run).items():
        found &= (values[name] <= limit_s) | (np.isnan(values[name]) & without_tpot)
    return found
