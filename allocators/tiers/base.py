"""The contract of a tier: memory below the GPU's that keeps chunks of prefixes. Integers only, and no clock.

    find     how many of these keys, from the first on, it has
    store    accepts keys, perhaps after it evicted others, or refuses all of them; they are written ...
    stored   ... until now
    load     keys that it has are read, and stay until ...
    loaded   ... now

A *chunk* is the keys and values of some blocks that follow each other; its *key* stands for all text from the
first token to the end of the chunk. What is being written cannot be read, and what is being written or read
cannot be evicted. Who asks is a *user*: a request, by an integer of its own, from `introduce` to `leave`.

How long a transfer takes is for sim/serving/link.py; who decides on it, for sim/serving/tiers.py.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """What a look-up found."""

    hits: int
    """keys from the first on that are there, whether they can be read yet or not"""
    written: bool
    """whether one of them is still being written"""


class Stored(NamedTuple):
    """What a tier accepted."""

    keys: Sequence[int]
    """those of the keys offered that it did not have and takes, in their order"""
    chunks: Sequence[int]
    """where each goes"""
    evicted: Sequence[int]
    """keys that it gave up for them"""


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
    def introduce(self, user: int, positions: Mapping[int, int]) -> None:
        """Somebody comes; `positions` has for keys of its text how many tokens they stand for."""

    @abstractmethod
    def find(self, keys: Sequence[int]) -> Found:
        """How many of these keys are there, up to the first that is not; changes nothing."""

    @abstractmethod
    def load(self, user: int, keys: Sequence[int]) -> list[int]:
        """Begin to read keys, all of which can be; returns their chunks."""

    @abstractmethod
    def loaded(self, keys: Sequence[int]) -> None:
        """They are read."""

    @abstractmethod
    def store(self, user: int, keys: Sequence[int]) -> Stored | None:
        """Begin to write those of these keys that are not there; None: there is no room."""

    @abstractmethod
    def stored(self, keys: Sequence[int], failed: bool = False) -> None:
        """They are written, or `failed` to be."""

    @abstractmethod
    def leave(self, user: int) -> None:
        """Somebody has finished: it asks for nothing any more."""
