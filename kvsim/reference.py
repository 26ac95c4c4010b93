"""The model in 200 lines: the whole simulator, one step at a time, as plain as can be.

    until no request is left   requests that have arrived join the waiting queue
                  schedule     tokens per request; if memory is short, the last running one is preempted
                  price        the duration of the step
                  commit       its tokens become available; requests with a whole answer leave

The engine in kvsim/sim does the same, only fast: it merges many equal steps, updates its sums incrementally,
and has more schedulers and allocators. Tests require the two to be equal in every integer
(tests/sim/test_engine_equals_reference.py). Times are whole picoseconds, memory is slots of one token.

    python -m kvsim.reference      the same requests with four servers
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Self

from kvsim.allocators.base import Allocator, Ledger
from kvsim.allocators.contiguous import Contiguous
from kvsim.sim.cost.step_cost import StepShape


@dataclass(eq=False)
class Request:
    """A request and its state so far."""

    index: int
    arrival_ps: int
    prompt: int
    output: int
    seq: int = -1  # its sequence number in memory, a new one at each admission
    computed: int = 0  # tokens whose keys and values are in memory
    decoding: bool = False  # False: its prompt is being computed
    first_step: int = -1
    preemptions: int = 0
    token_ps: list[int] = field(default_factory=list)  # when each token of the answer came

    @property
    def known(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt + len(self.token_ps)

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        return len(self.token_ps) == self.output


class Continuous:
    """Continuous batching: each step, running requests continue, then waiting requests enter.

    With a `budget` of tokens per step and prompts cut to fit it, this is vLLM V1; without one, Orca.

    Parameters
    ----------
    requests : list of Request
        In order of arrival; they are updated in place.
    memory : Allocator or Pages
        One of kvsim's (contiguous, buddy, dynamic, paged), or the plain one below.
    cost : callable
        The duration of a step in ps, from its shape.
    bound : callable
        Tokens to reserve for a request at admission, for memory that reserves.
    seats : int
        Maximum number of running requests.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        memory: "Allocator | Pages",
        cost: Callable[[StepShape], int],
        *,
        bound: Callable[[Request], int] = lambda request: request.prompt + request.output,
        seats: int = 256,
        budget: int = 1 << 30,
    ) -> None:
        self.requests, self.memory, self.cost, self.bound = requests, memory, cost, bound
        self.seats, self.budget = seats, budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of admission
        self.entered = self.entered_slots = self.preemptions = 0
        self.steps = self.peak = self.max_running = 0
        self.held: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        """Slot picoseconds of each kind (token, reserved, internal, ...): while requests wait, and else."""

    def run(self) -> Self:
        """Serve all requests."""
        now_ps, coming = 0, deque(self.requests)
        while coming or self.waiting or self.running:
            while coming and coming[0].arrival_ps <= now_ps:
                self.waiting.append(coming.popleft())
            if not self.waiting and not self.running:
                self.count(coming[0].arrival_ps - now_ps)
                now_ps = coming[0].arrival_ps
                continue
            copied = self.memory.copied_slots
            work = self.schedule()
            duration_ps = self.cost(self.shape(work, self.memory.copied_slots - copied))
            for request, tokens in work.items():
                request.computed += tokens
            self.count(duration_ps)
            now_ps += duration_ps
            self.steps += bool(work)
            for request in work:
                self.commit(request, now_ps)
        return self

    def schedule(self) -> dict[Request, int]:
        """Plan a step: the tokens that each request computes."""
        work: dict[Request, int] = {}
        budget, preemptions = self.budget, self.preemptions
        for request in list(self.running):
            tokens = min(request.known - request.computed, budget)  # one if decoding
            if request.done or request not in self.running or not tokens:
                continue
            added = self.advance(request, tokens)
            while request in self.running and not self.memory.grow(request.seq, request.computed + added):
                self.preempt([each for each in self.running if not each.done][-1])
            if request in self.running:
                work[request] = added
                budget -= tokens
        if self.preemptions == preemptions:  # after a preemption, no request enters
            self.admit(work, budget)
        self.max_running = max(self.max_running, len(self.running))
        return work

    def advance(self, request: Request, tokens: int) -> int:
        """How many tokens a request advances in a step that computes `tokens` of it."""
        return tokens

    def admit(self, work: dict[Request, int], budget: int) -> None:
        """Admit requests, first come first served, until one does not fit as a whole."""
        while self.waiting and len(self.running) < self.seats and budget:
            request = self.waiting[0]
            tokens, bound = min(request.known, budget), self.bound(request)
            if not self.memory.can_admit(request.known, bound):
                return
            if not self.memory.admit(self.entered, tokens, bound):
                return
            request.seq = self.entered
            self.entered += 1
            self.entered_slots += self.memory.slots_needed(tokens, bound)
            if request.first_step < 0:
                request.first_step = self.steps
            self.running.append(self.waiting.popleft())
            work[request] = tokens
            budget -= tokens

    def preempt(self, request: Request) -> None:
        """Free a request's memory and return it to the head of the queue, to be recomputed."""
        self.memory.release(request.seq)
        self.running.remove(request)
        self.waiting.appendleft(request)
        request.computed, request.decoding = 0, False
        request.preemptions += 1
        self.preemptions += 1

    def shape(self, work: Mapping[Request, int], copied: int) -> StepShape:
        """The shape of the step."""
        prompts = {request: tokens for request, tokens in work.items() if not request.decoding}
        decodes = {request: tokens for request, tokens in work.items() if request.decoding}
        spans = [range(each.computed + 1, each.computed + tokens + 1) for each, tokens in prompts.items()]
        return StepShape(
            prefill_tokens=sum(prompts.values()),
            prefill_pairs=sum(map(sum, spans)),  # each prompt token attends to those before it, and itself
            prefill_seqs=len(prompts),
            decode_seqs=len(decodes),
            context_tokens=sum(request.computed + tokens for request, tokens in decodes.items()),
            copied_tokens=copied,
        )

    def count(self, duration_ps: int) -> None:
        """Account every slot by kind over the step's duration."""
        living = [request for request in self.running if not request.done]
        need = self.entered_slots // self.entered if self.entered else 0  # of a request, on average
        if self.waiting:
            need = self.memory.slots_needed(self.waiting[0].known, self.bound(self.waiting[0]))
        lengths = {request.seq: request.computed for request in living}
        finals = {request.seq: request.prompt + request.output - 1 for request in living}
        ledger = self.memory.ledger(lengths, finals, need)  # the last token is never stored
        self.peak = max(self.peak, ledger.token)
        for kind, slots in ledger._asdict().items():
            self.held[bool(self.waiting)][kind] += slots * duration_ps

    def commit(self, request: Request, now_ps: int) -> None:
        """End of a step: a request with all known tokens computed gets the next token."""
        if request.done or request.computed < request.known:
            return
        request.decoding = True
        request.token_ps += [now_ps] * (request.computed - request.known + 1)
        if request.done:
            self.leave(request)

    def leave(self, request: Request) -> None:
        """The answer is complete: free its memory for the next step."""
        self.memory.release(request.seq)
        self.running.remove(request)


class Static(Continuous):
    """Static batches: no request enters, and all keep their seats, until the longest answer is complete."""

    def schedule(self) -> dict[Request, int]:
        """As in the base class; the seats of finished requests compute padding."""
        padding = {request: 1 for request in self.running if request.done}
        return {**super().schedule(), **padding}

    def admit(self, work: dict[Request, int], budget: int) -> None:
        """As in the base class, but only into an empty server."""
        if not self.running:
            super().admit(work, budget)

    def leave(self, request: Request) -> None:
        """When the last request is done, all leave together."""
        if all(each.done for each in self.running):
            for each in self.running:
                self.memory.release(each.seq)
            self.running.clear()


class Pages:
    """Paged memory: each sequence holds as many blocks of `block_size` tokens as it needs so far."""

    def __init__(self, capacity_slots: int, block_size: int = 16) -> None:
        self.blocks, self.block_size = capacity_slots // block_size, block_size
        self.capacity_slots, self.copied_slots = self.blocks * block_size, 0
        self.table: dict[int, int] = {}  # blocks of each sequence

    def slots_needed(self, tokens: int, bound: int) -> int:
        """Whole blocks; nothing is reserved."""
        return -(-tokens // self.block_size) * self.block_size

    def can_admit(self, tokens: int, bound: int) -> bool:
        """Whether this many tokens fit."""
        return self.slots_needed(tokens, bound) <= self.capacity_slots - self._allocated()

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        """Allocate the blocks of a new sequence; False: no room."""
        return self.grow(seq, tokens)

    def grow(self, seq: int, tokens: int) -> bool:
        """Allocate the further blocks that this many tokens need; False: no room."""
        blocks = -(-tokens // self.block_size)
        if blocks - self.table.get(seq, 0) > self.blocks - sum(self.table.values()):
            return False
        self.table[seq] = blocks
        return True

    def release(self, seq: int) -> None:
        """Free all its blocks."""
        del self.table[seq]

    def ledger(self, lengths: Mapping[int, int], finals: Mapping[int, int], need: int) -> Ledger:
        """Every slot by kind: the tail of a last block is reserved as far as the answer will fill it."""
        tails = {seq: self.table[seq] * self.block_size - length for seq, length in lengths.items()}
        later = sum(min(tail, finals[seq] - lengths[seq]) for seq, tail in tails.items())
        tokens, allocated = sum(lengths.values()), self._allocated()
        return Ledger(tokens, later, allocated - tokens - later, 0, 0, self.capacity_slots - allocated, 0)

    def _allocated(self) -> int:
        return sum(self.table.values()) * self.block_size


def main() -> None:
    """Serve the same 300 requests, eight per second, with four servers that have room for 8,192 tokens."""
    servers: dict[str, Callable[[list[Request]], Continuous]] = {
        "static, contiguous": lambda r: Static(r, Contiguous(8192), price, bound=lambda _: 1024, seats=8),
        "Orca, contiguous": lambda r: Continuous(r, Contiguous(8192), price, bound=lambda _: 1024),
        "Orca, pages": lambda r: Continuous(r, Pages(8192), price),
        "vLLM V1, pages": lambda r: Continuous(r, Pages(8192), price, budget=512),
    }

    def price(shape: StepShape) -> int:
        return 8 * 10**9 + 60 * 10**6 * shape.prefill_tokens + 10**8 * shape.decode_seqs

    for name, server in servers.items():
        rng, now_s, requests = Random(0), 0.0, []
        for index in range(300):
            now_s += rng.expovariate(8)
            requests.append(Request(index, int(now_s * 10**12), rng.randint(1, 512), rng.randint(1, 512)))
        done = server(requests).run()
        wait_s = sum(each.token_ps[0] - each.arrival_ps for each in requests) / len(requests) / 10**12
        slots = done.held[True] + done.held[False]
        share = 100 * slots["token"] / slots.total()
        print(f"{name:18}  first token after {wait_s:6.2f} s, {share:4.1f} % of the memory holds tokens")


if __name__ == "__main__":
    main()
