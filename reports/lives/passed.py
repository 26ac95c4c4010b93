"""How often a request was passed over: who came later entered first, and why the policy had it so.

passed over 14 times, as client B was behind
"""

from collections import Counter

import numpy as np

from kvsim.reports.lives.event_log import ADMIT
from kvsim.reports.lives.spans import Lives
from kvsim.reports.rundir.run import Run
from kvsim.sim.deployment.engine import POLICIES as ENGINES
from kvsim.sim.policies import POLICIES
from kvsim.sim.policies.base import Policy
from kvsim.sim.policies.named import policy_class

WHY = {"priority": "they were more urgent", "sjf": "their answers are shorter"}


def passed_over(run: Run, lives: Lives, request: int) -> str:
    """In words; "" if nobody who came later entered before it, or orders are not a policy's."""
    policy = str(run.config["scenario"]["engine"].get("policy") or "fcfs")
    if policy == "fcfs" or (policy in ENGINES and policy not in WHY):
        return ""
    log = lives.log
    admitted = log.kind == ADMIT
    own = np.flatnonzero(admitted & (log.numbers["request"] == request))
    until_ps = log.numbers["time_ps"][own[0]] if len(own) else np.iinfo(np.int64).max
    before = np.arange(len(log.kind)) < (own[0] if len(own) else len(log.kind))
    later = admitted & before & (log.numbers["request"] > request) & (log.numbers["time_ps"] <= until_ps)
    times = int(later.sum())
    if not times:
        return ""
    why = WHY.get(policy) or (policy_class(policy) if policy in POLICIES else Policy).why
    if "CLIENT" in why:
        rows = [run.row_of(int(number)) for number in log.numbers["request"][later]]
        clients = (
            Counter(str(run.columns.requests["client"][row]) for row in rows) if _told(run) else Counter()
        )
        mine = str(run.columns.requests["client"][run.row_of(request)]) if _told(run) else ""
        others = [name for name, _ in clients.most_common() if name != mine]
        if not others:
            return f"passed over {_times(times)}"
        why = why.replace("CLIENT", others[0])
    return f"passed over {_times(times)}, as {why}"


def _told(run: Run) -> bool:
    return "client" in run.columns.requests


def _times(times: int) -> str:
    return f"{times:,} time{'s' * (times > 1)}"
