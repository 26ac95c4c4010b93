"""A queue whose keys all change at the same instants: all keys are found at once, from a table.

    at an instant     table -> the keys of all -> those up to a bound stand in a heap, others are left aside
    until the next    who comes joins the heap; if its head is above the bound, the others join, too

Between two instants keys stay.
"""

from collections.abc import Iterator
from heapq import heapify
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.sim.policies.queue import Keys, Sorted
from kvsim.sim.serving.request import Request

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FEW = 64
"""So many stand in the heap at first: an interval rarely needs more."""


class TableKeys(Keys, Protocol):
    """What the queue asks of its policy, beside."""

    def row(self, request: Request) -> tuple[int, ...]:
        """What the key of a request is made of while it waits."""

    def keys(self, table: Ints, now_ps: int) -> tuple[Floats, Ints]:
        """The keys of all in two arrays, the first counts first; the table has a column for each."""

    def next_ps(self, now_ps: int) -> int:
        """When keys change next."""


class Columns(Sorted):
    """The smallest key first; of equals, who came first.

    Parameters
    ----------
    width : int
        Numbers of a row.
    """

    def __init__(self, policy: TableKeys, width: int) -> None:
        super().__init__(policy)
        self._keys, self._until_ps = policy, 0
        self._table: Ints = np.zeros((width, FEW), dtype=np.int64)
        self._who: list[tuple[Request, int]] = []  # by column, with their numbers; those too who left since
        self._found: tuple[Floats, Ints] = (
            np.zeros(0),
            np.zeros(0, dtype=np.int64),
        )  # keys of the last instant
        self._bound = inf  # who had a larger one is left aside

    def place(self) -> None:
        """Likewise; look at all when keys have changed, and at those left aside when they may be next."""
        super().place()
        now_ps = self.policy.server.now_ps
        if now_ps >= self._until_ps:
            self._look(now_ps)
        if self._bound < inf and (not self._heap or self._heap[0][0][0] > self._bound):
            aside = np.flatnonzero(self._found[0] > self._bound)
            self._bound = inf
            self._take(aside)

    def _place(self, request: Request) -> None:
        super()._place(request)
        column = len(self._who)
        if column == self._table.shape[1]:
            self._table = np.hstack([self._table, self._table])
        self._table[:, column] = self._keys.row(request)
        self._who.append((request, self._number))

    def _look(self, now_ps: int) -> None:
        """The keys of all, now."""
        self._until_ps = self._keys.next_ps(now_ps)
        if len(self._who) > 2 * len(self) + FEW:
            self._let_go()
        self._found = first, _ = self._keys.keys(self._table[:, : len(self._who)], now_ps)
        self._bound = float(np.partition(first, FEW)[FEW]) if len(first) > 2 * FEW else inf
        self._heap.clear()
        self._take(np.flatnonzero(first <= self._bound))

    def _let_go(self) -> None:
        """Forget the columns of those who left."""
        kept = [column for column, (request, number) in enumerate(self._who) if self.get(request) == number]
        self._table[:, : len(kept)] = self._table[:, kept]
        self._who = [self._who[column] for column in kept]

    def _take(self, columns: NDArray[np.intp]) -> None:
        """Put those in the heap who have waited since the last instant."""
        keys = zip(columns.tolist(), *(each[columns].tolist() for each in self._found), strict=True)
        for column, first, second in keys:
            request, number = self._who[column]
            if self.get(request) == number:
                self._heap.append(((first, second), request.index, request.sample, number, request))
        heapify(self._heap)

    def __getitem__(self, index: int) -> Request:  # type: ignore[override]
        if index or self._fresh or self.policy.server.now_ps >= self._until_ps or self._bound < inf:
            return super().__getitem__(index)
        return self._heap[0][-1]

    def __iter__(self) -> Iterator[Request]:
        self.place()
        now_ps, key = self.policy.server.now_ps, self.policy.key
        return iter(sorted(self.keys(), key=lambda r: (key(r, now_ps), r.index, r.sample)))
