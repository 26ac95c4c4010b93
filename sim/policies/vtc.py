"""VTC: the client with the least service goes first (Sheng et al., Fairness in serving LLMs, OSDI '24).

    counter of a client   += prompt tokens when one of its requests enters, += 2 per generated token
    next                  the oldest request of the client with the least counter
    comes back            a client without waiting requests is lifted to the least counter of those with some;
                          if none waits, to the counter of the client that left the queue last

The service of two clients that always wait differs by at most 2 max(w_p L, w_q M): prompts of at
most L tokens, batches of at most M (theorem 4.4). Algorithm 2 of the paper, over continuous batching that
admits in every step; the artefact, which departs from it, is the scheduler `vtc-artifact`. A request that was
preempted is not charged twice.
"""

from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import InvariantError
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.policies.answers import Answers
from kvsim.sim.policies.base import Policy
from kvsim.sim.policies.clients import ByClient
from kvsim.sim.policies.options import ServiceOptions
from kvsim.sim.serving.queues import Queue
from kvsim.sim.serving.request import Request

UNIT = 1_000_000
"""Service is counted in whole millionths, so that sums do not depend on their order."""


def weights_of(text: str) -> dict[str, float]:
    """Client -> share, from `A=2,B=1`."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, share = part.rpartition("=")
        try:
            found[name.strip()] = float(share)
        except ValueError:
            found[name.strip()] = 0.0
        if not (name.strip() and 0 < found[name.strip()] <= 1e6):
            raise KvsimError(f"client_weights must be as in A=2,B=1 with shares above 0, got {part!r}")
    return found


@mypyc_attr(allow_interpreted_subclasses=True)
class Vtc(Policy):
    """Virtual token counters."""

    family: ClassVar[str] = "fair to clients"
    idea: ClassVar[str] = "the client with the least weighted service so far goes first"
    why: ClassVar[str] = "client CLIENT was behind"
    needs: ClassVar[str] = "client"
    source: ClassVar[str] = "OSDI '24, algorithm 2; Ying1123/VTC-artifact"
    declares: ClassVar[type] = ServiceOptions

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(ServiceOptions)
        self._prices, self._weights = (own.input_price, own.output_price), weights_of(own.client_weights)
        self._priced: tuple[dict[str, int], dict[str, int]] = {}, {}
        self.counters: dict[str, int] = {}
        self._last = ""  # the client whose last request left the queue last
        self._answers = Answers()  # how much of each was charged
        self._fresh: list[Request] = []  # came since the last decision
        self._active: set[str] = set()  # clients with waiting requests, except those

    def queue(self) -> Queue:
        self._queue = ByClient(self)
        return self._queue

    def key(self, request: Request, now_ps: int) -> int:
        """The counter of its client."""
        return self.counters[request.facts.client]

    # -- whose turn it is ---------------------------------------------------------------------

    def group(self, request: Request) -> str:
        return request.facts.client

    def next_client(self) -> str:
        self._settle()
        waiting, found = self._queue.waiting, None
        for client, counter in self.counters.items():  # in order of first appearance, which breaks ties
            if client in waiting and (found is None or counter < found[0]):
                found = counter, client
        if found is None:
            raise InvariantError(f"no client of {len(self.counters)} waits")
        return found[1]

    def look(self) -> None:
        if self._fresh:
            self._settle()

    def waits(self, request: Request) -> None:
        if (
            request.preemptions and request in self._answers
        ):  # it was preempted: its tokens are not counted again until it runs
            self._charge(request.facts.client, 1, self._answers.rest(request, request.generated))
        self._fresh.append(request)

    def entered(self, request: Request) -> None:
        if self._answers.enter(request):
            self._charge(request.facts.client, 0, request.prompt_tokens)

    def emptied(self, client: str) -> None:
        self._active.discard(client)
        self._last = client

    def finished(self, request: Request) -> None:
        self._charge(request.facts.client, 1, self._answers.end(request, request.output_tokens))

    # -- counting -----------------------------------------------------------------------------

    def price(self, client: str, kind: int) -> int:
        """Price of a client's token: of a prompt (0), of an answer (1)."""
        priced = self._priced[kind]
        found = priced.get(client)
        if found is None:
            found = priced[client] = round(self._prices[kind] * UNIT / self._weights.get(client, 1.0))
        return found

    def _charge(self, client: str, kind: int, tokens: int) -> None:
        self.counters[client] += tokens * self.price(client, kind)

    def _settle(self) -> None:
        """Charge tokens generated since the last call, then lift clients that came meanwhile."""
        counters, priced, active = self.counters, self._priced[1], self._active
        for client, count in self._answers.since(self.server).items():
            price = priced.get(client)
            counters[client] += count * (self.price(client, 1) if price is None else price)
        if self._fresh:
            for request in self._fresh:
                if request.facts.client not in active:
                    self._arrive(request.facts.client, back=request.preemptions > 0)
            self._fresh.clear()

    def _arrive(self, client: str, back: bool) -> None:
        """A client that is not active has a waiting request from now on."""
        counters = self.counters
        if client not in counters:
            counters[client] = 0
        if not back:
            others = [counters[other] for other in self._active]
            least = min(others) if others else counters.get(self._last, 0)
            counters[client] = max(counters[client], least)
        self._active.add(client)

    # -- how long an order holds --------------------------------------------------------------

    def alike_steps(self) -> int:
        """Steps until another waiting client has less service than the one whose turn it is."""
        waiting = self._queue.waiting
        if len(waiting) < 2:
            return 0
        first = self._queue.chosen()
        decoding = self._answers.rates(self.server)
        rates = {client: decoding.get(client, 0) * self.price(client, 1) for client in waiting}
        counters, steps = self.counters, 0
        for client in waiting:
            closing = rates[first] - rates[client]
            if client != first and closing > 0:
                meets = max((counters[client] - counters[first]) // closing, 1)
                steps = min(steps or meets, meets)
        return steps
