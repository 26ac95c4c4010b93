"""Chunks with the numbers that vLLM gives them: at first 0, 1, 2, ...; then the one freed last.

Runs do not need the numbers. Comparisons with recordings of vLLM's manager do, since these contain them.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby

from kvsim.allocators.tiers.chunks import Chunks
from kvsim.allocators.tiers.pieces import Piece, size


class NumberedChunks(Chunks):
    """Chunks by their keys, and their numbers.

    Attributes
    ----------
    shift : list of int
        Present key -> number of its chunk minus the key. Consecutive keys are mostly in consecutive chunks,
        so that many keys share one integer.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.shift: list[int] = []
        self._used = 0  # numbers allocated so far
        self._freed: list[range] = []  # freed numbers, the last one on top

    def know(self, keys: int) -> None:
        super().know(keys)
        self.shift += [0] * (keys - len(self.shift))

    def clear(self) -> None:
        super().clear()
        self._freed.clear()
        self._used = 0

    def number(self, key: int) -> int:
        """The chunk of a present key."""
        return key + self.shift[key]

    def _numbers(self, first: int, end: int) -> list[range]:
        """The numbers of these keys' chunks, in the order of the keys."""
        shifts = self.shift[first:end]
        if shifts.count(shifts[0]) == end - first:  # usually
            return [range(first + shifts[0], end + shifts[0])]
        found: list[range] = []
        for shift, same in groupby(shifts):
            count = len(list(same))
            found.append(range(first + shift, first + shift + count))
            first += count
        return found

    def allocate(self, pieces: list[Piece]) -> Sequence[int]:
        super().allocate(pieces)
        count = size(pieces)
        fresh = min(self.capacity - self._used, count)
        runs = [range(self._used, self._used + fresh)] if fresh else []
        self._used += fresh
        if fresh < count:
            runs += self._reuse(count - fresh)
        self._place(pieces, runs)
        return runs[0] if len(runs) == 1 else [*chain.from_iterable(runs)]

    def _reuse(self, count: int) -> list[range]:
        """Take `count` freed chunks, the last freed first."""
        freed, found = self._freed, []
        while count:
            run = freed.pop()
            if len(run) > count:
                freed.append(run[:-count])
                run = run[-count:]
            found.append(run[::-1])
            count -= len(run)
        return found

    def _place(self, pieces: list[Piece], runs: Iterable[range]) -> None:
        """Assign these chunks to the keys, in this order."""
        shift, left, rest = self.shift, iter(runs), range(0)
        for _, first, length in pieces:
            key, end = first, first + length
            while key < end:
                rest = rest or next(left)
                part, rest = rest[: end - key], rest[end - key :]
                if part.step == 1:
                    shift[key : key + len(part)] = [part[0] - key] * len(part)
                else:
                    shift[key : key + len(part)] = [number - at for at, number in enumerate(part, key)]
                key += len(part)

    def evict(self, runs: list[tuple[int, int]]) -> None:
        super().evict(runs)
        for key, count in runs:
            self._freed += [run[::-1] for run in reversed(self._numbers(key, key + count))]

    def discard(self, pieces: list[Piece]) -> None:
        super().discard(pieces)
        for _, key, count in pieces:
            self._freed += self._numbers(key, key + count)

    def read(self, pieces: list[Piece]) -> Sequence[int]:
        super().read(pieces)
        runs = [self._numbers(key, key + count) for _, key, count in pieces]
        return [number for each in runs for run in each for number in run]
