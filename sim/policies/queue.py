"""Waiting queues that a policy orders by keys.

Sorted     keys that stay: a heap
Turning    keys that change at instants: a heap, and a second one of the instants
Moving     keys that may change in every step: sorted again in each step that looks at the head
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from mypy_extensions import mypyc_attr

from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server

Entry = tuple[Any, int, int, int, Request]
"""(key, row, sample, number of the entry, request)"""
FAR_PS = 1 << 62


class Keys(Protocol):
    """What a queue needs from its policy (base.py)."""

    server: Server

    def key(self, request: Request, now_ps: int) -> Any:  # noqa: ANN401
        """The request's sort key."""

    def turns_ps(self, request: Request) -> int | None:
        """When the key changes next."""

    def waits(self, request: Request) -> None:
        """The request waits from now on."""

    def entered(self, request: Request) -> None:
        """The request was admitted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sorted(dict[Request, int]):
    """The smallest key first; of equal keys, the first to arrive.

    Maps each waiting request to the number of its entry in the heap. Stale entries stay in the heap, but
    never on top. A `dict` for the sake of the server, which asks for its length all the time.
    """

    def __init__(self, policy: Keys) -> None:
        super().__init__()
        self.policy = policy
        self._heap: list[Entry] = []
        self._number = 0
        self._next_ps = FAR_PS  # no key changes before this
        self._fresh: list[Request] = []  # not placed yet: keys are computed when a step is decided

    def append(self, request: Request) -> None:
        """Insert a request by its key."""
        self[request] = 0
        self._fresh.append(request)

    def place(self) -> None:
        """Compute the keys of requests that came since the last call."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            for request in fresh:
                self.policy.waits(request)
                self._place(request)

    def _place(self, request: Request) -> None:
        number = self._number = self[request] = self._number + 1
        key = self.policy.key(request, self.policy.server.now_ps)
        heappush(self._heap, (key, request.index, request.sample, number, request))

    def appendleft(self, request: Request) -> None:
        """Add a request that comes back."""
        self.append(request)

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        if self._fresh or self._next_ps <= self.policy.server.now_ps:
            self.place()
        request = heappop(self._heap)[-1]
        del self[request]
        self._uncover()
        self.policy.entered(request)
        return request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        self.place()
        del self[request]
        self._uncover()

    def _uncover(self) -> None:
        """Drop stale entries from the top."""
        heap = self._heap
        while heap and self.get(heap[0][-1]) != heap[0][3]:
            heappop(heap)

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        if self._fresh or self._next_ps <= self.policy.server.now_ps:
            self.place()
        return self._heap[0][-1]

    def __iter__(self) -> Iterator[Request]:
        self.place()
        number_of = self.get
        return (entry[-1] for entry in sorted(self._heap) if number_of(entry[-1]) == entry[3])


@mypyc_attr(allow_interpreted_subclasses=True)
class Turning(Sorted):
    """Each request stands by its current key, and is moved at the instant at which that changes."""

    def __init__(self, policy: Keys) -> None:
        super().__init__(policy)
        self._turns: list[tuple[int, int, Request]] = []

    def _place(self, request: Request) -> None:
        super()._place(request)
        turns_ps = self.policy.turns_ps(request)
        if turns_ps is not None and turns_ps > self.policy.server.now_ps:
            heappush(self._turns, (turns_ps, self._number, request))
            if turns_ps < self._next_ps:
                self._next_ps = turns_ps

    def next_turn_ps(self) -> int:
        """When the next waiting request gets another key."""
        turns, number_of = self._turns, self.get
        while turns and number_of(turns[0][2]) != turns[0][1]:
            heappop(turns)
        self._next_ps = turns[0][0] if turns else FAR_PS
        return self._next_ps

    def place(self) -> None:
        """Place new requests, and move those whose keys have changed."""
        if self._fresh:
            super().place()
        now_ps = self.policy.server.now_ps
        if self._next_ps <= now_ps:
            while self.next_turn_ps() <= now_ps:
                self._place(heappop(self._turns)[2])
            self._uncover()


@mypyc_attr(allow_interpreted_subclasses=True)
class Moving(dict[Request, None]):
    """Requests by arrival, and in the order of this step's keys once the head is asked for."""

    def __init__(self, policy: Keys) -> None:
        super().__init__()
        self.policy = policy
        self._heap: list[Entry] = []
        self._step: Decision | None = None  # the step for which the heap holds

    def append(self, request: Request) -> None:
        """Add a request."""
        self.policy.waits(request)
        self[request] = None
        self._step = None

    def appendleft(self, request: Request) -> None:
        """Add a request that comes back."""
        self.append(request)

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        request = self[0]
        heappop(self._heap)
        del self[request]
        self.policy.entered(request)
        return request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        del self[request]
        self._step = None

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        step = self.policy.server.step
        if self._step is not step:
            self._step, now_ps, key = step, self.policy.server.now_ps, self.policy.key
            self._heap = [(key(r, now_ps), r.index, r.sample, 0, r) for r in self.keys()]
            heapify(self._heap)
        return self._heap[0][-1]

    def __iter__(self) -> Iterator[Request]:
        now_ps, key = self.policy.server.now_ps, self.policy.key
        return iter(sorted(self.keys(), key=lambda r: (key(r, now_ps), r.index, r.sample)))
