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
from typing import Protocol

from kvsim.sim.policies.queue import FAR_PS, Keys, Sorted
from kvsim.sim.serving.request import Request

Place = tuple[int, int, Request]
"""(row, sample, request)"""
Turn = tuple[int, int, int, Request]
"""(when it is promoted, number of its entry, its level until then, request)"""


class Feedback(Keys, Protocol):
    """A policy whose keys are levels."""

    def stands(self, request: Request) -> tuple[int, int]:
        """The level at which a request that has just begun to wait stands, and when it is promoted."""


class Levels(Sorted):
    """Requests by level, then by arrival; each is promoted to level 0 at the instant that the policy names.

    Maps each waiting request to the number of its entry, as it was placed: at most one is in force.
    """

    def __init__(self, policy: Feedback) -> None:
        super().__init__(policy)
        self._feedback = policy
        self._levels: list[list[Place]] = [[]]
        self._turns: deque[Turn] = deque()  # the next first; some have left

    def place(self) -> None:
        """Place new requests, and promote those whose time has come."""
        now_ps, policy, levels, turns = self.policy.server.now_ps, self._feedback, self._levels, self._turns
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            for request in fresh:
                policy.waits(request)
                level, turns_ps = policy.stands(request)
                number = self._number = self[request] = self._number + 1
                if turns_ps > now_ps:
                    turn = turns_ps, number, level, request
                    if turns and turns[-1][0] > turns_ps:
                        insort(turns, turn)
                    else:
                        turns.append(turn)
                else:
                    level = 0
                while len(levels) <= level:
                    levels.append([])
                insort(levels[level], (request.index, request.sample, request))
        while turns and turns[0][0] <= now_ps:
            _, number, level, request = turns.popleft()
            if self.get(request) == number:
                queue, place = levels[level], (request.index, request.sample, request)
                del queue[bisect_left(queue, place)]
                insort(levels[0], place)
        self._next_ps = turns[0][0] if turns else FAR_PS

    def next_turn_ps(self) -> int:
        """When the next waiting request is promoted."""
        turns = self._turns
        while turns and self.get(turns[0][3]) != turns[0][1]:
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
        place = request.index, request.sample, request
        next(queue for queue in self._levels if place in queue).remove(place)
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
