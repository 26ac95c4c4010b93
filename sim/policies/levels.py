"""The waiting queue of a feedback policy: several, each by arrival; who waits for too long is promoted.

    Q0   a  b            the head is a
    Q1   c               c has waited for its patience: behind a or b, by arrival
    Q2   d  e  f

A key is the number of a queue. Nothing stays behind where a request was, unlike in a heap (queue.py), so that
an exchange looks at its first few requests at no cost.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from operator import itemgetter

from kvsim.sim.policies.queue import FAR_PS, Keys, Sorted
from kvsim.sim.serving.request import Request

Place = tuple[int, int, Request]
"""(row, sample, request)"""
TIME = itemgetter(0)


class Levels(Sorted):
    """Requests by level, then by arrival; each goes to level 0 at the instant that the policy names.

    Maps each waiting request to that instant, 0: it is at level 0 from now on.
    """

    def __init__(self, policy: Keys) -> None:
        super().__init__(policy)
        self._levels: list[list[Place]] = []
        self._turns: deque[tuple[int, Request]] = deque()  # the next first; some have left

    def place(self) -> None:
        """Place new requests, and promote those whose time has come."""
        now_ps, policy = self.policy.server.now_ps, self.policy
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            for request in fresh:
                policy.waits(request)
                turns_ps = policy.turns_ps(request) or 0
                if turns_ps > now_ps:
                    self._turn_at(turns_ps, request)
                else:
                    turns_ps = 0
                self[request] = turns_ps
                self._enter(policy.key(request, now_ps), request)
        turns = self._turns
        while turns and turns[0][0] <= now_ps:
            turns_ps, request = turns.popleft()
            if self.get(request) == turns_ps:
                self._leave(request)
                self[request] = 0
                self._enter(0, request)
        self._next_ps = turns[0][0] if turns else FAR_PS

    def _turn_at(self, turns_ps: int, request: Request) -> None:
        turns = self._turns
        if turns and turns[-1][0] > turns_ps:
            insort(turns, (turns_ps, request), key=TIME)
        else:
            turns.append((turns_ps, request))

    def _enter(self, level: int, request: Request) -> None:
        levels = self._levels
        while len(levels) <= level:
            levels.append([])
        insort(levels[level], (request.index, request.sample, request))

    def _leave(self, request: Request) -> None:
        """Take it out of its queue, as of before this instant."""
        turns_ps = self.get(request, 0)
        queue = self._levels[self.policy.key(request, turns_ps - 1) if turns_ps else 0]
        del queue[bisect_left(queue, (request.index, request.sample))]

    def next_turn_ps(self) -> int:
        """When the next waiting request is promoted."""
        turns = self._turns
        while turns and self.get(turns[0][1]) != turns[0][0]:
            turns.popleft()
        self._next_ps = turns[0][0] if turns else FAR_PS
        return self._next_ps

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        if self._fresh or self._next_ps <= self.policy.server.now_ps:
            self.place()
        for queue in self._levels:
            if queue:
                request = queue.pop(0)[-1]
                del self[request]
                self.policy.entered(request)
                return request
        raise IndexError("nobody waits")

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        self.place()
        self._leave(request)
        del self[request]

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        if self._fresh or self._next_ps <= self.policy.server.now_ps:
            self.place()
        for queue in self._levels:
            if queue:
                return queue[0][-1]
        raise IndexError("nobody waits")

    def __iter__(self) -> Iterator[Request]:
        self.place()
        return (place[-1] for queue in self._levels for place in queue)

    def least(self) -> int:
        """The first queue that is not empty; some is, and all are placed."""
        return next(level for level, queue in enumerate(self._levels) if queue)

    def in_order(self) -> Iterator[tuple[int, Request]]:
        """(level, request) of a placed queue; nothing may move meanwhile."""
        return ((level, place[-1]) for level, queue in enumerate(self._levels) for place in queue)
