"""The chunks of a tier: which are free, what the others hold, and whether that is being written or read.

free         at first 0, 1, 2, ...; then the one that was freed last
references   of a key: -1 it is being written; 0 it can be read or evicted; n so many are reading it
"""

from collections.abc import Sequence
from typing import Final

from kvsim.allocators.records import InvariantError

WRITTEN: Final = -1
"""References of a chunk that is being written."""


class Chunks:
    """Chunks by their keys.

    Attributes
    ----------
    references, number : dict of int
        By key, of those that hold something.
    idle : int
        Those of them that are neither written nor read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.references: dict[int, int] = {}
        self.number: dict[int, int] = {}
        self.idle = 0
        self._used = 0  # numbers that were ever handed out
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        """Chunks that hold nothing."""
        return self.capacity - len(self.references)

    def clear(self) -> None:
        """All chunks are free, as at first."""
        for of in (self.references, self.number, self._freed):
            of.clear()
        self.idle = self._used = 0

    def allocate(self, keys: Sequence[int]) -> list[int]:
        """Begin to write keys, for which there must be room; returns their chunks."""
        fresh = min(self.capacity - self._used, len(keys))
        numbers = [*range(self._used, self._used + fresh)]
        self._used += fresh
        reused = len(keys) - fresh
        if reused:
            numbers += self._freed[: -reused - 1 : -1]
            del self._freed[-reused:]
        self.number.update(zip(keys, numbers, strict=True))
        self.references.update(dict.fromkeys(keys, WRITTEN))
        return numbers

    def evict(self, keys: Sequence[int]) -> None:
        """Free the chunks of keys that nobody writes or reads."""
        self.idle -= len(keys)
        self._free(keys, 0)

    def discard(self, keys: Sequence[int]) -> None:
        """Free the chunks of keys that could not be written."""
        self._free(keys, WRITTEN)

    def _free(self, keys: Sequence[int], references: int) -> None:
        if list(map(self.references.pop, keys)).count(references) != len(keys):
            raise InvariantError(f"of {len(keys)} keys to free not all have {references} references")
        self._freed += map(self.number.pop, keys)

    def written(self, keys: Sequence[int]) -> None:
        """Keys are there from now on."""
        self.references.update(dict.fromkeys(keys, 0))
        self.idle += len(keys)

    def read(self, keys: Sequence[int]) -> list[int]:
        """Somebody begins to read keys; returns their chunks."""
        for key in keys:
            before = self.references[key]
            if before == WRITTEN:
                raise InvariantError(f"key {key} is read while it is being written")
            self.idle -= not before
            self.references[key] = before + 1
        return [self.number[key] for key in keys]

    def was_read(self, keys: Sequence[int]) -> None:
        """Somebody has read keys."""
        for key in keys:
            before = self.references[key]
            if before < 1:
                raise InvariantError(f"key {key} was read, but has {before} references")
            self.references[key] = before - 1
            self.idle += before == 1
