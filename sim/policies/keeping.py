"""A request that gives up its seat keeps its memory: it is set aside with all it holds until it gets a seat.

    seats are short     running requests with the largest keys are set aside, one for each that waits with a
                        smaller key; nothing is recomputed
    memory is short     the last request in the queue that was set aside is preempted; then running ones;
                        none of them enters again in the same step

All of a step are exchanged at once, as far as it has tokens for their prompts; a prompt counts whole, cached
or not, and is computed to its end. Memory is kept if blocks are allocated one by one; if the place of a
sequence matters, or the allocator works between steps, a displaced request is preempted, as by other
policies; a note of the run says so.
"""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import Policy
from kvsim.sim.policies.levels import Levels
from kvsim.sim.record.events import NO_ROOM, TOKEN_BUDGET
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server

Keyed = tuple[Any, Request]
"""(key, request)"""


@mypyc_attr(allow_interpreted_subclasses=True)
class Keeping(Policy):
    """Displaced requests keep what they hold, while there is enough memory."""

    preempts: ClassVar[bool] = True
    displaced: ClassVar[str] = "keep their memory while there is enough, if it is in blocks"

    levels: Levels
    """Its queue."""

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self.keeps = True

    def begin(self, server: Server) -> None:
        super().begin(server)
        against = _against(server)
        if self.keeps and against:
            self.keeps = False
            self.note = f"Policy {self.config.policy}: displaced requests are recomputed, as {against}."

    def _may_give_way(self, request: Request) -> bool:
        return request.state is State.DECODE

    def _last_kept(self) -> Request:
        """Of the requests set aside, the one that would be served last."""
        key, now_ps = self.key, self.server.now_ps
        aside = self.server.batch.aside.values()
        return max(aside, key=lambda request: (key(request, now_ps), request.index, request.sample))

    def queue(self) -> Levels:
        return self.levels

    def place(self) -> None:
        self.levels.place()

    # -- victims ------------------------------------------------------------------------------

    def victim(self) -> Request:
        self.place()
        return self._last_kept() if self.server.batch.aside else super().victim()

    def _needed(self, head: Request) -> int:
        if head.state is not State.ASIDE:
            return super()._needed(head)
        allocator, bound = self.server.allocator, self.server.rules.bound(head)
        return allocator.slots_needed(head.computed + 1, bound) - self._slots(head)

    # -- who enters, and who gives way --------------------------------------------------------

    def look(self) -> None:
        self.kept_out = ""

    def held_back(self) -> str:
        now_ps = self.server.now_ps
        rival = next(self.behind(self.key(self.server.waiting[0], now_ps), now_ps), None)
        return "" if rival is None else self.kept_out

    @abstractmethod
    def behind(self, least: int, now_ps: int) -> Iterator[Keyed]:
        """Running requests that may give way, with their keys above `least`, the first to go first."""

    def _displace(self, seats: int, budget: int) -> int:
        """Let running requests give way to all that may displace them; returns how many were preempted."""
        server, waiting = self.server, self.levels
        waiting.place()
        seats -= len(server.running) + len(server.batch.moving)
        rivals = self.behind(waiting.least(), server.now_ps)
        rival = next(rivals, None)
        if rival is None and seats < 1:
            return 0
        exchange = Exchange(self, rival, rivals, seats, budget)
        exchange.find(waiting.in_order())
        self.kept_out = exchange.kept_out
        if not exchange.entering:
            nobody = not server.running and self.kept_out == NO_ROOM
            return self._empty(waiting[0]) if nobody else 0
        if not exchange.leaving and exchange.needed <= server.allocator.free_slots:
            self._fitted = exchange.entering[0]
            return 0
        before = server.step.preemptions
        self._carry_out(exchange)
        return server.step.preemptions - before

    def _carry_out(self, exchange: "Exchange") -> None:
        """Set aside those that leave; preempt the last of the queue, then running ones, for memory."""
        server, needed = self.server, exchange.needed
        leave = server.set_aside if self.keeps else server.preempt
        for request, head in exchange.leaving:
            if server.events is not None:
                self._put_first(head)
            leave(request)
        if exchange.leaving:
            needed += self._growing()
        if needed <= server.allocator.free_slots:
            return
        self._put_first(head := exchange.entering[0])
        self.place()
        lost: list[Request] = []
        server.step.lost = lost
        while needed > server.allocator.free_slots:
            last = self._last_kept() if server.batch.aside else head
            if last not in exchange.entering:
                server.preempt(last, by=head)
            elif exchange.lost:
                server.preempt(last := exchange.lost.pop(0))
            else:
                break
            lost.append(last)

    def _growing(self) -> int:
        """Slots that decoding requests take in this step, as far as it is known."""
        server, growth = self.server, self.server.batch.growth
        due = growth.residues[server.progress.clock % growth.unit] if growth.unit else ()
        return len(due) * server.allocator.growth_slots

    def _empty(self, head: Request) -> int:
        """None runs, and the head does not fit beside the requests set aside: preempt all of them."""
        lost = self.server.step.lost = list(self.server.batch.aside.values())
        for request in lost:
            self.server.preempt(request, by=head)
        return len(lost)

    # -- what an exchange asks ----------------------------------------------------------------

    def slots_kept(self) -> int:
        """Slots that the requests set aside hold."""
        return sum([self._slots(request) for request in self.server.batch.aside.values()])

    def slots_of(self, request: Request) -> int:
        """Slots that a request holds, running or set aside."""
        return 0 if request.state is State.WAITING else self._slots(request)

    def slots_for(self, request: Request) -> int:
        """Slots that a waiting request takes when it enters."""
        return self._needed(request)

    def tokens_left(self, budget: int) -> tuple[int, bool]:
        """Tokens that the step has beside decodes and prompts under way; whether there are such prompts."""
        server, size = self.server, self.server.progress.size
        left = budget - size
        if len(server.running) - len(server.batch.departed) <= size:
            return left, False
        prompts = [r.known_tokens - r.computed for r in server.running.values() if r.state is State.PREFILL]
        return left - sum(prompts), len(prompts) > 0


class Exchange:
    """Who enters in a step and who gives way, found before anybody moves.

        waiting, in order    a  b  c        a takes a free seat, b takes that of z; c is in the queue of y
        running, last first  z  y

    Parameters
    ----------
    rival, rivals : (key, Request) or None, iterator of these
        Running requests that may give way to the head of the queue, the first to go first.
    seats, budget : int
        Free seats, and tokens of a step.

    Attributes
    ----------
    entering : list of Request
        Those that enter, in order.
    leaving : list of (Request, Request)
        Those that give up their seats, and to whom.
    lost : list of Request
        Running requests that are preempted if the head needs their memory, too.
    needed : int
        Slots that those who enter take.
    kept_out : str
        Why the next in the queue does not enter; "": it may not displace a request.
    """

    def __init__(
        self, policy: Keeping, rival: Keyed | None, rivals: Iterator[Keyed], seats: int, budget: int
    ) -> None:
        self._policy, self._rival, self._rivals, self._seats = policy, rival, rivals, seats
        self._free, self._unit = policy.server.allocator.free_slots, policy.server.allocator.growth_slots
        self._tokens, self._prompts = policy.tokens_left(budget)
        self._ended = TOKEN_BUDGET if self._prompts and self._tokens < 1 else ""  # nobody else enters: why
        self.entering: list[Request] = []
        self.leaving: list[tuple[Request, Request]] = []
        self.lost: list[Request] = []
        self.needed = 0
        self.kept_out = ""

    def find(self, queue: Iterator[Keyed]) -> None:
        """Go through the queue until the next in it cannot enter."""
        for key, head in queue:
            rival, seated = self._rival, self._seats > 0
            if not seated and (rival is None or not key < rival[0]):
                return
            tokens, needed = self._tokens - seated, self.needed + self._unit  # at most
            if tokens >= 0 and needed <= self._free and head.state is State.ASIDE and not self._ended:
                self._tokens, self.needed = tokens, needed
            elif self._ended or not self._has_tokens(head, not seated):
                self.kept_out = self._ended or TOKEN_BUDGET
                return
            elif not self._has_room(head, None if seated else rival):
                self.kept_out = NO_ROOM
                return
            self.entering.append(head)
            if seated:
                self._seats -= 1
            elif rival is not None:
                self.leaving.append((rival[1], head))
                self._rival = next(self._rivals, None)
                if self._rival is None:
                    return

    def _has_tokens(self, head: Request, leaves: bool) -> bool:
        """Whether the step has tokens for it, with that of a request that `leaves`; if so, they are spent.

        A prompt counts whole, cached or not; one that is cut is the last.
        """
        tokens = self._tokens + leaves
        if head.state is State.ASIDE:
            self._tokens = tokens - 1
            return tokens > 0
        if not self._policy.config.enable_chunked_prefill and head.known_tokens > tokens:
            return False
        if (self._tokens if self._prompts else tokens) < 1:
            return False
        self._tokens, self._prompts = tokens - head.known_tokens, True
        self._ended = TOKEN_BUDGET if self._tokens < 0 else ""
        return True

    def _has_room(self, head: Request, rival: Keyed | None) -> bool:
        """Whether there is memory for it, with what others keep that wait and do not enter, and its rival."""
        policy, slots_of = self._policy, self._policy.slots_of
        needed = self.needed + policy.slots_for(head)
        missing = needed - self._free
        if missing > 0:
            missing -= policy.slots_kept() + sum([slots_of(request) for request, _ in self.leaving])
            missing += sum([slots_of(request) for request in self.entering]) + slots_of(head)
            if rival is not None:
                missing -= slots_of(rival[1])
            if missing > 0 and (self.entering or not self._lose(missing, rival)):
                return False
        self.needed = needed
        return True

    def _lose(self, missing: int, rival: Keyed | None) -> bool:
        """Whether further running requests have the slots that the head misses; if so, they lose them."""
        first = (self._rival,) if rival is None and self._rival is not None else ()
        for _, request in chain(first, self._rivals):
            self.lost.append(request)
            missing -= self._policy.slots_of(request)
            if missing <= 0:
                self._ended = NO_ROOM
                return True
        return False


def _against(server: Server) -> str:
    """Why requests without a seat cannot keep their memory on this server; "": they can."""
    allocator, abilities = server.allocator, server.memory.abilities
    if abilities.after_steps is not None or abilities.in_spans is not None:
        return "the allocator works between steps"
    if abilities.in_groups is not None and not allocator.growth_unit:
        return "several kinds of layers share the blocks"
    in_blocks = allocator.growth_unit > 0 and not (allocator.reserves or abilities.external_slots)
    return "" if in_blocks and allocator.most_sequences is None else "memory is not kept in blocks"
