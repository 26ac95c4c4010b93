"""What a tier asks of an eviction order that knows who uses a chunk, and what is pinned.

The policies of allocators/eviction see one use after the other, and whatever they choose leaves. In a tier
chunks that are written or read stay, several are evicted at once or none, and vLLM tells the order of use
only when a request has finished. So its two orders are classes of their own.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from operator import lt

from kvsim.allocators.tiers.chunks import Chunks


class EvictionOrder:
    """Chooses among the idle chunks."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self._positions: dict[int, Mapping[int, int]] = {}  # by user

    def introduce(self, user: int, positions: Mapping[int, int]) -> None:
        """Somebody comes, with a text whose keys stand for so many tokens."""
        self._positions[user] = positions

    def head_first(self, user: int, keys: list[int]) -> list[int]:
        """Keys of a user who leaves, the deepest last; where no positions are known, the last used last."""
        positions = self._positions.pop(user, None)
        return by_depth(keys, positions) if positions else keys

    @abstractmethod
    def offer(self, user: int, missing: Sequence[int], usable: Sequence[int]) -> None:
        """A user offers keys: those `missing` here, and in their order those that are not being written."""

    @abstractmethod
    def insert(self, user: int, keys: Sequence[int]) -> None:
        """A user's keys come in."""

    @abstractmethod
    def use(self, user: int, keys: Sequence[int]) -> None:
        """A user loads keys."""

    @abstractmethod
    def touch(self, user: int, keys: Sequence[int]) -> None:
        """A user says that it uses keys now, there or not."""

    @abstractmethod
    def remove(self, keys: Sequence[int]) -> None:
        """Keys could not be written."""

    @abstractmethod
    def choose(self, count: int, kept: Set[int]) -> list[int] | None:
        """Give up so many idle keys, of which none is in `kept`; None, and no change: there are too few."""

    @abstractmethod
    def leave(self, user: int) -> None:
        """A user has finished."""

    @abstractmethod
    def clear(self) -> None:
        """Everything is dropped."""


def by_depth(keys: list[int], positions: Mapping[int, int], larger_first: bool = False) -> list[int]:
    """Keys in the order of their positions; of equals, the smaller key first, or the larger."""
    depths: list[int | None] = list(map(positions.get, keys))
    if None not in depths and all(map(lt, depths, depths[1:])):  # type: ignore[arg-type]  # most often
        return keys
    sign = -1 if larger_first else 1
    return sorted(keys, key=lambda key: (positions.get(key, 0), sign * key))
