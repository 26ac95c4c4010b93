"""vLLM's LRU of chunks: a request's chunks are used together, when it has finished, its head last.

    while it runs     all its chunks have the rank of its first use; of equals the deepest leaves first
    when it is done   they get ranks of their own, from the tail to the head

So in a chain the tail leaves first, and what remains can be found from its first token on. Reading pins a
chunk and leaves its rank as it is. Where a user's positions are not known, each of its chunks gets its rank
when it comes in.
"""

from collections.abc import Container, Sequence
from heapq import heappop, heappush

from kvsim.allocators.tiers.chunks import Chunks
from kvsim.allocators.tiers.order import EvictionOrder

Rank = tuple[int, int]
"""(when it was used, minus its position in the text)."""


class VllmLru(EvictionOrder):
    """Evicts the smallest rank; of equals, the smallest key."""

    def __init__(self, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.rank: dict[int, Rank] = {}
        self._next = 0
        self._idle: list[tuple[Rank, int]] = []  # a heap of what was idle with that rank
        self._first_used: dict[int, int] = {}  # by user
        self._used: dict[int, dict[int, None]] = {}  # by user, in the order of first use

    def offer(self, user: int, missing: Sequence[int], usable: Sequence[int]) -> None:
        for key in usable:
            self.use(user, key)

    def insert(self, user: int, key: int) -> None:
        self.rank[key] = self._rank_for(user, key) or self._new_rank()

    def use(self, user: int, key: int) -> None:
        self._used.setdefault(user, {})[key] = None
        rank = self._rank_for(user, key)
        if rank is not None and key in self.rank and rank > self.rank[key]:
            self._set(key, rank)

    def touch(self, user: int, key: int) -> None:
        if key in self.rank:
            self._set(key, self._new_rank())

    def released(self, key: int) -> None:
        heappush(self._idle, (self.rank[key], key))

    def remove(self, key: int) -> None:
        del self.rank[key]

    def choose(self, count: int, kept: Container[int]) -> list[int] | None:
        heap, of = self._idle, self.chunks.of
        chosen: dict[int, Rank] = {}
        passed: dict[int, Rank] = {}
        while heap and len(chosen) < count:
            rank, key = heappop(heap)
            if self.rank.get(key) != rank or of[key].references or key in chosen or key in passed:
                continue  # it was used since, or stands there twice
            (passed if key in kept else chosen)[key] = rank
        enough = len(chosen) == count
        for key, rank in (passed if enough else passed | chosen).items():
            heappush(heap, (rank, key))
        if not enough:
            return None
        for key in chosen:
            del self.rank[key]
        return list(chosen)

    def leave(self, user: int) -> None:
        self._first_used.pop(user, None)
        for key in self.tail_first(user, list(self._used.pop(user, ()))):
            if key in self.rank:
                self._set(key, self._new_rank())

    def clear(self) -> None:
        self.rank.clear()
        self._idle.clear()
        self._used.clear()
        self._first_used.clear()

    def _new_rank(self) -> Rank:
        self._next += 1
        return self._next - 1, 0

    def _rank_for(self, user: int, key: int) -> Rank | None:
        """The rank of a key while a user runs; None: its position is not known."""
        position = self._positions.get(user, {}).get(key)
        if position is None:
            return None
        if user not in self._first_used:
            self._first_used[user] = self._next
            self._next += 1
        return self._first_used[user], -position

    def _set(self, key: int, rank: Rank) -> None:
        self.rank[key] = rank
        if not self.chunks.of[key].references:
            heappush(self._idle, (rank, key))
