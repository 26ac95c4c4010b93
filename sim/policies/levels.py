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
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from kvsim.sim.policies.queue import FAR_PS, Keys, Sorted
from kvsim.sim.serving.request import Request

SAMPLE_BITS: Final = 32
"""A place in a queue is one integer, row << SAMPLE_BITS | sample: it compares faster than a tuple."""
Turn = tuple[int, int, int, Request]
"""(when it is promoted, its level until then, its place, request)"""


class Feedback(Keys, Protocol):
    """A policy whose keys are levels."""

    def stands(self, request: Request) -> tuple[int, int]:
        """A request waits from now on (called instead of `waits`): its level, and when it is promoted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Levels(Sorted):
    """Requests by level, then by arrival; each is promoted to level 0 at the instant that the policy names.

    Maps each waiting request to when it is promoted, 0 if it stands in level 0. Requests that come are placed
    when a step is decided; those that a decision sends back are at once.
    """

    def __init__(self, policy: Feedback) -> None:
        super().__init__(policy)
        self._feedback = policy
        self._levels: list[list[int]] = [[]]
        self._lowest = 0  # all queues before this one are empty
        self._at: dict[int, Request] = {}  # by place
        self._turns: deque[Turn] = deque()  # the next first; some have left

    def appendleft(self, request: Request) -> None:
        """Insert a request that gives up its seat in the step that is being decided."""
        level, turns_ps = self._feedback.stands(request)
        place, levels = request.index << SAMPLE_BITS | request.sample, self._levels
        self._at[place] = request
        if not level or turns_ps <= self.policy.server.now_ps:
            self[request] = self._lowest = 0
            insort(levels[0], place)
            return
        self[request] = turns_ps
        turns, turn = self._turns, (turns_ps, level, place, request)
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
            turns, levels, first = self._turns, self._levels, self._levels[0]
            while turns:
                turns_ps, level, place, request = turns[0]
                if turns_ps > now_ps:
                    break
                turns.popleft()
                if self.get(request) == turns_ps:
                    self[request] = self._lowest = 0
                    queue = levels[level]
                    del queue[bisect_left(queue, place)]
                    insort(first, place)
            self._next_ps = turns[0][0] if turns else FAR_PS

    def next_turn_ps(self) -> int:
        """When the next waiting request is promoted."""
        turns = self._turns
        while turns and self.get(turns[0][3]) != turns[0][0]:
            turns.popleft()
        self._next_ps = turns[0][0] if turns else FAR_PS
        return self._next_ps

    def _first(self) -> list[int]:
        """The first queue that is not empty, with all placed; raises IndexError if nobody waits."""
        if self._fresh or self._next_ps <= self.policy.server.now_ps:
            self.place()
        levels = self._levels
        while not levels[self._lowest]:
            self._lowest += 1
        return levels[self._lowest]

    def popleft(self) -> Request:
        """Take the head: it was admitted."""
        request = self._at.pop(self._first().pop(0))
        del self[request]
        self.policy.entered(request)
        return request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        self.place()
        place = request.index << SAMPLE_BITS | request.sample
        next(queue for queue in self._levels if place in queue).remove(place)
        del self[request]
        del self._at[place]

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        return self._at[self._first()[0]]

    def __iter__(self) -> Iterator[Request]:
        self.place()
        return (self._at[place] for queue in self._levels for place in queue)

    def least(self) -> int:
        """The first queue that is not empty; some is."""
        self._first()
        return self._lowest

    def in_order(self) -> Iterator[tuple[int, Request]]:
        """(level, request) of a placed queue; nothing may move meanwhile."""
        at, levels = self._at, self._levels
        for level in range(self._lowest, len(levels)):
            for place in levels[level]:
                yield level, at[place]
