"""The contract of a tier: memory below the GPU's that keeps chunks of prefixes. Integers only, and no clock.

    find     how many of these keys, from the first on, the tier has
    store    accepts keys, perhaps after evicting others, or refuses all of them; the write starts ...
    stored   ... and ends
    load     the read of keys that it has starts; they stay until ...
    loaded   ... it ends

A *chunk* is the keys and values of some consecutive blocks; its *key* stands for all text from the first
token to the end of the chunk. A chunk being written cannot be read, and a chunk being written or read cannot
be evicted. The caller is a *user*: a request with its own integer, from `introduce` to `leave`. Keys are
numbers from 0 up, and come in pieces (allocators/tiers/pieces.py).

sim/serving/link.py computes how long a transfer takes; sim/serving/offload.py decides on transfers.
"""

from abc import abstractmethod
from collections.abc import Sequence

from kvsim.allocators.tiers.pieces import Piece


class Stored:
    """The result of an accepted store.

    Attributes
    ----------
    pieces : sequence of Piece
        The offered chunks that it lacked and now takes, in order.
    chunks : sequence of int
        The number of each chunk; placeholders if the tier does not number chunks.
    evicted : list of (int, int)
        Runs of keys evicted for them, in order: first key and count of each, from whose end they went.
    """

    __slots__ = ("chunks", "evicted", "pieces")

    def __init__(self, pieces: list[Piece], chunks: Sequence[int], evicted: list[tuple[int, int]]) -> None:
        self.pieces, self.chunks, self.evicted = pieces, chunks, evicted


class Tier:
    """Memory for `capacity` chunks of one size."""

    capacity: int
    counts_offers: bool = False
    """whether it counts how often a key is offered"""

    @property
    @abstractmethod
    def held(self) -> int:
        """Chunks that hold something or are being written."""

    @abstractmethod
    def know(self, keys: int) -> None:
        """Announce that all keys will be below `keys`."""

    @abstractmethod
    def introduce(self, user: int) -> None:
        """Announce a user whose pieces give the depth of each chunk in one text."""

    @abstractmethod
    def find(self, pieces: list[Piece]) -> tuple[int, bool]:
        """How many of these chunks are present, up to the first missing one; whether any is being written."""

    @abstractmethod
    def lacks(self, pieces: list[Piece]) -> list[Piece]:
        """The leading missing chunks, up to the first present one."""

    @abstractmethod
    def load(self, user: int, pieces: list[Piece]) -> Sequence[int]:
        """Start to read chunks, all of which must be readable; returns their numbers, as in `Stored`."""

    @abstractmethod
    def hold(self, pieces: list[Piece]) -> Sequence[int]:
        """Like `load`, for copies to another tier: does not count as a use."""

    @abstractmethod
    def loaded(self, pieces: list[Piece]) -> None:
        """The read of chunks has ended."""

    @abstractmethod
    def store(self, user: int, pieces: list[Piece], kept: Sequence[Piece] = ()) -> Stored | None:
        """Start to write the missing ones of these chunks; None: there is no room.

        Neither these chunks nor the `kept` ones are evicted to make room.
        """

    @abstractmethod
    def room(self, kept: Sequence[Piece]) -> int:
        """Room for how many missing chunks, now, if the `kept` ones stay."""

    @abstractmethod
    def stored(self, pieces: list[Piece], failed: bool = False) -> None:
        """The write of chunks has ended, or has `failed`."""

    @abstractmethod
    def leave(self, user: int) -> None:
        """A user has finished and makes no more calls."""
