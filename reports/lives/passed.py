"""How often later arrivals were admitted before a request, and why the policy did so.

passed over 14 times, as client B was behind
"""

from bisect import bisect_right, insort

from kvsim.reports.lives.event_log import ADMIT, EventLog
from kvsim.reports.rundir.run import Run
from kvsim.sim.deployment.engine import POLICIES as ENGINES
from kvsim.sim.policies import POLICIES
from kvsim.sim.policies.base import Policy
from kvsim.sim.policies.named import policy_class

WHY = {"priority": "they were more urgent", "sjf": "their answers are shorter"}


def passed_over(run: Run, log: EventLog) -> dict[int, str]:
    """Request -> how often it was passed over, in words; empty if no policy orders the queue."""
    policy = str(run.engine.get("policy") or "fcfs")
    if policy == "fcfs" or (policy in ENGINES and policy not in WHY):
        return {}
    why = WHY.get(policy) or (policy_class(policy) if policy in POLICIES else Policy).why
    requests = run.columns.requests
    numbers = requests["request"].tolist()
    whose = dict(zip(numbers, map(str, requests["client"]), strict=True)) if "client" in requests else {}
    admitted: dict[str, list[int]] = {}  # by client, sorted by request number
    found: dict[int, str] = {}

    def tell(number: int) -> None:
        later = {client: len(own) - bisect_right(own, number) for client, own in admitted.items()}
        if any(later.values()):
            found[number] = _in_words(later, whose.get(number, ""), why)

    seen = set()
    for number in log.numbers["request"][log.kind == ADMIT].tolist():
        if number not in seen:
            seen.add(number)
            tell(number)
        insort(admitted.setdefault(whose.get(number, ""), []), number)
    for number in numbers:
        if number not in seen:
            tell(number)
    return found


def _in_words(later: dict[str, int], mine: str, why: str) -> str:
    """How often requests were admitted before one from client `mine`, and why."""
    times = sum(later.values())
    said = f"passed over {times:,} time{'s' * (times > 1)}"
    if "CLIENT" in why:
        others = {client: count for client, count in later.items() if count and client != mine}
        if not others:
            return said
        why = why.replace("CLIENT", min(others, key=lambda client: (-others[client], client)))
    return f"{said}, as {why}"
