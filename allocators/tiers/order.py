"""The eviction order of a tier, which is told the users of chunks and skips pinned chunks.

The policies of allocators/eviction see one use at a time, and their choice is always evicted. In a tier,
chunks being written or read stay, several are evicted together or none, and vLLM reports the order of use
only when a request has finished. So vLLM's two orders are separate classes.
"""

from abc import abstractmethod

from kvsim.allocators.tiers.chunks import Chunks
from kvsim.allocators.tiers.pieces import Piece, by_depth, one_by_one


class EvictionOrder:
    """Chooses among the idle chunks."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self._deep: set[int] = set()  # users whose pieces have depths

    def know(self, keys: int) -> None:
        """Announce that all keys will be below `keys`."""

    def introduce(self, user: int) -> None:
        """Announce a user whose pieces say how deep in one text they are."""
        self._deep.add(user)

    def head_first(self, user: int, pieces: list[Piece]) -> list[Piece]:
        """What a leaving user has used, the deepest last; if depths are unknown, the last used last."""
        if user in self._deep:
            self._deep.discard(user)
            return by_depth(pieces)
        return [(0, key, 1) for key in dict.fromkeys(key for _, key, _ in one_by_one(pieces))]

    @abstractmethod
    def offer(self, user: int, missing: list[Piece], usable: list[Piece]) -> None:
        """A user offers chunks: those `missing` here, and (in order) those that are not being written."""

    @abstractmethod
    def insert(self, user: int, pieces: list[Piece]) -> None:
        """A user's chunks were added."""

    @abstractmethod
    def use(self, user: int, pieces: list[Piece]) -> None:
        """A user loads chunks."""

    @abstractmethod
    def touch(self, user: int, pieces: list[Piece]) -> None:
        """A user reports that it uses chunks now, present or not."""

    @abstractmethod
    def remove(self, pieces: list[Piece]) -> None:
        """Chunks could not be written and are dropped."""

    @abstractmethod
    def choose(self, count: int) -> list[tuple[int, int]]:
        """Choose `count` idle keys to evict, which must exist; returns them as `Stored` does."""

    @abstractmethod
    def leave(self, user: int) -> None:
        """A user has finished."""

    @abstractmethod
    def clear(self) -> None:
        """Drop everything."""
