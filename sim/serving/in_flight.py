"""Running requests when blocks of a step in flight may not be reused yet.

With a connector and asynchronous scheduling, vLLM frees a block only when the last step that uses it has been
processed. So a request that was scheduled in the previous step cannot be preempted: the request that needs a
block gets no token in this step, nor do those after it; one step later the last one may be preempted.
"""

from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server

UNLIMITED = 1 << 40


class InFlight:
    """Schedules running requests in the order of admission, up to the first that finds no room.

    Parameters
    ----------
    fenced : bool
        Whether that restriction holds; else any request may be preempted, as usual.

    Attributes
    ----------
    longest : int
        Most tokens of one prompt in this step.
    resting : set of int
        Running sequences that were not scheduled in the last step.
    rested : set of int
        `resting` of the step before it: all of their tokens are known.
    """

    def __init__(self, server: Server, fenced: bool = True) -> None:
        self.server, self.batch, self.fenced = server, server.batch, fenced
        self.longest = UNLIMITED
        self.resting: set[int] = set()
        self.rested: set[int] = set()
        self._decodes: set[int] = set()  # those that decode as soon as they are scheduled again
        self._plain = True  # is at most the last one not decoding?

    def continue_in_order(self, most: int) -> int:
        """One token per decoding sequence, one piece per other; returns the rest of the budget."""
        server, batch, self.rested = self.server, self.batch, self.resting
        if self._plain and not self.resting and self.longest >= most:
            unpromised = batch.grow_promised(server.step)
            if unpromised is None:
                return self._continue_last(most - server.decoding)
            due = set(unpromised[0])
        else:
            due = set(batch.due_one_by_one(server.step))
        return self._one_by_one(most, due)

    def _continue_last(self, budget: int) -> int:
        server = self.server
        if not server.prefill_held:
            return budget
        for request in reversed(server.running.values()):
            if request.state != State.FINISHED:
                break
        else:
            return budget
        if request.state != State.PREFILL:
            return budget
        tokens, most = request.known_tokens - request.computed, min(self.longest, budget)
        if tokens > most:
            tokens = most
        if tokens < 1:
            return budget
        if not self._prefill(request, tokens):
            self.resting = {request.seq}
            return budget
        return budget - tokens

    def _prefill(self, request: Request, tokens: int) -> bool:
        server = self.server
        if not self._make_room(request, request.computed + tokens, request.computed):
            return False
        server.compute(request, tokens)
        return True

    def _one_by_one(self, budget: int, due: set[int]) -> int:
        server = self.server
        server.step.changed = True
        resting: set[int] = set()
        self._grown: list[int] = []
        stopped = False
        for seq, request in list(server.running.items()):
            if seq not in server.running or request.state == State.FINISHED:
                continue
            tokens = 0 if stopped else self._schedule(request, budget, seq in due)
            budget -= tokens
            if not tokens:
                stopped = True
                if seq in server.running:
                    self._rest(request)
                    resting.add(seq)
        self.resting = resting
        self.batch.grew(self._grown)
        prefilling = [seq for seq, request in server.running.items() if request.state == State.PREFILL]
        self._plain = not prefilling or prefilling == [next(reversed(server.running))]
        return budget

    def _schedule(self, request: Request, budget: int, due: bool) -> int:
        """Tokens of a sequence in this step; 0: no room, or no budget."""
        server, allocator, seq = self.server, self.server.allocator, request.seq
        if request.state == State.PREFILL and seq not in self._decodes:
            chunk = min(request.known_tokens - request.computed, self.longest, budget)
            return chunk if chunk and self._prefill(request, chunk) else 0
        if not budget:
            return 0
        rested = seq in self._decodes
        if rested:
            self._decodes.discard(seq)
            server.start_decode(request)
        tokens = server.progress.tokens(request)
        if rested and allocator.capacity(seq) < tokens:
            self.batch.forget_growth(request)
            if not self._make_room(request, tokens):
                return 0
            self.batch.plan_growth(request)
        elif due:
            if not self._make_room(request, tokens):
                return 0
            self._grown.append(seq)
        return 1

    def _rest(self, request: Request) -> None:
        """A sequence gets no token in this step."""
        if request.state != State.DECODE:
            return
        self.batch.leave(request)
        request.move(State.PREFILL)
        self.server.memory.prefill_held += request.computed
        self._decodes.add(request.seq)

    def _make_room(self, request: Request, tokens: int, computed: int | None = None) -> bool:
        """Grow a sequence, preempting the last ones if they were not in the last step; False: no room."""
        server, allocator = self.server, self.server.allocator
        while not (
            allocator.grow(request.seq, tokens)
            if computed is None
            else allocator.grow_chunk(request.seq, computed, tokens)
        ):
            victim = next(reversed(server.running.values()))
            if self.fenced and victim.seq not in self.resting:
                return False
            server.preempt(victim, by=request)
            if victim is request:
                return False
        return True
