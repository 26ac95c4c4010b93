"""Steps under a policy: first it may displace running requests; last it says how long the decision holds."""

from mypy_extensions import mypyc_attr

from kvsim.sim.policies.base import Policy
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.steps import Around, Steps


@mypyc_attr(allow_interpreted_subclasses=True)
class ByPolicy(Around):
    """Decides as the scheduler does, in the policy's order."""

    def __init__(self, inner: Steps, policy: Policy, seats: int, budget: int) -> None:
        super().__init__(inner)
        self._policy, self._seats, self._budget = policy, seats, budget

    def decide(self) -> None:
        policy, batch = self._policy, self.server.batch
        departed = list(batch.departed.values()) if batch.departed else ()
        if policy.preempts:
            self.server.step.displaced = policy.decide(self._seats, self._budget)
        elif policy.looks:
            policy.look()
        self.inner.decide()
        policy.decided()
        for request in departed:  # known after this decision
            policy.finished(request)

    def held_back(self) -> str:
        if self._policy.kept_out and (reason := self._policy.held_back()):
            return reason
        return self.inner.held_back()

    def finish(self, request: Request) -> None:
        if not self.server.rules.known_late:
            self._policy.finished(request)
        self.inner.finish(request)
