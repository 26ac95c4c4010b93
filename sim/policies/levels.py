"""The queues of multi-level feedback: who waits stands in one by arrival, who has a seat moves down a scale.

    waiting   Q0   a  b          the head is a
              Q1   c             has waited for its patience: behind a or b, by arrival
              Q2   d  e  f
    seated    --x--y-----z-->    by how far up the scale they are: all move on by the clock

Queue k spans 2^k to 2^(k + 1) quanta of the scale. Nothing stays behind where a request was, unlike in a heap
(queue.py), so that an exchange looks at its first few requests at no cost.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from kvsim.sim.policies.base import Policy
from kvsim.sim.serving.request import Request, State

FAR_PS: Final = 1 << 62
SAMPLE_BITS: Final = 32
"""A place in a queue is one integer, row << SAMPLE_BITS | sample: it compares faster than a tuple."""


class Standing:
    """Where a request stands, from its arrival to its end.

    Attributes
    ----------
    place : int
        Its place among those in the same queue.
    reached_ps : int
        How far up the scale it is; less the clock, while it has a seat.
    promoted_ps : int
        When it is promoted, if it waits until then.
    level : int
        The queue that it leaves then; 0: none, or it has a seat.
    admission : int
        The number of its admission, while it has a seat; 0: it waits.
    """

    __slots__ = ("admission", "level", "place", "promoted_ps", "reached_ps", "request")

    def __init__(self, request: Request, place: int, reached_ps: int, promoted_ps: int) -> None:
        self.request, self.place = request, place
        self.reached_ps, self.promoted_ps = reached_ps, promoted_ps
        self.level = self.admission = 0


WHEN = itemgetter(0)


class Levels:
    """The waiting queue of a policy with levels, and how far those are that have a seat.

    Requests that come are placed when a step is decided; those that a decision sends back are at once.

    Parameters
    ----------
    policy : Policy
        Says how long a prefill takes: a new request joins the first queue whose quantum covers it.
    quantum_ps, patience_ps : int
        The quantum of the first queue, and the time of waiting after which a request is promoted to it.
    """

    def __init__(self, policy: Policy, quantum_ps: int, patience_ps: int) -> None:
        self._policy, self._quantum_ps, self._patience_ps = policy, quantum_ps, patience_ps
        self._at: dict[int, Standing] = {}  # by place, whether it waits or has a seat
        self._levels: list[list[int]] = [[]]
        self._lowest = self._waiting = 0  # all queues before this one are empty; how many wait
        self._fresh: list[Request] = []  # not placed yet
        self._turns: deque[tuple[int, Standing]] = deque()  # the next promotion first; some are void
        self._next_ps = FAR_PS  # none before this
        self._marks: list[int] = []  # `reached_ps` of those with a seat, the smallest first
        self._seated: list[int] = []  # the numbers of their admissions, in the same order
        self._admitted: dict[int, Standing] = {}  # by that number
        self._admissions = 0

    # -- as a queue ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._waiting

    def append(self, request: Request) -> None:
        """Add a request that comes."""
        self._waiting += 1
        self._fresh.append(request)

    def appendleft(self, request: Request) -> None:
        """Add a request that comes back in the step that is being decided: it stands in its queue at once."""
        self._waiting += 1
        now_ps, place = self._policy.server.now_ps, request.index << SAMPLE_BITS | request.sample
        standing = self._at.get(place)
        if standing is None:
            standing = self._at[place] = self._newcomer(request, place)
        elif standing.admission:
            self._unseat(standing)
            standing.reached_ps += now_ps
            standing.promoted_ps = now_ps + self._patience_ps
        level = 0
        if standing.promoted_ps > now_ps:
            level = (standing.reached_ps // self._quantum_ps).bit_length() - 1
        if level:
            self._await_turn(standing, level)
        if level < self._lowest:
            self._lowest = level
        insort(self._levels[level], place)

    def popleft(self) -> Request:
        """Take the head: it gets a seat."""
        standing = self._at[self._first().pop(0)]
        now_ps = self._policy.server.now_ps
        mark = (standing.reached_ps if now_ps < standing.promoted_ps else self._quantum_ps) - now_ps
        self._waiting -= 1
        admission = self._admissions = self._admissions + 1
        standing.reached_ps, standing.level, standing.admission = mark, 0, admission
        index = bisect_right(self._marks, mark)
        self._marks.insert(index, mark)
        self._seated.insert(index, admission)
        self._admitted[admission] = standing
        return standing.request

    def remove(self, request: Request) -> None:
        """Remove a request from anywhere in the queue."""
        self.place()
        place = request.index << SAMPLE_BITS | request.sample
        next(queue for queue in self._levels if place in queue).remove(place)
        self._at.pop(place).level = 0
        self._waiting -= 1

    def __getitem__(self, index: int) -> Request:
        if index:
            raise IndexError(f"only the head can be seen, got {index}")
        return self._at[self._first()[0]].request

    def __iter__(self) -> Iterator[Request]:
        self.place()
        return (self._at[place].request for queue in self._levels for place in queue)

    # -- levels -------------------------------------------------------------------------------

    def level(self, request: Request, now_ps: int) -> int:
        """The queue of a request, which waits or has a seat."""
        standing = self._at[request.index << SAMPLE_BITS | request.sample]
        reached_ps = standing.reached_ps
        if standing.admission:
            reached_ps += now_ps
        elif now_ps >= standing.promoted_ps:
            return 0
        return (reached_ps // self._quantum_ps).bit_length() - 1

    def least(self) -> int:
        """The first queue that is not empty; some is."""
        self._first()
        return self._lowest

    def in_order(self) -> Iterator[tuple[int, Request]]:
        """(level, request) of a placed queue; nothing may move meanwhile."""
        at, levels = self._at, self._levels
        for level in range(self._lowest, len(levels)):
            for place in levels[level]:
                yield level, at[place].request

    def place(self) -> None:
        """Place new requests, and promote those whose time has come."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._waiting -= len(fresh)
            for request in fresh:
                self.appendleft(request)
        now_ps = self._policy.server.now_ps
        if self._next_ps <= now_ps:
            turns, levels, first = self._turns, self._levels, self._levels[0]
            self._next_ps = FAR_PS
            while turns:
                promoted_ps, standing = turns[0]
                if promoted_ps > now_ps:
                    self._next_ps = promoted_ps
                    break
                turns.popleft()
                if standing.level and standing.promoted_ps == promoted_ps:
                    place, queue = standing.place, levels[standing.level]
                    del queue[bisect_left(queue, place)]
                    insort(first, place)
                    standing.level = self._lowest = 0

    def next_turn_ps(self) -> int:
        """When the next waiting request is promoted."""
        turns = self._turns
        while turns:
            promoted_ps, standing = turns[0]
            if standing.level and standing.promoted_ps == promoted_ps:
                self._next_ps = promoted_ps
                return promoted_ps
            turns.popleft()
        self._next_ps = FAR_PS
        return FAR_PS

    def _first(self) -> list[int]:
        """The first queue that is not empty, with all placed; raises IndexError if nobody waits."""
        if self._fresh or self._next_ps <= self._policy.server.now_ps:
            self.place()
        levels = self._levels
        while not levels[self._lowest]:
            self._lowest += 1
        return levels[self._lowest]

    def _await_turn(self, standing: Standing, level: int) -> None:
        """The request waits in this queue until it is promoted."""
        standing.level, turns, promoted_ps = level, self._turns, standing.promoted_ps
        if turns and turns[-1][0] > promoted_ps:
            turns.insert(bisect_right(turns, promoted_ps, key=WHEN), (promoted_ps, standing))
        else:
            turns.append((promoted_ps, standing))
        if promoted_ps < self._next_ps:
            self._next_ps = promoted_ps
        while len(self._levels) <= level:
            self._levels.append([])

    def _newcomer(self, request: Request, place: int) -> Standing:
        """Where a request stands that has never had a seat."""
        reached_ps, prefill_ps = self._quantum_ps, self._policy.prefill_ps(request.prompt_tokens)
        while reached_ps < prefill_ps:
            reached_ps *= 2
        return Standing(request, place, reached_ps, request.arrival_ps + self._patience_ps)

    # -- seated -------------------------------------------------------------------------------

    def forget(self, request: Request) -> None:
        """The request is finished."""
        standing = self._at.pop(request.index << SAMPLE_BITS | request.sample, None)
        if standing is not None and standing.admission:
            self._unseat(standing)

    def _unseat(self, standing: Standing) -> None:
        """The request has no seat any more."""
        admission, index = standing.admission, bisect_left(self._marks, standing.reached_ps)
        while self._seated[index] != admission:
            index += 1
        del self._marks[index]
        del self._seated[index]
        del self._admitted[admission]
        standing.admission = 0

    def behind(self, least: int, now_ps: int) -> Iterator[tuple[int, Request]]:
        """Decoding requests in lower queues than `least`: the lowest first, and in it the last admitted."""
        marks, quantum_ps = self._marks, self._quantum_ps
        end, above_ps = len(marks), (quantum_ps << least + 1) - now_ps
        while end and marks[end - 1] >= above_ps:
            level = ((marks[end - 1] + now_ps) // quantum_ps).bit_length() - 1
            start = bisect_left(marks, (quantum_ps << level) - now_ps, 0, end)
            queue = self._seated[start:end]
            queue.sort(reverse=True)
            for admission in queue:
                request = self._admitted[admission].request
                if request.state is State.DECODE:
                    yield level, request
            end = start

    def next_fall_ps(self, level: int, now_ps: int) -> int:
        """When the next of those with a seat falls below this queue; `FAR_PS`: none is in it or above."""
        below_ps = self._quantum_ps << level + 1
        for index in range(bisect_left(self._marks, below_ps - now_ps) - 1, -1, -1):
            if self._admitted[self._seated[index]].request.state is not State.FINISHED:
                return below_ps - self._marks[index]
        return FAR_PS
