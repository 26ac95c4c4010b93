"""The decode side of a hand-over in SGLang's manner: room first, then the prompt arrives piece by piece.

    waiting     retracted requests, whose keys and values are on the host; then those without room
    arriving    room for the prompt is reserved, and another server computes and sends it
    landed      all of it is here, or came back from the host: it decodes as soon as there is a seat

Reserved room counts as held, as it does while a prompt is read (reading.py).
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain

from kvsim.allocators.base import Match
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.loading import place_head
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.serving.sglang_parts import WaitingList


class Reservations(WaitingList):
    """Retracted requests in their order, then requests that came and have no room yet."""

    def __init__(self) -> None:
        super().__init__()
        self.retracted: deque[Request] = deque()

    def append(self, request: Request) -> None:
        """Put a request at the end of those of its kind."""
        super().append(request)
        if request.generated:
            self.retracted.append(self._waiting.pop())

    appendleft = append

    def popleft(self) -> Request:
        """Take the head."""
        return self.retracted.popleft() if self.retracted else self._waiting.popleft()

    def remove(self, request: Request) -> None:
        """Remove a request, wherever it is."""
        (self.retracted if request in self.retracted else self._waiting).remove(request)

    def __getitem__(self, index: int) -> Request:
        first = len(self.retracted)
        return self.retracted[index] if index < first else self._waiting[index - first]

    def __len__(self) -> int:
        return len(self.retracted) + len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return chain(self.retracted, self._waiting)


class ReceivingServer(Server):
    """A decode server, whose prompts are computed elsewhere.

    Attributes
    ----------
    arriving : dict of Request
        By name, in the order in which room was reserved.
    landed : deque of Request
        Those that wait for a seat.
    """

    def __init__(self, batch: Batch, rules: Rules, waiting: Reservations) -> None:
        super().__init__(batch, rules, waiting)
        assert isinstance(batch.allocator, SglangCached)
        self._rows = batch.allocator
        self.arriving: dict[int, Request] = {}
        self.landed: deque[Request] = deque()
        self._ends_ps: dict[int, int] = {}  # by name, when the last piece arrives, once it is sent
        self._names = -2  # ids of requests that do not run yet: below all others
        self.wakes.beside = self.wakes.polls = self.wakes.outside = True

    # -- in -----------------------------------------------------------------------------------

    def reserve_head(self, match: Match | None) -> bool:
        """Reserve room for the prompt of the head of the queue; False: there is none."""
        request = self.waiting[0]
        if not self._place(request.prompt_tokens, match):
            return False
        self.arriving[request.own] = request
        if match is not None and match.tokens:
            self.step.of_prompts().hit_tokens += match.tokens
            self.totals.hit_tokens += match.tokens
        if self.events:
            self.events.reserves(request, self.now_ps, self.steps)
        return True

    def arrives(self, request: Request, at_ps: int) -> None:
        """The last piece of a prompt arrives at that time."""
        self._ends_ps[request.own] = at_ps

    def settle(self) -> None:
        """Prompts that have arrived by now land, in the order in which room was reserved."""
        if min(self._ends_ps.values(), default=NEVER_PS) > self.now_ps:
            return
        for name in [name for name in self.arriving if self._ends_ps.get(name, NEVER_PS) <= self.now_ps]:
            request = self.arriving.pop(name)
            self.landed.append(request)
            if self.events:
                self.events.loaded(request, self._ends_ps[name], self.steps, request.prompt_tokens)
            del self._ends_ps[name]

    def next_arrival_ps(self) -> int:
        """When the next prompt arrives whose last piece is sent."""
        return min(self._ends_ps.values(), default=NEVER_PS)

    def enter(self, request: Request) -> None:
        """A request that landed runs: nothing of it is computed."""
        before = request.seq
        del self.batch.loading[before]
        request.seq = self.memory.new_seq()
        self._rows.rename(before, request.seq)
        request.move(State.PREFILL)
        self.running[request.seq] = request
        self.step.changed = True

    def _place(self, tokens: int, match: Match | None) -> bool:
        """Give the head of the queue memory for `tokens` tokens, which others will write."""
        if not place_head(self, self._names, tokens, match):
            return False
        self._names -= 1
        return True

    # -- out to the host, and back ------------------------------------------------------------

    def offload(self, request: Request) -> int:
        """A decoding request is retracted: it leaves for the host with its tokens; returns how many."""
        self.batch.leave(request)
        request.move(State.WAITING)
        request.preemptions += 1
        tokens = request.computed
        if self.events:
            self.events.left("swap_out", request, self.now_ps, self.steps, request)
        self.release(request, comes_back=True)
        request.computed = 0
        self.step.preempt()
        self.totals.swap_outs += 1
        self.totals.swapped_out_blocks += self.allocator.slots_needed(tokens, 0) // self.allocator.block_slots
        return tokens

    def restore_head(self) -> int:
        """Bring the head of the queue back from the host; returns its tokens, 0: there is no room."""
        request = self.waiting[0]
        tokens = request.known_tokens - 1
        if not self._place(tokens, None):
            return 0
        self.landed.append(request)
        self.totals.swapped_in_blocks += self.allocator.slots_needed(tokens, 0) // self.allocator.block_slots
        return tokens
