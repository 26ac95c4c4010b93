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
Turn = tuple[int, int, int, Place]
"""(when it is promoted, number of its entry, its level until then, its place)"""


class Feedback(Keys, Protocol):
    """A policy whose keys are levels."""

    def stands(self, request: Request) -> tuple[int, int]:
        """A request waits from now on (called instead of `waits`): its level, and when it is promoted."""


class Levels(Sorted):
    """Requests by level, then by arrival; each is promoted to level 0 at the instant that the policy names.

    Maps each waiting request to the number of its entry, as it was placed: at most one is in force. Requests
    that come are placed when a step is decided; those that a decision sends back are at once.
    """

    def __init__(self, policy: Feedback) -> None:
        super().__init__(policy)
        self._feedback = policy
        self._levels: list[list[Place]] = [[]]
        self._lowest = 0  # all queues before this one are empty
        self._turns: deque[Turn] = deque()  # the next first; some have left

    def appendleft(self, request: Request) -> None:
        """Insert a request that gives up its seat in the step that is being decided."""
        level, turns_ps = self._feedback.stands(request)
        self._number = number = self[request] = self._number + 1
        place, levels = (request.index, request.sample, request), self._levels
        if not level or turns_ps <= self.policy.server.now_ps:
            self._lowest = 0
            insort(levels[0], place)
            return
        turns, turn = self._turns, (turns_ps, number, level, place)
        if turns and turns[-1][0] > turns_ps:
            insort(turns, turn)
        else:
            turns.append(turn)
        if turns_ps < self._next_ps:
            self._next_ps = turns_ps
        while len(levels) <= level:
            levels.append([])
        if level < self._lowest:
            self._lowest = level
        insort(levels[level], place)

    def place(self) -> None:
        """Place new requests, and promote those whose time has come."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            for request in fresh:
                self.appendleft(request)
        now_ps = self.policy.server.now_ps
        if self._next_ps <= now_ps:
            turns, levels = self._turns, self._levels
            while turns and turns[0][0] <= now_ps:
                _, number, level, place = turns.popleft()
                if self.get(place[2]) == number:
                    queue = levels[level]
                    del queue[bisect_left(queue, place)]
                    insort(levels[0], place)
                    self._lowest = 0
            self._next_ps = turns[0][0] if turns else FAR_PS

    def next_turn_ps(self) -> int:
        """When the next waiting request is promoted."""
        turns = self._turns
        while turns and self.get(turns[0][3][2]) != turns[0][1]:
            turns.popleft()
        self._next_ps = turns[0][0] if turns else FAR_PS
        return self._next_ps

    def _first(self) -> list[Place]:
        """The first queue that is not empty, with all placed; raises IndexError if nobody waits."""
        if self._fresh or self._next_ps <= self.policy.server.now_ps:
            self.place()
        levels = self._levels
        while not levels[self._lowest]:
            self._lowest += 1
        return levels[self._lowest]

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        request = self._first().pop(0)[2]
        del self[request]
        self.policy.entered(request)
        return request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        self.place()
        place = request.index, request.sample, request
        next(queue for queue in self._levels if place in queue).remove(place)
        del self[request]

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        return self._first()[0][2]

    def __iter__(self) -> Iterator[Request]:
        self.place()
        return (place[-1] for queue in self._levels for place in queue)

    def least(self) -> int:
        """The first queue that is not empty; some is."""
        self._first()
        return self._lowest

    def in_order(self) -> Iterator[tuple[int, Request]]:
        """(level, request) of a placed queue; nothing may move meanwhile."""
        levels = self._levels
        return ((level, place[2]) for level in range(self._lowest, len(levels)) for place in levels[level])
