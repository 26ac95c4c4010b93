"""The contract of a tier: memory below the GPU's that keeps chunks of prefixes. Integers only, and no clock.

    find     how many of these keys, from the first on, the tier has
    store    accepts keys, perhaps after evicting others, or refuses all of them; the write starts ...
    stored   ... and ends
    load     the read of keys that it has starts; they stay until ...
    loaded   ... it ends

A *chunk* is the keys and values of some consecutive blocks; its *key* stands for all text from the first
token to the end of the chunk. A chunk being written cannot be read, and a chunk being written or read cannot
be evicted. The caller is a *user*: a request, by its own integer, from `introduce` to `leave`. Keys are
numbers from 0 up, and come in pieces (allocators/tiers/pieces.py).

sim/serving/link.py computes how long a transfer takes; sim/serving/offload.py decides on transfers.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from kvsim.allocators.tiers.pieces import Piece


class Found(NamedTuple):
    """The result of a look-up."""

    hits: int
    """leading keys that are there, whether readable yet or not"""
    written: bool
    """whether one of them is still being written"""


class Stored:
    """The result of an accepted store.

    Attributes
    ----------
    pieces : sequence of Piece
        The offered chunks that it did not have and takes, in order.
    chunks : sequence of int
        The chunk number for each; only as many numbers if the tier notes none.
    evicted : sequence of range
        Keys that it evicted for them, in order.
    """

    __slots__ = ("chunks", "evicted", "pieces")

    def __init__(self, pieces: Sequence[Piece], chunks: Sequence[int], evicted: Sequence[range]) -> None:
        self.pieces, self.chunks, self.evicted = pieces, chunks, evicted


class Tier:
    """Memory for `capacity` chunks of one size."""

    capacity: int
    counts_offers: bool = False
    """whether the number of offers of a key matters"""

    @property
    @abstractmethod
    def held(self) -> int:
        """Chunks that hold something, including those being written."""

    @abstractmethod
    def know(self, keys: int) -> None:
        """Announce that keys are below `keys` from now on."""

    @abstractmethod
    def introduce(self, user: int) -> None:
        """Announce a user whose pieces say how deep in one text they are."""

    @abstractmethod
    def find(self, pieces: Sequence[Piece]) -> Found:
        """How many of these chunks are there, up to the first missing one; changes nothing."""

    @abstractmethod
    def lacks(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The leading chunks, up to the first that is there."""

    @abstractmethod
    def load(self, user: int, pieces: Sequence[Piece]) -> Sequence[int]:
        """Start to read chunks, all of which must be readable; returns their numbers, as in `Stored`."""

    @abstractmethod
    def hold(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Like `load`, but does not count as a use: chunks are copied elsewhere."""

    @abstractmethod
    def loaded(self, pieces: Sequence[Piece]) -> None:
        """The read of chunks has ended."""

    @abstractmethod
    def store(self, user: int, pieces: Sequence[Piece], kept: Sequence[Piece] = ()) -> Stored | None:
        """Start to write those of these chunks that are not there; None: there is no room.

        Neither these chunks nor the `kept` ones are evicted for it.
        """

    @abstractmethod
    def room(self, kept: Sequence[Piece]) -> int:
        """How many missing chunks there is room for now, if the `kept` ones stay."""

    @abstractmethod
    def stored(self, pieces: Sequence[Piece], failed: bool = False) -> None:
        """The write of chunks has ended, or `failed`."""

    @abstractmethod
    def leave(self, user: int) -> None:
        """A user has finished and makes no more calls."""
