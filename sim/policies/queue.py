"""Where requests wait that a policy orders by keys.

Sorted     keys that stay: a heap
Turning    keys that change at instants: a heap, and a second one of the instants
Moving     keys that may change in every step: sorted anew in each that looks at the head
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server

Entry = tuple[Any, int, int, int, Request]
"""(key, row, sample, number of the entry, request)"""
FAR_PS = 1 << 62


class Keys(Protocol):
    """What a queue asks of its policy (base.py)."""

    server: Server

    def key(self, request: Request, now_ps: int) -> Any:  # noqa: ANN401
        """What orders a request."""

    def turns_ps(self, request: Request) -> int | None:
        """When that changes next."""

    def waits(self, request: Request) -> None:
        """It waits from now on."""

    def entered(self, request: Request) -> None:
        """It was admitted."""


class Sorted(dict[Request, int]):
    """The smallest key first; of equals, who came first.

    Who waits, and the number of its entry in the heap. What no longer counts stays there, but never on its
    top. A `dict` for the sake of the server, which asks for its length all the time.
    """

    def __init__(self, policy: Keys) -> None:
        super().__init__()
        self.policy = policy
        self._heap: list[Entry] = []
        self._number = 0
        self._next_ps = FAR_PS  # no key changes before
        self._fresh: list[Request] = []  # not placed yet: keys are asked for when a step is decided

    def append(self, request: Request) -> None:
        """Put a request where it belongs."""
        self[request] = 0
        self._fresh.append(request)

    def place(self) -> None:
        """Ask for the keys of those who came since the last time."""
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
        """Likewise."""
        self.append(request)

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        request = self[0]
        heappop(self._heap)
        del self[request]
        self._uncover()
        self.policy.entered(request)
        return request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        self.place()
        del self[request]
        self._uncover()

    def _uncover(self) -> None:
        """Drop what no longer counts from the top."""
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


class Turning(Sorted):
    """Each request stands by its key of now: who has one of a later time is moved when that has come."""

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
        """When the next of those who wait gets another key."""
        turns, number_of = self._turns, self.get
        while turns and number_of(turns[0][2]) != turns[0][1]:
            heappop(turns)
        self._next_ps = turns[0][0] if turns else FAR_PS
        return self._next_ps

    def place(self) -> None:
        """Likewise, and move those whose time has come."""
        super().place()
        now_ps = self.policy.server.now_ps
        if self._next_ps <= now_ps:
            while self.next_turn_ps() <= now_ps:
                self._place(heappop(self._turns)[2])
            self._uncover()


class Moving(dict[Request, None]):
    """Requests as they came, and in the order of their keys of this step once somebody looks."""

    def __init__(self, policy: Keys) -> None:
        super().__init__()
        self.policy = policy
        self._heap: list[Entry] = []
        self._step: Decision | None = None  # for which the heap holds

    def append(self, request: Request) -> None:
        """One more."""
        self.policy.waits(request)
        self[request] = None
        self._step = None

    appendleft = append

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        request = self[0]
        heappop(self._heap)
        del self[request]
        self.policy.entered(request)
        return request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
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
