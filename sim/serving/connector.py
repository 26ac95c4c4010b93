"""What vLLM calls a KV connector: keys and values of a prompt that are elsewhere, and can be loaded.

    look_up    how many tokens behind those that are here; or: ask again later
    begin      they are on their way into blocks that the request has
    settle     what has ended by now is known from now on

A tier below the GPU's memory is one (offload.py), a server that computes prompts for another one is another
(reading.py). Which requests ask, wait and run is the same for all of them: loading.py, lower_tier.py.
"""

from abc import abstractmethod
from collections.abc import Container

from kvsim.allocators.paged import Paged
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import User
from kvsim.sim.serving.transfers import Transfers


class Connector:
    """Looks up and loads for one server.

    Parameters
    ----------
    late : bool
        Whether what ended is known one decision later (asynchronous scheduling).

    Attributes
    ----------
    size : int
        Tokens of a block.
    rested : container of int
        Sequences that were not in the step before, so that the newest of their tokens is known too.
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
        """What is known of a request."""

    @abstractmethod
    def look_up(self, user: User, here: int) -> int | None:
        """Tokens behind the first `here` that can be loaded; None: ask again later."""

    @abstractmethod
    def begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        """Load what `look_up` found; `at_once`: the step that is decided waits for it."""

    def runs(self, user: User) -> None:
        """Who waited for a load runs in the step that is decided."""

    # -- a decision ---------------------------------------------------------------------------

    @abstractmethod
    def begin_step(self) -> None:
        """A step is to be decided."""

    @abstractmethod
    def end_step(self) -> None:
        """A step is decided."""

    @abstractmethod
    def settle(self, by_ps: int) -> bool:
        """What has ended by then is known from now on; whether anything had."""

    @abstractmethod
    def wake(self, again: bool) -> None:
        """Say when the next decision may differ; `again`: it may at once."""

    def rest(self) -> None:
        """Nobody is left."""
        self.begin_step()
        self.end_step()

    # -- leaving ------------------------------------------------------------------------------

    @abstractmethod
    def finishes(self, request: Request) -> None:
        """A request has finished and still has its memory."""

    @abstractmethod
    def aborts(self, request: Request, tokens: int, table: list[int]) -> None:
        """A request is aborted, and has computed so many tokens in these blocks."""

    def loads_for(self, request: Request) -> bool:
        """Whether a load for a request is under way."""
        return any(job.loads and job.owner.request is request for _, _, job in self.transfers.under_way)
