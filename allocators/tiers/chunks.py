"""The chunks of a tier: which are free, what the others hold, and whether they are being written or read.

free      at first 0, 1, 2, ...; then the one freed last
state     of a key: ABSENT, IDLE (can be read or evicted), WRITTEN (being written), READ (being read),
          KEPT (idle, but not to be evicted for the current store)
"""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Final

from kvsim.allocators.records import InvariantError
from kvsim.allocators.tiers.pieces import Piece, size, split

ABSENT: Final = b"\0"
IDLE: Final = b"\1"
WRITTEN: Final = b"\2"
READ: Final = b"\3"
KEPT: Final = b"\4"


class Chunks:
    """Chunks by their keys.

    Attributes
    ----------
    state : bytearray
        State by key.
    shift : list of int
        By present key, the number of its chunk less the key. Consecutive keys are mostly in consecutive
        chunks, so that many keys share one integer.
    held, idle : int
        Present keys; those of them that are neither being written nor read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.state = bytearray()
        self.shift: list[int] = []
        self.held = self.idle = 0
        self._readers: dict[int, int] = {}  # of keys with more than one reader
        self._used = 0  # numbers ever allocated
        self._freed: list[range] = []  # freed numbers, the last one first

    @property
    def free(self) -> int:
        """Chunks that hold nothing."""
        return self.capacity - self.held

    def know(self, keys: int) -> None:
        """Announce that keys are below `keys` from now on."""
        new = keys - len(self.shift)
        if new > 0:
            self.state += bytes(new)
            self.shift += [0] * new

    def references(self, key: int) -> int:
        """-1: the key is being written; else its number of readers."""
        state = self.state[key]
        return -1 if state == WRITTEN[0] else self._readers.get(key, 1) if state == READ[0] else 0

    def clear(self) -> None:
        """Free all chunks, as at first."""
        self.state[:] = bytes(len(self.state))
        self._readers.clear()
        self._freed.clear()
        self.held = self.idle = self._used = 0

    def number(self, key: int) -> int:
        """The chunk of a present key."""
        return key + self.shift[key]

    def _numbers(self, first: int, end: int) -> list[range]:
        """The chunks of these keys, in the order of the keys."""
        shifts = self.shift[first:end]
        if shifts.count(shifts[0]) == end - first:  # usually
            return [range(first + shifts[0], end + shifts[0])]
        found: list[range] = []
        for shift, same in groupby(shifts):
            count = len(list(same))
            found.append(range(first + shift, first + shift + count))
            first += count
        return found

    def allocate(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Start to write chunks, for which there must be room; returns their numbers."""
        count = pieces[0][2] if len(pieces) == 1 else size(pieces)
        fresh = min(self.capacity - self._used, count)
        runs = [range(self._used, self._used + fresh)] if fresh else []
        self._used += fresh
        if fresh < count:
            runs += self._reuse(count - fresh)
        for _, key, length in pieces:
            self.state[key : key + length] = WRITTEN * length
        self._place(pieces, runs)
        self.held += count
        return runs[0] if len(runs) == 1 else [*chain.from_iterable(runs)]

    def _reuse(self, count: int) -> list[range]:
        """Take `count` chunks that were freed, the last first."""
        freed, found = self._freed, []
        while count:
            run = freed.pop()
            if len(run) > count:
                freed.append(run[:-count])
                run = run[-count:]
            found.append(run[::-1])
            count -= len(run)
        return found

    def _place(self, pieces: Sequence[Piece], runs: Iterable[range]) -> None:
        """Note that the keys are in these chunks, in this order."""
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

    def evict(self, keys: Iterable[range]) -> None:
        """Free the chunks of idle keys, given as descending ranges."""
        for each in keys:
            first, end = each[-1], each[0] + 1
            self._forget(first, end, IDLE)
            self._freed += [run[::-1] for run in reversed(self._numbers(first, end))]
            self.idle -= end - first

    def keep(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Protect the idle ones of these chunks until `let_go`; returns them."""
        kept: list[Piece] = []
        for piece in pieces:
            for at, key, count in split(self.state, piece, IDLE)[0]:
                self.state[key : key + count] = KEPT * count
                self.idle -= count
                kept.append((at, key, count))
        return kept

    def let_go(self, kept: Iterable[Piece]) -> None:
        """Make chunks that `keep` returned idle again."""
        self.written(kept)

    def discard(self, pieces: Iterable[Piece]) -> None:
        """Free the chunks of keys that could not be written."""
        for _, key, count in pieces:
            self._forget(key, key + count, WRITTEN)
            self._freed += self._numbers(key, key + count)

    def _forget(self, first: int, end: int, state: bytes) -> None:
        count = end - first
        if self.state.count(state, first, end) != count:
            raise InvariantError(f"of {count} keys to free from {first} on not all are in state {state[0]}")
        self.state[first:end] = bytes(count)
        self.held -= count

    def written(self, pieces: Iterable[Piece]) -> None:
        """Mark chunks as written: they can be read from now on."""
        for _, key, count in pieces:
            self.state[key : key + count] = IDLE * count
            self.idle += count

    def read(self, pieces: Sequence[Piece]) -> list[int]:
        """Start to read chunks; returns their numbers."""
        state = self.state
        numbers: list[int] = []
        for _, key, count in pieces:
            end = key + count
            idle = state.count(IDLE, key, end)
            if idle < count:
                readers = self._readers
                for each in range(key, end):
                    if state[each] == READ[0]:
                        readers[each] = readers.get(each, 1) + 1
                    elif state[each] != IDLE[0]:
                        raise InvariantError(f"key {each} is read in state {state[each]}")
            state[key:end] = READ * count
            self.idle -= idle
            for run in self._numbers(key, end):
                numbers += run
        return numbers

    def was_read(self, pieces: Iterable[Piece]) -> None:
        """One reader has finished reading chunks."""
        state, readers = self.state, self._readers
        for _, key, count in pieces:
            end = key + count
            if state.count(READ, key, end) != count:
                raise InvariantError(f"of {count} keys from {key} on not all were being read")
            if not readers:
                state[key:end] = IDLE * count
                self.idle += count
                continue
            for each in range(key, end):
                more = readers.pop(each, 1) - 1
                if more > 1:
                    readers[each] = more
                elif not more:
                    state[each] = IDLE[0]
                    self.idle += 1
