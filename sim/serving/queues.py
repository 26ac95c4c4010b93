"""The order in which requests wait: first come first served, by priority, or the shortest job first.

A queue behaves like a `deque` as far as the server uses one. `append` takes arrivals, `appendleft` preempted
requests; queues with their own order put either where it belongs.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from mypy_extensions import mypyc_attr

from kvsim.sim.deployment.engine import POLICIES
from kvsim.sim.errors import unknown
from kvsim.sim.serving.request import Request


class Queue(Protocol):
    """What the server needs of a queue."""

    def append(self, request: Request, /) -> None: ...  # noqa: D102
    def appendleft(self, request: Request, /) -> None: ...  # noqa: D102
    def popleft(self) -> Request: ...  # noqa: D102
    def remove(self, request: Request, /) -> None: ...  # noqa: D102
    def __getitem__(self, index: int, /) -> Request: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Ordered:
    """A queue whose head is the request with the smallest key; ties go to the one that arrived first."""

    def __init__(self, key: Callable[[Request], Any]) -> None:
        self._key = key
        self._heap: list[tuple[Any, int, int, Request]] = []

    def append(self, request: Request) -> None:
        """Put a request where it belongs."""
        heappush(self._heap, (self._key(request), request.index, request.sample, request))

    def appendleft(self, request: Request) -> None:
        """Put a request where it belongs."""
        self.append(request)

    def popleft(self) -> Request:
        """Take the head."""
        return heappop(self._heap)[-1]

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        self._heap = [entry for entry in self._heap if entry[-1] is not request]
        heapify(self._heap)

    def __getitem__(self, index: int) -> Request:
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        return self._heap[0][-1]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._heap))


def queue_named(policy: str) -> Queue:
    """The queue of a policy: fcfs; priority, the lowest number first; sjf, the shortest answer first."""
    if policy == "fcfs":
        return deque()
    if policy == "priority":
        return Ordered(lambda request: request.priority)
    if policy == "sjf":
        return Ordered(lambda request: request.output_tokens)
    raise unknown("policy", policy, list(POLICIES))
