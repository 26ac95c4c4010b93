"""The chunks of a tier: which are free, what the others hold, and whether that is being written or read.

free         at first 0, 1, 2, ...; then the one that was freed last
references   -1 it is being written; 0 it can be read or evicted; n so many are reading it
"""

from kvsim.allocators.records import InvariantError

WRITTEN = -1
"""References of a chunk that is being written."""


class Chunk:
    """A chunk that holds something."""

    __slots__ = ("number", "references")

    def __init__(self, number: int) -> None:
        self.number = number
        self.references = WRITTEN


class Chunks:
    """Chunks by their keys.

    Attributes
    ----------
    of : dict of Chunk
        By key, those that hold something.
    idle : int
        Those of them that are neither written nor read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.of: dict[int, Chunk] = {}
        self.idle = 0
        self._used = 0  # numbers that were ever handed out
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        """Chunks that hold nothing."""
        return self.capacity - len(self.of)

    def clear(self) -> None:
        """All chunks are free, as at first."""
        self.of.clear()
        self._freed.clear()
        self.idle = self._used = 0

    def allocate(self, key: int) -> int:
        """Begin to write a key; returns its chunk."""
        if self._used < self.capacity:
            number = self._used
            self._used += 1
        else:
            number = self._freed.pop()
        self.of[key] = Chunk(number)
        return number

    def evict(self, key: int) -> None:
        """Free the chunk of a key that nobody writes or reads."""
        self.idle -= 1
        self._free(key, 0)

    def discard(self, key: int) -> None:
        """Free the chunk of a key that could not be written."""
        self._free(key, WRITTEN)

    def _free(self, key: int, references: int) -> None:
        chunk = self.of.pop(key)
        if chunk.references != references:
            raise InvariantError(f"key {key} is freed with {chunk.references} references, not {references}")
        self._freed.append(chunk.number)

    def written(self, key: int) -> None:
        """A key is there from now on."""
        self.of[key].references = 0
        self.idle += 1

    def read(self, key: int) -> int:
        """Somebody begins to read a key; returns its chunk."""
        chunk = self.of[key]
        if chunk.references == WRITTEN:
            raise InvariantError(f"key {key} is read while it is being written")
        self.idle -= not chunk.references
        chunk.references += 1
        return chunk.number

    def was_read(self, key: int) -> bool:
        """Somebody has read it; whether nobody else does."""
        chunk = self.of[key]
        if chunk.references < 1:
            raise InvariantError(f"key {key} was read, but has {chunk.references} references")
        chunk.references -= 1
        self.idle += not chunk.references
        return not chunk.references
