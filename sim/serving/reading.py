"""The decode side of a hand-over, as vLLM's NIXL connector pulls it: blocks for the whole prompt, then a read.

    comes      with the blocks that the prefill side holds for it
    admitted   all its blocks are allocated; those without a local hit are read, and it waits
    read       its last prompt token is computed again, in place, and it decodes

Whoever is preempted computes its prompt here: nothing is read twice. Follows vLLM 0.33.0 (pull mode).
"""

from collections.abc import Callable, Container

from kvsim.allocators.block_tables import BlockTables
from kvsim.sim.serving.in_flight import InFlight
from kvsim.sim.serving.loading import Loading
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import NEVER_PS, Server
from kvsim.sim.serving.tier_jobs import Job, User
from kvsim.sim.serving.transfers import Transfers


class Reads:
    """What a server reads of the prompts that another has computed.

    Parameters
    ----------
    told : callable
        Called with the name of a request, a time when its blocks there are wanted no longer, and whether
        they were read.
    wants : callable
        Called with the names of those whose blocks are, and a time, at most each `heartbeat_ps`.
    late : bool
        Whether what ended is known one decision later (asynchronous scheduling).

    Attributes
    ----------
    handed : dict of tuple
        By name of requests that have not begun to read: the blocks that are held for them.
    wanted : dict
        Names of those whose blocks are held for them, in the order in which they came.
    """

    def __init__(
        self,
        server: Server,
        transfers: Transfers,
        told: Callable[[int, int, bool], None],
        wants: Callable[[tuple[int, ...], int], None],
        heartbeat_ps: int,
        late: bool,
    ) -> None:
        self.server, self.transfers, self.late = server, transfers, late
        assert isinstance(server.allocator, BlockTables)
        self.allocator, self.size = server.allocator, server.allocator.block_slots
        self.handed: dict[int, tuple[int, ...]] = {}
        self.wanted: dict[int, None] = {}
        self.rested: Container[int] = ()
        self._told, self._wants, self._heartbeat_ps = told, wants, heartbeat_ps
        self._beat_ps = 0  # when the last heartbeat was sent
        self._users: dict[int, User] = {}
        self._given_up: list[int] = []  # who left before they read
        self._jobs = 0

    def hand_over(self, request: Request, blocks: tuple[int, ...]) -> None:
        """A request comes whose prompt is in these blocks elsewhere."""
        self.handed[request.own] = blocks
        self.wanted[request.own] = None

    def user(self, request: Request) -> User:
        """What is known of a request."""
        found = self._users.get(request.own)
        if found is None:
            found = self._users[request.own] = User(request, request.own, [])
        return found

    def begin(self, user: User, blocks: list[int]) -> Job:
        """Read into these blocks the last of those that are held."""
        held = self.handed.pop(user.number)
        self._jobs += 1
        job = Job(self._jobs - 1, True, user, (), held, blocks)
        self.transfers.begin(job, self.server.now_ps)
        self._told(user.number, job.ends_ps, True)
        return job

    # -- a decision ---------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is to be decided: what has ended is known."""
        if not self.late:
            self.settle()

    def end_step(self) -> None:
        """A step is decided: tell whose blocks are wanted no longer, and now and then, whose still are."""
        now_ps = self.server.now_ps
        if self.wanted and now_ps >= self._beat_ps + self._heartbeat_ps:
            self._beat_ps = now_ps
            self._wants(tuple(self.wanted), now_ps)
        for name in self._given_up:
            self._told(name, now_ps, False)
        self._given_up.clear()

    def settle(self) -> bool:
        """What has ended by now is known from now on; whether anything had."""
        ended = self.transfers.ended(self.server.now_ps)
        for job in ended:
            job.owner.loaded = True
            self.wanted.pop(job.owner.number, None)
        return bool(ended)

    def wake(self, again: bool) -> None:
        """Say when the next decision may differ; `again`: it may at once."""
        server = self.server
        ends = self.transfers.next_ps(loads_only=True)
        if again:
            server.wakes_ps = server.now_ps
        else:
            server.wakes_ps = NEVER_PS if ends is None else max(ends, server.now_ps)

    # -- leaving ------------------------------------------------------------------------------

    def finishes(self, request: Request) -> None:
        """A request has finished."""
        self._users.pop(request.own, None)

    def aborts(self, request: Request, tokens: int, table: list[int]) -> None:
        """A request is aborted: what it has not begun to read is free behind the next step."""
        self._users.pop(request.own, None)
        self.wanted.pop(request.own, None)
        if self.handed.pop(request.own, None) is not None:
            self._given_up.append(request.own)

    def loads_for(self, request: Request) -> bool:
        """Whether a read for a request is under way."""
        return any(job.owner.request is request for _, _, job in self.transfers.under_way)


class Reading(Loading):
    """The queue where requests come with a prompt that was computed elsewhere."""

    def __init__(self, reads: Reads, whole: bool, chunked: bool, watermark: float) -> None:
        super().__init__(reads, whole, chunked, watermark, 0, 1)
        self.reads = reads

    def look_up(self, user: User, here: int) -> int | None:
        """Tokens behind the first `here` that are to be read."""
        user.loaded = user.promoted = False
        return user.request.prompt_tokens - here if user.number in self.reads.handed else 0

    def _begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        table = self.reads.allocator.block_table(request.seq)
        self.reads.begin(user, list(table[-(-here // self.reads.size) :]))


class DecodeSide(LowerTier):
    """Decides the steps of a server whose prompts were computed elsewhere, or some of them.

    Parameters
    ----------
    threshold : int
        Most tokens of one prompt in a step, while there are others; 0: as many as the budget has.
    """

    def __init__(self, reads: Reads, reading: Reading, threshold: int) -> None:
        self.server, self.late, self.offload, self.loading = reads.server, reads.late, reads, reading
        self._in_flight = InFlight(reads.server, fenced=reads.late)
        self._threshold = threshold
        self._aborted, self._cut = [], []

    def schedule(self, budget: int, seats: int) -> None:
        """Decide the step that starts now."""
        server, longest = self.server, budget
        if self._threshold and len(server.running) + len(server.waiting) + len(self.loading.hold) > 1:
            longest = min(budget, self._threshold)
        self._in_flight.longest = self.loading.longest = longest
        super().schedule(budget, seats)
