"""VTC's artefact: S-LoRA's loop with virtual token counters, including its deviations from the paper.

    nothing runs, or 10 steps have decoded   select: of the client with the lowest counter, the oldest request
    a request was selected                   a step computes only these prompts; running requests wait
    else                                     a step decodes

A request is selected if the peak memory that all requests will ever need fits, assuming the longest answers
requested (future_peak.py); the first that does not fit ends the selection. Differences from the paper
(`--policy vtc`): waiting requests are considered every ten decode steps; the first token costs nothing; when
a request finishes, the whole batch is charged twice; a client that returns to an idle system keeps its
counter. With `--vtc-lengths` an answer is charged as predicted when its request is selected, and corrected
later. Source: Ying1123/VTC-artifact, 192c2e21, slora/server/router: vtc_req_queue.py,
vtc_oracle_req_queue.py, vtc_pred_len_req_queue.py, manager.py. There, a block is a token; with larger blocks,
a request that finds none is recomputed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from kvsim.allocators.base import Allocator
from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.vtc import weights_of
from kvsim.sim.record.events import FUTURE_PEAK
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


@dataclass(frozen=True, kw_only=True)
class ArtifactOptions:
    """Options of S-LoRA's router."""

    vtc_input_price: float = option(
        "What a prompt token is charged.",
        default=1.0,
        value="X",
        least=0,
    )
    vtc_output_price: float = option(
        "What a generated token is charged.",
        default=2.0,
        value="X",
        least=0,
    )
    vtc_weights: str = option(
        "Shares of clients, as in A=2,B=1; others have 1.",
        default="",
        value="TEXT",
        shown="1 each",
    )
    vtc_wait: int = option(
        "Decode steps between two looks at the queue.",
        default=10,
        value="N",
        least=1,
    )
    vtc_cost: str = option(
        "What tokens cost: by their prices, or as fitted to an A10G.",
        default="linear",
        allowed=("linear", "profile"),
        doc="what tokens cost a client: by their prices (`linear`), or as fitted to times (`profile`)",
    )
    vtc_lengths: str = option(
        "Answers charged beforehand: none, oracle, predict.",
        default="none",
        allowed=("none", "oracle", "predict"),
        doc="answers charged when a request is selected: `none`, the true length with an error (`oracle`), "
        "or by the client's earlier answers (`predict`)",
    )
    vtc_range: float = option(
        "Error of the oracle, as a share of the longest answer.", default=0.0, value="X", least=0, below=1
    )
    adapter_rank: int = option(
        "Rank of a LoRA adapter for each client, which takes memory.",
        default=0,
        value="N",
        least=0,
        doc="rank of each client's LoRA adapter: takes 4 times as many tokens of memory",
    )


class ClientQueues:
    """Each client's requests in order of arrival; clients in order of first appearance.

    Attributes
    ----------
    lists : dict of list
        Client -> waiting requests; empty lists stay.
    fresh : list of Request
        Arrivals since the last step.
    chosen : Request or None
        The head.
    """

    def __init__(self) -> None:
        self.lists: dict[str, list[Request]] = {}
        self.fresh: list[Request] = []
        self.chosen: Request | None = None

    def append(self, request: Request) -> None:
        """Add a request."""
        self.fresh.append(request)

    appendleft = append

    def popleft(self) -> Request:
        """Take the head."""
        request = self[0]
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Remove a request, wherever it is."""
        (self.fresh if request in self.fresh else self.lists[request.facts.client]).remove(request)
        self.chosen = None

    def __getitem__(self, index: int) -> Request:
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        return self.chosen or next(iter(self))

    def __len__(self) -> int:
        return sum(map(len, self.lists.values())) + len(self.fresh)

    def __iter__(self) -> Iterator[Request]:
        return iter([*(request for queue in self.lists.values() for request in queue), *self.fresh])


def profile(prompt: int, answer: float) -> float:
    """The cost of a request with these lengths, as fitted by the artefact."""
    squares = 0.00324733 * answer * answer
    return 0.21001891 * prompt + 0.10075395 * answer + 0.0039868 * prompt * answer + squares + 1.14601454


class VtcArtifact(Scheduler):
    """S-LoRA's loop with virtual token counters."""

    family: ClassVar[str] = "by turns"
    idea: ClassVar[str] = "every ten decodes, of the client with the least service, the oldest"
    policies: ClassVar[tuple[str, ...]] = ("fcfs",)
    declares: ClassVar[type] = ArtifactOptions
    hides_host = False

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self._own = self.own(ArtifactOptions)
        self._weights = weights_of(self._own.vtc_weights)
        self._random = Random(0)
        self.counters: dict[str, float] = {}
        self.said: dict[str, float] = {}  # expected length of answers, by client
        self._predicted: dict[Request, float] = {}
        self._batch: list[Request] = []  # running requests, in order of admission
        self._clock = 0  # decode step up to which steps are charged
        self._waited_from = 0  # time of the last prefill
        self._prefilled: list[Request] = []  # requests whose prompts the step computes
        self._twice = -1  # the last step in which a request finished
        self._aborted: set[Request] = set()

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server with one queue per client."""
        server = super().new_server(allocator, bound)
        server.waiting = self._queue = ClientQueues()
        self._server = server
        return server

    @property
    def reads_facts(self) -> bool:
        """Clients."""
        return True

    # -- a step -------------------------------------------------------------------------------

    def abort(self, request: Request) -> None:
        """Its client gives up: a running request ends with its next token, a waiting one in its turn."""
        self._aborted.add(request)

    def schedule(self, server: Server) -> None:
        """Prefill the selected requests, else decode."""
        self._settle()
        self._arrive()
        self._prefilled = []
        due = self._waited_from + self._own.vtc_wait - server.progress.clock
        if server.waiting and (not self._batch or due <= 0):
            chosen = self._select(server)
            if chosen:
                server.pause()
                self._waited_from, self._prefilled = server.progress.clock, chosen
                self._batch += chosen
                return
        for request in self._batch if self._aborted else ():
            if request in self._aborted and request.output_tokens > self._done(request) + 1:
                server.batch.cut(request, self._done(request) + 1)
        server.grow_due()
        if server.waiting:
            server.hold_for(max(due, 1))

    def _select(self, server: Server) -> list[Request]:
        """Admit requests that fit, by the counters; returns them."""
        counters, tokens = dict(self.counters), 0
        chosen: list[Request] = []
        seats, budget = self.config.max_num_seqs, self.config.max_num_batched_tokens
        if len(self._batch) >= seats:
            return []
        while counters:
            client = min(counters, key=counters.__getitem__)
            waiting = self._queue.lists[client]
            while waiting and waiting[0] in self._aborted:
                server.step.reject(waiting.pop(0).index, "aborted by its client", 0)
            if not waiting:
                del counters[client]
                continue
            head = self._queue.chosen = waiting[0]
            tokens += head.known_tokens
            who = [*self._batch, *chosen, head]
            if not (self._peak_fits(server, who) and len(who) <= seats and tokens <= budget):
                return chosen
            if not server.admit_head(head.known_tokens):
                return chosen
            chosen.append(head)
            cost = self._prompt_cost(head) / self._weights.get(client, 1.0)
            if self._own.vtc_lengths != "none":
                said = self._predicted[head] = self.predicted(head)
                cost += self._answer_cost(head, said) / self._weights.get(client, 1.0)
            self.counters[client] += cost
            counters[client] = self.counters[client]
        return chosen

    def _peak_fits(self, server: Server, who: list[Request]) -> bool:
        """Whether the peak memory of these requests fits beside the clients' adapters."""
        pairs = []
        for request in who:
            done, most = self._generated(request), self._most(request)
            pairs.append((most - max(done, 0) - 1, request.prompt_tokens + max(done, 1)))
        held = peak = 0
        for count, (left, now) in enumerate(sorted(pairs, key=lambda pair: -pair[0]), 1):
            held += now
            peak = max(peak, left * count + held)
        adapters = 4 * self._own.adapter_rank * len({request.facts.client for request in who})
        return peak < server.allocator.capacity_slots - adapters

    def _most(self, request: Request) -> int:
        """The longest answer that its client requested."""
        return max(request.facts.max_tokens or 0, request.output_tokens)

    def _generated(self, request: Request) -> int:
        return self._server.progress.generated(request) if request.is_decoding else request.generated

    def predicted(self, request: Request) -> float:
        """The length of its answer, as predicted when it was selected."""
        if self._own.vtc_lengths == "predict":
            return self.said.get(request.facts.client, 0.0)
        error = self._own.vtc_range
        return self._most(request) * self._random.uniform(1 - error, 1 + error)

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """As in the base; also refuses requests that might exceed the memory alone."""
        if request.prompt_tokens > self.config.max_num_batched_tokens:
            return f"prompt is longer than a step of {self.config.max_num_batched_tokens:,} tokens"
        if not self._peak_fits(server, [request]):
            return f"may need more than the {server.allocator.capacity_slots:,} slots there are"
        return super().refusal(server, request, sequences)

    def held_back(self, server: Server) -> str:
        """The peak would exceed the memory, or it is not yet time to consider waiting requests."""
        return "seats" if len(self._batch) >= self.config.max_num_seqs else FUTURE_PEAK

    # -- counting -----------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Process arrivals since the last step; raise the counters of clients that had none waiting."""
        lists = self._queue.lists
        for request in self._queue.fresh:
            client = request.facts.client
            queue = lists.setdefault(client, [])
            self.counters.setdefault(client, 0.0)
            if not queue:
                others = [self.counters[other] for other in lists if other != client and lists[other]]
                if others:
                    self.counters[client] = max(self.counters[client], min(others))
            queue.append(request)
        self._queue.fresh.clear()

    def _prompt_cost(self, request: Request) -> float:
        if self._own.vtc_cost == "profile":
            return profile(request.prompt_tokens, 0)
        return request.prompt_tokens * self._own.vtc_input_price

    def _answer_cost(self, request: Request, tokens: float) -> float:
        if self._own.vtc_cost == "profile":
            return profile(request.prompt_tokens, tokens) - profile(request.prompt_tokens, 0)
        return tokens * self._own.vtc_output_price

    def _charge(self, request: Request, done: int) -> None:
        """Charge a token to the client of a request that has `done` tokens."""
        if request in self._predicted and not done > self._predicted[request]:
            return
        price = self._answer_cost(request, done) - self._answer_cost(request, done - 1)
        client = request.facts.client
        self.counters[client] += price / self._weights.get(client, 1.0)

    def _settle(self) -> None:
        """Charge the decode steps since the last time, each before it decodes."""
        self._batch = [request for request in self._batch if request.state is not State.WAITING]
        clock = self._server.progress.clock
        steps, self._clock = clock - self._clock, clock
        for before in range(steps, 0, -1):
            for request in self._batch:
                self._charge(request, self._done(request) - before)

    def _done(self, request: Request) -> int:
        """Number of tokens of its answer, correct also during the end of a step."""
        return request.output_tokens if request.state is State.FINISHED else self._generated(request)

    def finish(self, server: Server, request: Request) -> None:
        """It leaves; the first request to finish in a step has the whole batch charged a second time."""
        if self._twice != server.steps:
            self._twice = server.steps
            self._settle()
            for other in self._prefilled or self._batch:
                self._charge(other, max(self._done(other), 1))  # a token each, also of prompts just computed
        self._leave(request)
        super().finish(server, request)

    def _leave(self, request: Request) -> None:
        self._batch.remove(request)
        client, done = request.facts.client, request.output_tokens
        said = self._predicted.pop(request, None)
        if said is not None and said > done:
            back = self._answer_cost(request, said) - self._answer_cost(request, done)
            self.counters[client] -= back / self._weights.get(client, 1.0)
        if self._own.vtc_lengths == "predict":
            before = self.said.get(client)
            self.said[client] = float(done) if before is None else (4 * before + done) / 5
