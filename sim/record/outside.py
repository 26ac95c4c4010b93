"""What the requests of a run spend outside of the engine, and how many are in flight beside each.

in flight    with the same server when a request arrives: arrived by then, and not finished, itself too
"""

import numpy as np

from kvsim.sim.cost.frontend import Floats, Frontend
from kvsim.sim.record.recorder import Result
from kvsim.sim.workload import Clients, Int64Column


def seconds_of(result: Result, frontend: Frontend, servers: int) -> Floats | float:
    """What each request of a run spends in the front end; clients spread evenly over the servers."""
    if not frontend:
        return 0.0
    prompts, waits = result.workload.prompt_tokens, result.workload.waits
    if isinstance(waits, Clients):
        return frontend.seconds(prompts, waits.clients / servers)
    return frontend.seconds(prompts, in_flight(result))


def in_flight(result: Result) -> Int64Column:
    """Of each request, those that are with its server when it arrives; 1 for those that are rejected."""
    found = np.ones(len(result.workload), dtype=np.int64)
    replicas = np.zeros_like(found) if result.replica is None else result.replica
    for place in np.unique(replicas):
        rows = result.finished & (replicas == place)
        came, left = (np.sort(each[rows]) for each in (result.arrival_ps, result.requests["finish_ps"]))
        now = result.arrival_ps[rows]
        found[rows] = np.searchsorted(came, now, "right") - np.searchsorted(left, now, "right")
    return found
