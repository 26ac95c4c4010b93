"""A queue of queues: each client's or group's requests by arrival; a policy says whose turn it is."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from mypy_extensions import mypyc_attr

from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server

Entry = tuple[int, int, Request]


class Turns(Protocol):
    """A policy that chooses among clients, or among other groups."""

    server: Server

    def group(self, request: Request) -> str:
        """The group within which the request waits in order of arrival."""

    def next_client(self) -> str:
        """Whose turn it is, of the clients with waiting requests."""

    def waits(self, request: Request) -> None:
        """The request waits from now on."""

    def entered(self, request: Request) -> None:
        """The request was admitted."""

    def emptied(self, client: str) -> None:
        """None of the client's requests waits any more."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ByClient(dict[Request, None]):
    """Waiting requests, by client.

    A `dict` of them for the sake of the server, which asks for its length all the time.

    Attributes
    ----------
    waiting : dict
        Client -> its requests, by arrival; clients without any are left out.
    """

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.waiting: dict[str, list[Entry]] = {}
        self._turns = turns
        self._chosen: str | None = None  # whose turn it is, until something happens
        self._step: Decision | None = None  # in this step

    def append(self, request: Request) -> None:
        """Insert a request among its client's."""
        self._turns.waits(request)
        self._chosen = self[request] = None
        entry = (request.index, request.sample, request)
        heappush(self.waiting.setdefault(self._turns.group(request), []), entry)

    def appendleft(self, request: Request) -> None:
        """Add a request that comes back."""
        self.append(request)

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        client = self.chosen()
        request = heappop(self.waiting[client])[-1]
        self._took(client, request)
        self._turns.entered(request)
        return request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        client = self._turns.group(request)
        self.waiting[client] = [entry for entry in self.waiting[client] if entry[-1] is not request]
        heapify(self.waiting[client])
        self._took(client, request)

    def _took(self, client: str, request: Request) -> None:
        del self[request]
        self._chosen = None
        if not self.waiting[client]:
            del self.waiting[client]
            self._turns.emptied(client)

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        client = self._chosen
        if client is None or self._step is not self._turns.server.step:
            client = self.chosen()
        return self.waiting[client][0][-1]

    def chosen(self) -> str:
        """Whose turn it is."""
        step = self._turns.server.step
        if self._chosen is None or self._step is not step:
            self._step, self._chosen = step, self._turns.next_client()
        return self._chosen

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(entry for queue in self.waiting.values() for entry in queue))
