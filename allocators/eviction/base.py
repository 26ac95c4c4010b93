"""The contract of an eviction policy: its calls and its answers. Integers only, and no clock.

    for block in blocks:                 a cache of `capacity` blocks, empty at the start
        if block in policy.held:
            policy.touch(block)          a hit
        else:
            policy.insert(block)         a miss: the block is inserted, others leave

A block is an integer; all have the same size. Rules for every policy (`check_eviction` of
allocators/eviction/contract.py checks them on any class):

1. `held` is exactly what was inserted and has not left; never more than `capacity`, unless the class sets
   `overfills`.
2. `insert` and `touch` return the blocks that they evict, each once. The inserted block is held afterwards,
   unless it is itself among those evicted.
3. Nothing is evicted while there is room, unless the class sets `leaves_room`.
4. The same calls give the same answers: randomness would come from its own seed.

An `informed` policy is told, before the blocks of each request, what a server knows about it (`Chain`). An
`offline` policy knows the future: it is told when the block of each call is used next (`foresee`).
"""

from abc import abstractmethod
from collections.abc import Container, Sequence
from typing import ClassVar, NamedTuple, Protocol

from kvsim.allocators.option import NoOptions
from kvsim.allocators.records import InvariantError

NONE: tuple[int, ...] = ()
"""No block is evicted."""


class Held(Container[int], Protocol):
    """The blocks in a cache."""

    def __len__(self) -> int: ...


class Chain(NamedTuple):
    """What a server knows about a request before looking up its blocks."""

    blocks: Sequence[int]
    """blocks of its prompt, from the first on"""
    block_tokens: int = 16
    kind: int = 0
    """its category: requests of one kind are reused after similar times"""
    now_ms: int = 0
    """arrival time; never decreases"""


class Eviction:
    """Chooses which blocks leave a full cache.

    Parameters
    ----------
    capacity : int
        Capacity of the cache in blocks, at least 1.
    options : object
        Its own options, of the class that it `declares`; None: the defaults.
    """

    idea: ClassVar[str] = ""
    """the rule in one line, at most 70 characters"""
    used_by: ClassVar[str] = ""
    """which engines use it; at most 40 characters"""
    source: ClassVar[str] = ""
    """where the rule comes from: a paper (name, venue and year), or a file of an engine"""
    checked: ClassVar[str] = ""
    """what it was verified against; "": only its description"""
    declares: ClassVar[type] = NoOptions
    """its own options: a frozen dataclass of `option` fields (allocators/option.py)"""
    informed: ClassVar[bool] = False
    """whether it is told about requests (`meet`)"""
    offline: ClassVar[bool] = False
    """whether it must know the future (`foresee`): a bound, not a usable policy"""
    stack: ClassVar[bool] = False
    """whether a larger cache always holds everything that a smaller one does"""
    leaves_room: ClassVar[bool] = False
    """whether it may evict although there is room"""
    overfills: ClassVar[bool] = False
    """whether it may exceed the capacity, as the engine it models does"""

    held: Held

    def __init__(self, capacity: int, options: object = None) -> None:
        if capacity < 1:
            raise InvariantError(f"a cache needs room for at least 1 block, got {capacity}")
        self.capacity = capacity
        self.options = self.declares() if options is None else options

    @abstractmethod
    def touch(self, block: int) -> Sequence[int]:
        """Use a held block; returns the blocks evicted, usually none."""

    @abstractmethod
    def insert(self, block: int) -> Sequence[int]:
        """Insert a block that is not held; returns the blocks evicted."""

    def meet(self, chain: Chain) -> None:
        """Announce a request; the next calls use its blocks, in any order."""

    def foresee(self, uses: Sequence[int]) -> None:
        """For each future call, tell when its block is used next: smaller is sooner, no two are equal."""
