"""The decode side of a hand-over, as vLLM's NIXL connector pulls it: room for the prompt, then a read.

    arrives    with the blocks that the prefill side holds for it
    admitted   all its blocks are allocated; those without a local hit are read, and it waits
    read       its last prompt token is recomputed in place, and it decodes

A preempted request recomputes its prompt here: nothing is read twice. Follows vLLM 0.33.0 (pull mode).
"""

from collections.abc import Callable

from kvsim.sim.serving.connector import Connector
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import Job, User
from kvsim.sim.serving.transfers import Transfers


class Reads(Connector):
    """What a server reads of prompts that another server has computed.

    Parameters
    ----------
    told : callable
        Called with the name of a request, the time from which its blocks there are no longer wanted, and
        whether they were read.
    wants : callable
        Called with the names of requests whose blocks are wanted, and a time, at most every `heartbeat_ps`.
    late : bool
        Whether ended transfers are known one decision later (asynchronous scheduling).

    Attributes
    ----------
    handed : dict of tuple
        Name of a request that has not begun to read -> the blocks held for it.
    wanted : dict
        Names of requests whose blocks are held, in order of arrival.
    """

    def __init__(  # noqa: PLR0917 - callbacks and when they run
        self,
        server: Server,
        transfers: Transfers,
        told: Callable[[int, int, bool], None],
        wants: Callable[[tuple[int, ...], int], None],
        heartbeat_ps: int,
        late: bool,
    ) -> None:
        super().__init__(server, transfers, late)
        self.handed: dict[int, tuple[int, ...]] = {}
        self.wanted: dict[int, None] = {}
        self._told, self._wants, self._heartbeat_ps = told, wants, heartbeat_ps
        self._beat_ps = 0  # when the last heartbeat was sent
        self._users: dict[int, User] = {}
        self._given_up: list[int] = []  # left before they read
        self._jobs = 0

    def hand_over(self, request: Request, blocks: tuple[int, ...]) -> None:
        """A request arrives whose prompt is in these blocks elsewhere."""
        self.handed[request.own] = blocks
        self.wanted[request.own] = None

    def forget(self, request: Request) -> None:
        """The blocks held for a request that has not begun to read are gone."""
        del self.handed[request.own], self.wanted[request.own]
        self._users.pop(request.own, None)

    def user(self, request: Request) -> User:
        """What is known about a request."""
        found = self._users.get(request.own)
        if found is None:
            found = self._users[request.own] = User(request, request.own)
        return found

    def look_up(self, user: User, here: int) -> int | None:
        """Prompt tokens after the local hit, if the prompt was computed elsewhere."""
        user.loaded = user.promoted = False
        return user.request.prompt_tokens - here if user.number in self.handed else 0

    def begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        """Read the last of the held blocks into the blocks that were not hit here."""
        held, blocks = self.handed.pop(user.number), self.allocator.block_table(request.seq)
        self._jobs += 1
        job = Job(self._jobs - 1, True, user, [], held, list(blocks[here // self.size :]))
        self.transfers.begin(job, self.server.now_ps)
        self._told(user.number, job.ends_ps, True)

    # -- a decision ---------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is about to be decided: ended transfers are known."""
        if not self.late:
            self.settle(self.server.now_ps)

    def end_step(self) -> None:
        """A step is decided: say which blocks are no longer wanted and, at intervals, which still are."""
        now_ps = self.server.now_ps
        if self.wanted and now_ps >= self._beat_ps + self._heartbeat_ps:
            self._beat_ps = now_ps
            self._wants(tuple(self.wanted), now_ps)
        for name in self._given_up:
            self._told(name, now_ps, False)
        self._given_up.clear()

    def settle(self, by_ps: int) -> bool:
        """Requests whose read has ended run at their next turn."""
        ended = self.transfers.ended(by_ps)
        for job in ended:
            self.loaded(job.owner, job.ends_ps)
            self.wanted.pop(job.owner.number, None)
        return bool(ended)

    def wake(self, again: bool) -> None:
        """Say when the next decision may differ; `again`: immediately."""
        server = self.server
        ends = self.transfers.next_ps(loads_only=True)
        if again:
            server.hold_until(server.now_ps)
        elif ends is not None:
            server.hold_until(max(ends, server.now_ps))

    # -- leaving ------------------------------------------------------------------------------

    def finishes(self, request: Request) -> None:
        """A request has finished."""
        self._users.pop(request.own, None)

    def aborts(self, request: Request, tokens: int, table: list[int]) -> None:
        """A request is aborted: blocks that it has not begun to read are free after the next step."""
        self._users.pop(request.own, None)
        self.wanted.pop(request.own, None)
        if self.handed.pop(request.own, None) is not None:
            self._given_up.append(request.own)
