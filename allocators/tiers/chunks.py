"""The chunks of a tier: which are free, what the others hold, and whether that is being written or read.

free      at first 0, 1, 2, ...; then the one that was freed last
state     of a key: ABSENT, IDLE (can be read or evicted), WRITTEN (is being written), READ (by somebody),
          KEPT (idle, but not to be evicted for what is stored now)
"""

from collections.abc import Iterable, Sequence
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
        By key.
    number : list of int
        The chunk of a key that is there.
    held, idle : int
        Keys that are there; those of them that are neither written nor read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.state = bytearray()
        self.number: list[int] = []
        self.held = self.idle = 0
        self._readers: dict[int, int] = {}  # of keys that more than one reads
        self._used = 0  # numbers that were ever handed out
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        """Chunks that hold nothing."""
        return self.capacity - self.held

    def know(self, keys: int) -> None:
        """Keys are below `keys` from now on."""
        new = keys - len(self.number)
        if new > 0:
            self.state += bytes(new)
            self.number += [-1] * new

    def references(self, key: int) -> int:
        """-1: it is being written; else by how many it is being read."""
        state = self.state[key]
        return -1 if state == WRITTEN[0] else self._readers.get(key, 1) if state == READ[0] else 0

    def clear(self) -> None:
        """All chunks are free, as at first."""
        self.state[:] = bytes(len(self.state))
        self._readers.clear()
        self._freed.clear()
        self.held = self.idle = self._used = 0

    def allocate(self, pieces: Sequence[Piece]) -> list[int]:
        """Begin to write chunks, for which there must be room; returns where they go."""
        count = pieces[0][2] if len(pieces) == 1 else size(pieces)
        fresh = min(self.capacity - self._used, count)
        numbers = [*range(self._used, self._used + fresh)]
        self._used += fresh
        reused = count - fresh
        if reused:
            numbers += self._freed[: -reused - 1 : -1]
            del self._freed[-reused:]
        at = 0
        for _, key, length in pieces:
            self.state[key : key + length] = WRITTEN * length
            self.number[key : key + length] = numbers[at : at + length]
            at += length
        self.held += count
        return numbers

    def evict(self, keys: Iterable[range]) -> None:
        """Free the chunks of keys that nobody writes or reads, which come in descending ranges."""
        for each in keys:
            first, end = each[-1], each[0] + 1
            self._forget(first, end, IDLE)
            self._freed += self.number[first:end][::-1]
            self.idle -= end - first

    def keep(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Let idle chunks stay until `let_go`; returns those of these that are."""
        kept: list[Piece] = []
        for piece in pieces:
            for at, key, count in split(self.state, piece, IDLE)[0]:
                self.state[key : key + count] = KEPT * count
                self.idle -= count
                kept.append((at, key, count))
        return kept

    def let_go(self, kept: Iterable[Piece]) -> None:
        """Chunks that `keep` returned are idle again."""
        self.written(kept)

    def discard(self, pieces: Iterable[Piece]) -> None:
        """Free the chunks of keys that could not be written."""
        for _, key, count in pieces:
            self._forget(key, key + count, WRITTEN)
            self._freed += self.number[key : key + count]

    def _forget(self, first: int, end: int, state: bytes) -> None:
        count = end - first
        if self.state.count(state, first, end) != count:
            raise InvariantError(f"of {count} keys to free from {first} on not all are in state {state[0]}")
        self.state[first:end] = bytes(count)
        self.held -= count

    def written(self, pieces: Iterable[Piece]) -> None:
        """They are there from now on."""
        for _, key, count in pieces:
            self.state[key : key + count] = IDLE * count
            self.idle += count

    def read(self, pieces: Sequence[Piece]) -> list[int]:
        """Somebody begins to read chunks; returns where they are."""
        state, numbers = self.state, []
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
            numbers += self.number[key:end]
        return numbers

    def was_read(self, pieces: Iterable[Piece]) -> None:
        """Somebody has read chunks."""
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
