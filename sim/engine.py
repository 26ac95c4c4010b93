"""A workload on its replicas: everything on one SimPy clock that counts whole picoseconds.

`Arrivals` brings the requests (sim/arrivals.py), each `Replica` serves those that come to it
(sim/replica.py).
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import simpy

from kvsim.sim.arrivals import Arrivals
from kvsim.sim.recorder import Result
from kvsim.sim.replica import Replica
from kvsim.sim.request_log import RequestLog
from kvsim.sim.workload import Workload

UNLIMITED = 1 << 40


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """Pause the search for reference cycles: a run makes none, and it would take a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Engine:
    """One or several replicas under one workload.

    Parameters
    ----------
    log : RequestLog
        The one that the replicas write to.
    max_model_len : int
        Tokens of the longest sequence; longer answers are cut, prompts that leave no room refused.
    """

    def __init__(
        self, workload: Workload, log: RequestLog, replicas: Sequence[Replica], max_model_len: int
    ) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.workload = workload
        self.log = log
        self.replicas = replicas
        longest = max_model_len if replicas[0].scheduler.limits_length else UNLIMITED
        self.arrivals = Arrivals(self.env, log, longest)

    @property
    def replica(self) -> Replica:
        """The first replica, most often the only one."""
        return self.replicas[0]

    def run(self) -> Result:
        """Serve every request and return what was written down."""
        self.arrivals.begin(self.replicas)
        for replica in self.replicas:
            replica.begin(self.env, self.arrivals, alone=len(self.replicas) == 1)
        with _no_cycle_collection():
            self.env.run()
        return self.replica.result()
