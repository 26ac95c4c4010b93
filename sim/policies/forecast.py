"""When waiting requests would begin, have their first tokens, and end if served in a given order.

    seats     |A====|C=====|        each takes the first seat that is free; prompts are computed one by one;
              |B=======|D==|        an answer takes its predicted tokens, each as long as a step takes now

For policies that plan ahead, or refuse requests. Memory is not considered.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.policies.predicted import Predicting
from kvsim.sim.serving.request import Request, State


class Foreseen(NamedTuple):
    """The forecast for a request."""

    request: Request
    first_ps: int
    end_ps: int


class Forecast:
    """The state of a server now, to forecast any number of orders."""

    def __init__(self, policy: Predicting) -> None:
        server = policy.server
        living = [r for r in server.running.values() if r.state is not State.FINISHED]
        seqs = max(len(living), 1)
        held = sum(r.prompt_tokens + policy.generated(r) for r in living)
        self.policy = policy
        self.step_ps = policy.cost.step_ps(StepShape(decode_seqs=seqs, context_tokens=max(held, seqs)))
        self.now_ps = server.now_ps
        left = [policy.prefill_ps(r.known_tokens - r.computed) for r in living if r.state is State.PREFILL]
        self.prefilled_ps = self.now_ps + sum(left)
        free = max(policy.config.max_num_seqs - len(living), 0)
        self._seats = [self.now_ps + policy.left(r) * self.step_ps for r in living] + [self.now_ps] * free
        heapify(self._seats)
        self._work: dict[Request, tuple[int, int]] = {}

    def of(self, order: Iterable[Request]) -> Iterator[Foreseen]:
        """Each request of an order, as it would be served."""
        seats, prefilled_ps, work = self._seats.copy(), self.prefilled_ps, self._work
        for request in order:
            if request not in work:
                answer = self.policy.left(request) * self.step_ps
                work[request] = self.policy.prefill_ps(request.known_tokens), answer
            prompt_ps, answer_ps = work[request]
            prefilled_ps = max(prefilled_ps, heappop(seats)) + prompt_ps
            end_ps = prefilled_ps + answer_ps
            heappush(seats, end_ps)
            yield Foreseen(request, prefilled_ps, end_ps)
