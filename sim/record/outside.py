"""Time that requests spend outside the engine, without their wait for the front end.

That wait is already part of the time from arrival to first token, as requests reach the engine later.
"""

from kvsim.sim.cost.frontend import Floats, Frontend
from kvsim.sim.record.recorder import Result
from kvsim.sim.workload import Clients


def seconds_of(result: Result, frontend: Frontend, servers: int) -> Floats | float:
    """Front-end time of each request; clients are spread evenly over the servers."""
    if not frontend:
        return 0.0
    waits = result.workload.waits
    clients = waits.clients / servers if isinstance(waits, Clients) else 0
    return frontend.seconds(result.workload.prompt_tokens, clients)
