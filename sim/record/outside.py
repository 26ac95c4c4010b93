"""What the requests of a run spend outside of the engine, their wait for the front end left out.

That wait is in the time between arrival and first token already: the engine hears of a request later.
"""

from kvsim.sim.cost.frontend import Floats, Frontend
from kvsim.sim.record.recorder import Result
from kvsim.sim.workload import Clients


def seconds_of(result: Result, frontend: Frontend, servers: int) -> Floats | float:
    """What each request of a run spends in the front end; clients spread evenly over the servers."""
    if not frontend:
        return 0.0
    waits = result.workload.waits
    clients = waits.clients / servers if isinstance(waits, Clients) else 0
    return frontend.seconds(result.workload.prompt_tokens, clients)
