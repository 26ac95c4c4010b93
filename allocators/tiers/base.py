"""The contract of a tier: memory below the GPU's that keeps chunks of prefixes. Integers only, and no clock.

    find     how many of these keys, from the first on, it has
    store    accepts keys, perhaps after it evicted others, or refuses all of them; they are written ...
    stored   ... until now
    load     keys that it has are read, and stay until ...
    loaded   ... now

A *chunk* is the keys and values of some blocks that follow each other; its *key* stands for all text from the
first token to the end of the chunk. What is being written cannot be read, and what is being written or read
cannot be evicted. Who asks is a *user*: a request, by an integer of its own, from `introduce` to `leave`.
Keys are numbers from 0 on, and come in pieces (allocators/tiers/pieces.py).

How long a transfer takes is for sim/serving/link.py; who decides on it, for sim/serving/offload.py.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from kvsim.allocators.tiers.pieces import Piece


class Found(NamedTuple):
    """What a look-up found."""

    hits: int
    """keys from the first on that are there, whether they can be read yet or not"""
    written: bool
    """whether one of them is still being written"""


class Stored(NamedTuple):
    """What a tier accepted."""

    pieces: Sequence[Piece]
    """those of the chunks offered that it did not have and takes, in their order"""
    chunks: Sequence[int]
    """where each goes"""
    evicted: Sequence[range]
    """keys that it gave up for them, in their order"""


class Tier:
    """Memory for `capacity` chunks of one size."""

    capacity: int
    counts_offers: bool = False
    """whether it matters how often a key is offered"""

    @property
    @abstractmethod
    def held(self) -> int:
        """Chunks that hold something, those that are being written included."""

    @abstractmethod
    def know(self, keys: int) -> None:
        """Keys are below `keys` from now on."""

    @abstractmethod
    def introduce(self, user: int) -> None:
        """Somebody comes whose pieces say how deep in one text they are."""

    @abstractmethod
    def find(self, pieces: Sequence[Piece]) -> Found:
        """How many of these chunks are there, up to the first that is not; changes nothing."""

    @abstractmethod
    def lacks(self, pieces: Sequence[Piece]) -> list[Piece]:
        """These chunks up to the first that is there."""

    @abstractmethod
    def load(self, user: int, pieces: Sequence[Piece]) -> list[int]:
        """Begin to read chunks, all of which can be; returns where they are."""

    @abstractmethod
    def hold(self, pieces: Sequence[Piece]) -> list[int]:
        """As `load`, but it is no use: chunks are copied elsewhere."""

    @abstractmethod
    def loaded(self, pieces: Sequence[Piece]) -> None:
        """They are read."""

    @abstractmethod
    def store(self, user: int, pieces: Sequence[Piece], kept: Sequence[Piece] = ()) -> Stored | None:
        """Begin to write those of these chunks that are not there; None: there is no room.

        None of them leaves for the others, nor does what is `kept`.
        """

    @abstractmethod
    def room(self, kept: Sequence[Piece]) -> int:
        """For how many chunks that are not there is room now, if what is `kept` stays."""

    @abstractmethod
    def stored(self, pieces: Sequence[Piece], failed: bool = False) -> None:
        """They are written, or `failed` to be."""

    @abstractmethod
    def leave(self, user: int) -> None:
        """Somebody has finished: it asks for nothing any more."""
