"""Which requests of a run are good, as benchmark tools judge: within every limit on TTFT, TPOT and E2E.

    an answer of one token has no TPOT; where TPOT is limited,
        vllm       takes it for 0: within
        aiperf     has no such metric of the request: not good
        guidellm   does not judge it: it counts neither way

Limits are those of each request; where all are quantiles, all of them, as in the summary. A limit that the
tools have no name for (`queueing`, `normalized`) leaves goodput out.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kvsim.sim.bench.served import Served

Bools = npt.NDArray[np.bool_]
NAMES = ("ttft", "tpot", "e2e")
"""The latencies that these tools can limit."""


def limits_of(run: Served) -> Mapping[str, float]:
    """Latency -> limit in seconds, the smallest; nothing where there are none, or others than NAMES."""
    found: dict[str, float] = {}
    for limit in () if run.slo is None else run.slo.of_each:
        if limit.latency not in NAMES:
            return {}
        found[limit.latency] = min(limit.limit_s, found.get(limit.latency, limit.limit_s))
    return found


def good(run: Served, without_tpot: bool) -> Bools:
    """Which requests are within all limits; `without_tpot`: whether one that has no TPOT is, too."""
    requests = run.requests
    values = {"ttft": requests.ttft_s, "tpot": requests.tpot_s, "e2e": requests.e2e_s}
    found = np.ones(len(requests), dtype=np.bool_)
    for name, limit_s in limits_of(run).items():
        found &= (values[name] <= limit_s) | (np.isnan(values[name]) & without_tpot)
    return found
