"""A queue whose keys all change at the same instants: all keys are computed together, from a table.

    at an instant     table -> all keys, sorted aside; the first few stand in a heap
    until the next    new requests join the heap; when its head has a larger key than these few, more join

Between two instants keys do not change.
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
"""Requests that join the heap at a time: an interval rarely needs more."""
NONE: Ints = np.zeros(0, dtype=np.int64)


class TableKeys(Keys, Protocol):
    """What else the queue needs from its policy."""

    def row(self, request: Request) -> tuple[int, ...]:
        """The numbers from which the key of a waiting request is computed."""

    def keys(self, table: Ints, now_ps: int) -> tuple[Floats, Ints]:
        """All keys as two arrays, the first more significant; the table has one column per request."""

    def next_ps(self, now_ps: int) -> int:
        """When keys change next."""


class Columns(Sorted):
    """The smallest key first; of equal keys, the first to arrive.

    Parameters
    ----------
    width : int
        Numbers per row.
    """

    def __init__(self, policy: TableKeys, width: int) -> None:
        super().__init__(policy)
        self._keys, self._next_ps = policy, 0
        self._table: Ints = np.zeros((width, FEW), dtype=np.int64)
        self._who: list[Request] = []  # by column, the number of its entry less 1; also those that left since
        self._aside: tuple[Ints, Floats, Ints] = NONE, np.zeros(0), NONE  # columns, keys; the smallest first
        self._taken, self._bound = 0, inf  # how many of them joined; those behind have larger keys

    def place(self) -> None:
        """Place new requests, and recompute all keys when they have changed."""
        super().place()
        now_ps = self.policy.server.now_ps
        if now_ps >= self._next_ps:
            self._look(now_ps)

    def _place(self, request: Request) -> None:
        super()._place(request)
        column = len(self._who)
        if column == self._table.shape[1]:
            self._table = np.hstack([self._table, self._table])
        self._table[:, column] = self._keys.row(request)
        self._who.append(request)

    def _look(self, now_ps: int) -> None:
        """Compute all keys as of now."""
        self._next_ps = self._keys.next_ps(now_ps)
        columns = np.fromiter(self.values(), np.int64, len(self)) - 1
        if len(self._who) > 2 * len(self) + FEW:
            self._let_go(columns)
            columns = np.arange(len(self))
        first, second = self._keys.keys(self._table[:, columns], now_ps)
        order = np.argsort(first, kind="stable")
        self._aside, self._taken, self._bound = (columns[order], first[order], second[order]), 0, -inf
        self._heap.clear()
        self._uncover()

    def _let_go(self, columns: Ints) -> None:
        """Forget the columns of requests that left."""
        self._table[:, : len(columns)] = self._table[:, columns]
        self._who = list(self.keys())
        self.update(zip(self._who, range(1, len(columns) + 1), strict=True))
        self._number = len(columns)

    def _uncover(self) -> None:
        """Drop stale entries from the top; requests that may be next join."""
        super()._uncover()
        while self._bound < inf and not (self._heap and self._heap[0][0][0] <= self._bound):
            self._take()
            super()._uncover()

    def _take(self) -> None:
        """Let a few more join, and all that have the same key as the last of them."""
        first = self._aside[1]
        start, end = self._taken, self._taken + FEW
        if end < len(first):
            self._bound = float(first[end - 1])
            end = int(np.searchsorted(first, self._bound, side="right"))
        if end >= len(first):
            self._bound = inf
        self._taken = end
        rows = zip(*(each[start:end].tolist() for each in self._aside), strict=True)
        for column, *key in rows:
            request = self._who[column]
            if self.get(request) == column + 1:
                self._heap.append((tuple(key), request.index, request.sample, column + 1, request))
        heapify(self._heap)

    def __iter__(self) -> Iterator[Request]:
        self.place()
        now_ps, key = self.policy.server.now_ps, self.policy.key
        return iter(sorted(self.keys(), key=lambda r: (key(r, now_ps), r.index, r.sample)))
