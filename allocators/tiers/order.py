"""What a tier asks of an eviction order that knows who uses a chunk, and what is pinned.

The policies of allocators/eviction see one use after the other, and whatever they choose leaves. In a tier
chunks that are written or read stay, several are evicted at once or none, and vLLM tells the order of use
only when a request has finished. So its two orders are classes of their own.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from kvsim.allocators.tiers.chunks import Chunks
from kvsim.allocators.tiers.pieces import Piece, by_depth, one_by_one


class EvictionOrder:
    """Chooses among the idle chunks."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self._deep: set[int] = set()  # users whose pieces say how deep they are

    def know(self, keys: int) -> None:
        """Keys are below `keys` from now on."""

    def introduce(self, user: int) -> None:
        """Somebody comes whose pieces say how deep in one text they are."""
        self._deep.add(user)

    def head_first(self, user: int, pieces: Iterable[Piece]) -> list[Piece]:
        """What a user who leaves has used, the deepest last; where no depth is known, the last used last."""
        if user in self._deep:
            self._deep.discard(user)
            return by_depth(pieces)
        return [(0, key, 1) for key in dict.fromkeys(key for _, key, _ in one_by_one(pieces))]

    @abstractmethod
    def offer(self, user: int, missing: Sequence[Piece], usable: Sequence[Piece]) -> None:
        """A user offers chunks: those `missing` here, and in their order those that are not being written."""

    @abstractmethod
    def insert(self, user: int, pieces: Sequence[Piece]) -> None:
        """A user's chunks come in."""

    @abstractmethod
    def use(self, user: int, pieces: Sequence[Piece]) -> None:
        """A user loads chunks."""

    @abstractmethod
    def touch(self, user: int, pieces: Sequence[Piece]) -> None:
        """A user says that it uses chunks now, there or not."""

    @abstractmethod
    def remove(self, pieces: Sequence[Piece]) -> None:
        """Chunks could not be written."""

    @abstractmethod
    def choose(self, count: int) -> list[range] | None:
        """Give up so many idle keys; None, and no change: there are too few.

        They come in descending ranges.
        """

    @abstractmethod
    def leave(self, user: int) -> None:
        """A user has finished."""

    @abstractmethod
    def clear(self) -> None:
        """Everything is dropped."""
