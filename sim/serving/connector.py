"""vLLM's KV connector: loads keys and values of a prompt that are stored elsewhere.

    look_up    how many tokens after those that are here; or: ask again later
    begin      they are being loaded into the request's blocks
    settle     what has ended by now is known from now on

A tier below the GPU's memory is one (offload.py), a server that computes prompts for another is a second
(reading.py). Which requests ask, wait and run is the same for all: loading.py, lower_tier.py.
"""

from abc import abstractmethod
from collections.abc import Container

from mypy_extensions import mypyc_attr

from kvsim.allocators.paged import Paged
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import User
from kvsim.sim.serving.transfers import Transfers


@mypyc_attr(allow_interpreted_subclasses=True)
class Connector:
    """Looks up and loads for one server.

    Parameters
    ----------
    late : bool
        Whether ended transfers are known one decision later (asynchronous scheduling).

    Attributes
    ----------
    size : int
        Tokens per block.
    rested : container of int
        Sequences that were not in the previous step, so that their newest token is known, too.
    """

    def __init__(self, server: Server, transfers: Transfers, late: bool) -> None:
        self.server, self.transfers, self.late = server, transfers, late
        assert isinstance(server.allocator, Paged)
        self.allocator = server.allocator
        self.size = server.allocator.block_slots
        self.rested: Container[int] = ()
        server.wakes.beside = True

    @abstractmethod
    def user(self, request: Request) -> User:
        """What is known about a request."""

    @abstractmethod
    def look_up(self, user: User, here: int) -> int | None:
        """Tokens after the first `here` that can be loaded; None: ask again later."""

    @abstractmethod
    def begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        """Load what `look_up` found; `at_once`: the step being decided waits for it."""

    def runs(self, user: User) -> None:
        """A request that waited for a load runs in the step being decided."""

    # -- a decision ---------------------------------------------------------------------------

    @abstractmethod
    def begin_step(self) -> None:
        """A step is about to be decided."""

    @abstractmethod
    def end_step(self) -> None:
        """A step is decided."""

    @abstractmethod
    def settle(self, by_ps: int) -> bool:
        """What has ended by then is known from now on; returns whether anything had."""

    def loaded(self, user: User, ended_ps: int) -> None:
        """A load has ended: its request waits to be scheduled, unless it runs already or has left."""
        user.loaded = True
        server, request = self.server, user.request
        if request.state == State.LOADING:
            server.wakes.loaded += 1
            if server.events:
                server.events.loaded(request, ended_ps, server.steps, user.loading)

    @abstractmethod
    def wake(self, again: bool) -> None:
        """Say when the next decision may differ; `again`: immediately."""

    def rest(self) -> None:
        """No requests are left."""
        self.begin_step()
        self.end_step()

    # -- leaving ------------------------------------------------------------------------------

    @abstractmethod
    def finishes(self, request: Request) -> None:
        """A request has finished and still has its memory."""

    @abstractmethod
    def aborts(self, request: Request, tokens: int, table: list[int]) -> None:
        """A request is aborted, having computed `tokens` tokens in these blocks."""

    def loads_for(self, request: Request) -> bool:
        """Whether a load for a request is in flight."""
        return any(job.loads and job.owner.request is request for _, _, job in self.transfers.under_way)
