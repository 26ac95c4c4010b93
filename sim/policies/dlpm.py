"""DLPM: the longest cached prefix first, within a deficit that each client may run up.

    deficit of a client   -= tokens that its requests compute: uncached tokens of prompts, and answers
    next                  the longest cached prefix among requests of clients with a deficit above 0
    none is above 0       every waiting client gets --deficit-quantum more, until one is above 0

So locality is kept as far as fairness allows: the smaller the quantum, the fairer. With one client it is LPM.

Source: Cao et al., Locality-aware fair scheduling in LLM serving (arXiv 2501.14312), algorithm 1.
"""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.answers import Answers
from kvsim.sim.policies.base import Policy
from kvsim.sim.policies.options import DeficitOptions
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.queues import Queue
from kvsim.sim.serving.request import Request

Entry = tuple[int, int, Request]
"""(row, sample, request)"""
Head = tuple[bool, int, Entry, int, str]
"""(whether its client has used up its deficit, minus the tokens cached, entry, text, client)"""


class ByPrefix(dict[Request, None]):
    """Waiting requests by client and text: of equal texts one is looked up per step.

    A `dict` of them for the sake of the server, which asks for its length all the time.

    Attributes
    ----------
    clients : dict
        Client -> number of a text -> the requests that have it, by arrival.
    """

    def __init__(self, policy: "Dlpm") -> None:
        super().__init__()
        self._policy = policy
        self.clients: dict[str, dict[int, list[Entry]]] = {}
        self._texts: dict[Hashable, int] = {}  # numbers of texts; 0: no text, so nothing is cached
        self._cached: dict[int, int] = {0: 0}  # by number, for this step's texts
        self._step: Decision | None = None  # the step for which that holds
        self._best: Head | None = None  # until something happens in that step

    def _text(self, request: Request) -> int:
        """The number of its text; a preempted request may also find private blocks."""
        if request.preemptions or self._policy.server.memory.below.find is not None:
            text: Hashable = request
        elif request.content:
            text = request.content, min(request.prompt_tokens - 1, sum(part[2] for part in request.content))
        else:
            return 0
        return self._texts.setdefault(text, len(self._texts) + 1)

    def append(self, request: Request) -> None:
        """Add a request."""
        self._policy.waits(request)
        self._best = None
        texts = self.clients.setdefault(request.facts.client, {})
        heappush(texts.setdefault(self._text(request), []), (request.index, request.sample, request))
        self[request] = None

    def appendleft(self, request: Request) -> None:
        """Add a request that comes back."""
        self.append(request)

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        _, _, (_, _, request), text, client = self._head()
        heappop(self.clients[client][text])
        self._took(client, text, request)
        self._policy.admitted(request, self._cached[text])
        return request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        client, text = request.facts.client, self._text(request)
        heap = self.clients[client][text]
        heap[:] = [entry for entry in heap if entry[-1] is not request]
        heapify(heap)
        self._took(client, text, request)

    def _took(self, client: str, text: int, request: Request) -> None:
        del self[request]
        self._best = None
        if not self.clients[client][text]:
            del self.clients[client][text]
        if not self.clients[client]:
            del self.clients[client]

    def _look_up(self) -> None:
        """Look up texts once per step, and those that came since."""
        step, cached = self._policy.server.step, self._cached
        if self._step is not step:
            self._step = step
            cached.clear()
            cached[0] = 0
            self._policy.settle()
        for texts in self.clients.values():
            for text, heap in texts.items():
                if text not in cached:
                    cached[text] = self._policy.cached(heap[0][-1])

    def _head(self) -> Head:
        if self._best is not None and self._step is self._policy.server.step:
            return self._best
        self._look_up()
        deficits, cached = self._policy.deficits, self._cached
        self._best = min(
            [
                (deficits[client] <= 0, -cached[text], heap[0], text, client)
                for client, texts in self.clients.items()
                for text, heap in texts.items()
            ]
        )
        return self._best

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        return self._head()[2][-1]

    def __iter__(self) -> Iterator[Request]:
        self._look_up()
        deficits, cached = self._policy.deficits, self._cached
        return (
            entry[-1][-1]
            for entry in sorted(
                (deficits[client] <= 0, -cached[text], entry)
                for client, texts in self.clients.items()
                for text, heap in texts.items()
                for entry in heap
            )
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class Dlpm(Policy):
    """Deficit longest prefix match."""

    family: ClassVar[str] = "fair to clients"
    idea: ClassVar[str] = "the longest cached prefix first, within a deficit of each client"
    why: ClassVar[str] = "more of their prompts was cached, or client CLIENT was behind"
    needs: ClassVar[str] = "client, prefixes"
    source: ClassVar[str] = "arXiv 2501.14312, algorithm 1"
    declares: ClassVar[type] = DeficitOptions
    moves: ClassVar[bool] = True

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._quantum = self.own(DeficitOptions).deficit_quantum
        self.deficits: dict[str, int] = {}
        self._answers = Answers()  # how much of each was charged
        self._waiting = ByPrefix(self)

    def queue(self) -> Queue:
        return self._waiting

    def key(self, request: Request, now_ps: int) -> tuple[bool, int]:
        return self.deficits[request.facts.client] <= 0, -self.cached(request)

    def timeless(self) -> bool:
        """Keys are asked for only when a seat is free; who comes meanwhile changes none of them."""
        return True

    def cached(self, request: Request) -> int:
        """Tokens of its prompt that need not be computed."""
        return self.server.cached_tokens(request) if self.server.allocator.caches else 0

    def waits(self, request: Request) -> None:
        """A client starts with one quantum."""
        self.deficits.setdefault(request.facts.client, self._quantum)
        if request in self._answers:  # it was preempted
            self.deficits[request.facts.client] -= self._answers.rest(request, request.generated)

    def settle(self) -> None:
        """Charge generated tokens, and refill if no client has anything left."""
        for client, tokens in self._answers.since(self.server).items():
            self.deficits[client] -= tokens
        self._refill()

    def _refill(self) -> None:
        deficits, clients = self.deficits, self._waiting.clients
        most = max([deficits[client] for client in clients], default=1)
        if most <= 0:
            more = (-most // self._quantum + 1) * self._quantum
            for client in clients:
                deficits[client] += more

    def admitted(self, request: Request, cached: int) -> None:
        """The request runs from now on, with this many tokens of its prompt cached."""
        if self._answers.enter(request):
            self.deficits[request.facts.client] -= request.prompt_tokens - cached
        self._refill()

    def finished(self, request: Request) -> None:
        self.deficits[request.facts.client] -= self._answers.end(request, request.output_tokens)
