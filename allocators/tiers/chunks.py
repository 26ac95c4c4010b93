"""The chunks of a tier: how many are free, what the others hold, and whether they are being written or read.

state     of a key: ABSENT, IDLE (can be read or evicted), WRITTEN (being written), READ (being read),
          KEPT (idle, but not to be evicted for the current store)

A run does not depend on which chunk of the host holds a key; numbered.py numbers chunks as vLLM does.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from kvsim.allocators.records import InvariantError
from kvsim.allocators.tiers.pieces import Piece, size, split

ABSENT: Final = b"\0"
IDLE: Final = b"\1"
WRITTEN: Final = b"\2"
READ: Final = b"\3"
KEPT: Final = b"\4"

# assigning a bytearray to a slice of another makes no copy, unlike bytes
_ABSENT: Final = bytearray(ABSENT)
_IDLE: Final = bytearray(IDLE)
_WRITTEN: Final = bytearray(WRITTEN)
_READ: Final = bytearray(READ)
_KEPT: Final = bytearray(KEPT)

placeholders = cache(range)
"""As many numbers as asked for, where only how many they are matters."""


class Chunks:
    """Chunks by their keys.

    Attributes
    ----------
    state : bytearray
        State by key.
    held, idle : int
        Present keys, and how many of them are neither being written nor read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.state = bytearray()
        self.held = self.idle = 0
        self._readers: dict[int, int] = {}  # readers of keys that have more than one

    @property
    def free(self) -> int:
        """Chunks that hold nothing."""
        return self.capacity - self.held

    def know(self, keys: int) -> None:
        """Announce that all keys will be below `keys`."""
        more = keys - len(self.state)
        if more > 0:
            self.state += bytes(more)

    def references(self, key: int) -> int:
        """-1: the key is being written; else its number of readers."""
        state = self.state[key]
        return -1 if state == WRITTEN[0] else self._readers.get(key, 1) if state == READ[0] else 0

    def clear(self) -> None:
        """Free all chunks."""
        self.state[:] = bytes(len(self.state))
        self._readers.clear()
        self.held = self.idle = 0

    def allocate(self, pieces: list[Piece]) -> Sequence[int]:
        """Start to write chunks, for which there must be room; returns as many numbers."""
        count = pieces[0][2] if len(pieces) == 1 else size(pieces)
        for _, key, length in pieces:
            self.state[key : key + length] = _WRITTEN * length
        self.held += count
        return placeholders(count)

    def evict(self, runs: list[tuple[int, int]]) -> None:
        """Free the chunks of idle keys: the first and the number of each run."""
        for key, count in runs:
            self._forget(key, count, IDLE)
            self.idle -= count

    def keep(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Protect the idle ones of these chunks until `let_go`; returns them."""
        kept: list[Piece] = []
        for piece in pieces:
            for at, key, count in split(self.state, piece, IDLE)[0]:
                self.state[key : key + count] = _KEPT * count
                self.idle -= count
                kept.append((at, key, count))
        return kept

    def let_go(self, kept: list[Piece]) -> None:
        """Make chunks protected by `keep` idle again."""
        self.written(kept)

    def discard(self, pieces: list[Piece]) -> None:
        """Free the chunks of keys that could not be written."""
        for _, key, count in pieces:
            self._forget(key, count, WRITTEN)

    def _forget(self, key: int, count: int, state: bytes) -> None:
        if not self.state.startswith(state * count, key):
            raise InvariantError(f"of {count} keys to free from {key} on not all are in state {state[0]}")
        self.state[key : key + count] = _ABSENT * count
        self.held -= count

    def written(self, pieces: list[Piece]) -> None:
        """Mark chunks as written: they can be read from now on."""
        for _, key, count in pieces:
            self.state[key : key + count] = _IDLE * count
            self.idle += count

    def read(self, pieces: list[Piece]) -> Sequence[int]:
        """Start to read chunks; returns as many numbers."""
        state = self.state
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
            state[key:end] = _READ * count
            self.idle -= idle
        return placeholders(size(pieces))

    def was_read(self, pieces: list[Piece]) -> None:
        """One reader has finished with these chunks."""
        state, readers = self.state, self._readers
        for _, key, count in pieces:
            end = key + count
            if not state.startswith(READ * count, key):
                raise InvariantError(f"of {count} keys from {key} on not all were being read")
            if not readers:
                state[key:end] = _IDLE * count
                self.idle += count
                continue
            for each in range(key, end):
                more = readers.pop(each, 1) - 1
                if more > 1:
                    readers[each] = more
                elif not more:
                    state[each] = IDLE[0]
                    self.idle += 1
