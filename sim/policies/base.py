"""What a policy must do: give each waiting request a key. The smallest is served next.

class Mine(Policy):
    def key(self, request, now_ps):
        return request.prompt_tokens

Of equal keys the request that came first goes first. A key is computed once, when a request comes or comes
back, and stays, unless the class says when it changes: at instants (`turns_ps`), or always (`moves`). With
`preempts` a waiting request displaces running ones with larger keys. `--policy NAME`, or
`package.module:Class`; `sim check-scheduler vllm-v1 --policy NAME` tries it.
"""

from abc import abstractmethod
from collections.abc import Iterable
from itertools import chain
from typing import Any, ClassVar, TypeVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.option import NoOptions
from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.option import taken
from kvsim.sim.policies.queue import Moving, Sorted, Turning
from kvsim.sim.record.events import Displacer
from kvsim.sim.serving.queues import Queue
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server

T = TypeVar("T")
NEVER_PS = 1 << 62
"""Later than any clock goes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """An order of the waiting requests, and perhaps of the running ones.

    Parameters
    ----------
    config : EngineConfig
        The engine's settings; its `options` are those of all parts.
    max_model_len : int
        Length of the longest sequence in tokens.

    Attributes
    ----------
    server : Server
        The server whose queue it orders.
    cost : CostModel
        The cost of its steps.
    note : str
        What a reader of the run should know of it; "": nothing.
    kept_out : str
        Why not all that may displace a request do in this step; "": all do.
    """

    family: ClassVar[str] = "yours"
    idea: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    """What it reads of a request besides its lengths."""
    source: ClassVar[str] = ""
    why: ClassVar[str] = "their keys were smaller"
    """Why others go first, as `sim explain` says of a request passed over; CLIENT stands for their client."""
    displaces_as: ClassVar[str] = "its key was smaller"
    """Why a waiting request displaces a running one, as `sim explain` says of the latter."""
    declares: ClassVar[type] = NoOptions
    """The policy's options: a frozen dataclass of `option` fields (allocators/option.py)."""
    preempts: ClassVar[bool] = False
    """Whether who waits displaces those who run with larger keys; they are computed anew, or keep
    their memory (keeping.py)."""
    displaced: ClassVar[str] = "are computed anew"
    """What becomes of those, as the card says it."""
    moves: ClassVar[bool] = False
    """Whether keys may change from step to step."""

    server: Server
    cost: CostModel

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        self.config, self.max_model_len = config, max_model_len
        self._prefills: dict[int, int] = {}
        self._seated = not self.preempts  # does a full batch keep every request out?
        self._stands = False  # and can arrivals be ignored meanwhile?
        self.looks = self.preempts or type(self).look is not Policy.look  # must it act before a decision?
        self.note = ""
        self._placed: Sorted | None = None  # the queue, if it computes the keys of newcomers later
        self.kept_out = ""
        self._fitted: Request | None = None  # the head, if it fits in this step without preemption

    def own(self, kind: type[T]) -> T:
        """Its options as `declares` has them, with the user's values."""
        return taken(kind, self.config.options)

    # -- what a policy says -------------------------------------------------------------------

    @abstractmethod
    def key(self, request: Request, now_ps: int) -> Any:  # noqa: ANN401 - anything that compares
        """The request's sort key; the smallest is next."""

    def turns_ps(self, request: Request) -> int | None:
        """When the key of a waiting request changes next; None: it does not."""
        return None

    def displaceable(self, request: Request) -> bool:
        """Whether a running request may be displaced."""
        return True

    def timeless(self) -> bool:
        """Whether keys, and what `waits` notes, are the same at any time, except for `turns_ps`.

        Then requests that come while the batch is full can be ignored until another request leaves.
        """
        return False

    def queue(self) -> Queue:
        """Where requests wait."""
        if self.moves:
            return Moving(self)
        return Sorted(self) if type(self).turns_ps is Policy.turns_ps else Turning(self)

    # -- what it hears ------------------------------------------------------------------------

    def begin(self, server: Server) -> None:
        """The policy orders this server's queue from now on."""
        self.server = server
        self._placed = server.waiting if isinstance(server.waiting, Sorted) else None
        self._stands = self._seated and self.timeless() and not server.memory.abilities.external_slots

    def look(self) -> None:
        """A step is being decided."""

    def waits(self, request: Request) -> None:
        """The request waits from now on: it came, or was preempted."""

    def entered(self, request: Request) -> None:
        """The request was admitted: it runs from now on."""

    def finished(self, request: Request) -> None:
        """The request has its last token."""

    # -- what it may do -----------------------------------------------------------------------

    def place(self) -> None:
        """Compute the keys of requests that came since the last step now."""
        if self._placed is not None:
            self._placed.place()

    def refuse(self, request: Request, reason: str) -> None:
        """Drop a waiting request, and with it all other waiting answers to its prompt."""
        server = self.server
        answers = [each for each in server.waiting if each.index == request.index]
        for each in answers:
            server.waiting.remove(each)
        server.step.reject(request.index, reason, sum(each.preemptions for each in answers))

    # -- how long an order holds --------------------------------------------------------------

    def alike_steps(self) -> int:
        """Steps for which the order stays the same if nothing happens; 0: any number."""
        return 1 if self.moves else 0

    def alike_until_ps(self) -> int:
        """The next instant at which the order may change by itself."""
        waiting = self.server.waiting
        return waiting.next_turn_ps() if isinstance(waiting, Turning) else NEVER_PS

    # -- a step -------------------------------------------------------------------------------

    def decide(self, seats: int, budget: int) -> int:
        """A step begins: displace requests that must give way; returns how many. Only if it `preempts`."""
        self.look()
        self._fitted = None
        if not self.server.waiting:
            return 0
        return self._displace(seats, budget)

    def held_back(self) -> str:
        """Why the head of the queue, which may displace a request, did not in this step; "": it may not."""
        return ""

    def decided(self) -> None:
        """A step is decided: say how long that holds."""
        server = self.server
        waiting = server.waiting
        if not waiting:
            return
        full = self._seated and server.events is None and len(server.running) >= self.config.max_num_seqs
        if full and self._stands and server.memory.below.find is None:
            server.step.of_validity().stands = True
            return
        if self._placed is not None:
            self._placed.place()
        if self.moves and (server.memory.abilities.external_slots or server.events):
            waiting[0]  # will be asked for when the step is planned: nothing may change then
        if full or (len(waiting) < 2 and not self.preempts):
            return  # no request enters before another leaves, whatever the order
        if self.preempts and server.step.changed:
            return  # such a step is not repeated, however long its order holds
        steps, until_ps = self.alike_steps(), self.alike_until_ps()
        if self._fitted is waiting[0]:  # and was kept out: it may still displace a request
            steps = 1
        if steps:
            server.hold_for(steps)
        if until_ps < NEVER_PS:
            server.hold_until(max(until_ps, server.now_ps + 1))

    def _displace(self, seats: int, budget: int) -> int:
        """Preempt requests with the largest keys until the head of the queue fits; none if it never would."""
        server = self.server
        head, running = server.waiting[0], server.running
        allocator = server.allocator
        if self._prompts_fill(budget):
            return 0
        rivals = iter(self.rivals(self.key(head, server.now_ps), server.now_ps))
        first = next(rivals, None)
        if first is None:
            return 0
        needed = self._needed(head)
        free, taken_seats = allocator.free_slots, len(running)
        if free >= needed and taken_seats < seats:
            self._fitted = head
            return 0
        victims: list[Request] = []
        for request in chain((first,), rivals):
            victims.append(request)
            free += self._slots(request)
            taken_seats -= 1
            if free >= needed and taken_seats < seats:
                break
        else:
            return 0
        self._put_first(head)
        for request in victims:
            server.preempt(request)
        return len(victims)

    def _put_first(self, head: Request) -> None:
        """Note that requests give way to this one in this step."""
        self.server.step.displacer = Displacer(head, self.displaces_for(head))

    def displaces_for(self, head: Request) -> str:
        """Why this request goes before those that run."""
        return self.displaces_as

    def _prompts_fill(self, budget: int) -> bool:
        """Whether prompts that are under way take all of the step's budget."""
        server = self.server
        if not server.memory.prefill_held:
            return False
        prefilling = [
            r.known_tokens - r.computed for r in server.running.values() if r.state is State.PREFILL
        ]
        return sum(prefilling) >= budget - server.decoding

    def _needed(self, head: Request) -> int:
        """Slots that must be free for the head of the queue."""
        server = self.server
        return server.allocator.slots_needed(head.known_tokens, server.rules.bound(head)) + self._watermark()

    def rivals(self, least: Any, now_ps: int) -> Iterable[Request]:  # noqa: ANN401
        """Running requests that may give way, with keys above `least`: largest first, then last admitted."""
        key, may_give_way = self.key, self._may_give_way
        found = [
            (own, r.seq, r)
            for r in self.server.running.values()
            if least < (own := key(r, now_ps)) and may_give_way(r)
        ]
        found.sort(reverse=True)
        return [request for _, _, request in found]

    def _watermark(self) -> int:
        """Slots that an admission must leave free."""
        share, allocator = self.config.options.get("watermark"), self.server.allocator
        unit = allocator.block_slots
        return int(share * (allocator.capacity_slots // unit + 1)) * unit if isinstance(share, float) else 0

    def _slots(self, request: Request) -> int:
        """Slots that a running request holds."""
        server = self.server
        tokens = server.progress.stored(request) if request.is_decoding else request.computed
        return server.allocator.slots_needed(max(tokens, 1), server.rules.bound(request))

    def _may_give_way(self, request: Request) -> bool:
        return request.state is not State.FINISHED and self.displaceable(request)

    def victim(self) -> Request:
        """The request to preempt if memory is short: the largest key, the last admitted of equals."""
        batch, now_ps = self.server.batch, self.server.now_ps
        living = [
            r for r in batch.running.values() if r.state is not State.FINISHED or r.seq in batch.departed
        ]
        return max(living, key=lambda r: (self.key(r, now_ps), r.seq))

    # -- what it may ask ----------------------------------------------------------------------

    def generated(self, request: Request) -> int:
        """Tokens of its answer that a request has generated."""
        return self.server.progress.generated(request) if request.is_decoding else request.generated

    def prefill_ps(self, tokens: int) -> int:
        """Time that the prefill of this many tokens takes alone, by the cost model."""
        found = self._prefills.get(tokens)
        if found is None:
            found, start, chunk = 0, 0, self.config.max_num_batched_tokens
            while start < tokens:
                size = min(chunk, tokens - start)
                pairs = size * start + size * (size + 1) // 2
                found += self.cost.step_ps(StepShape(size, pairs, prefill_seqs=1))
                start += size
            self._prefills[tokens] = found
        return found

    def decode_ps(self, tokens: int) -> int:
        """Time of a step that decodes one sequence of this many tokens."""
        return self.cost.step_ps(StepShape(decode_seqs=1, context_tokens=tokens))
