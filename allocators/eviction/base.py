"""The contract of an eviction policy: what it is told, and what it answers. Integers only, and no clock.

    for block in blocks:                 a cache of `capacity` blocks, empty at the start
        if block in policy.held:
            policy.touch(block)          a hit
        else:
            policy.insert(block)         a miss: it comes in, others leave

A block is an integer; all are of one size. What holds for every policy (`check_eviction` of
allocators/eviction/contract.py tries it on any class):

1. `held` is exactly what was inserted and has not left; never more than `capacity`, unless the class says
   that it `overfills`.
2. `insert` and `touch` return what leaves by them, each block once. The block that came is held afterwards,
   unless it is itself among those that left.
3. Nothing leaves while there is room, unless the class says that it `leaves_room`.
4. The same calls, the same answers: chance would come from a seed of its own.

A policy that is `informed` is told of each request, before its blocks, what a server knows (`Chain`). One
that is `offline` knows the future: it is told when the block of each call is used next (`foresee`).
"""

from abc import abstractmethod
from collections.abc import Container, Sequence
from typing import ClassVar, NamedTuple, Protocol

from kvsim.allocators.option import NoOptions
from kvsim.allocators.records import InvariantError

NONE: tuple[int, ...] = ()
"""No block leaves."""


class Held(Container[int], Protocol):
    """The blocks in a cache."""

    def __len__(self) -> int: ...


class Chain(NamedTuple):
    """A request, as a server knows it before it looks its blocks up."""

    blocks: Sequence[int]
    """of its prompt, from the first on"""
    block_tokens: int = 16
    kind: int = 0
    """its category: requests of one kind come back after like times"""
    now_ms: int = 0
    """when it came; never decreases"""


class Eviction:
    """Chooses which blocks leave a full cache.

    Parameters
    ----------
    capacity : int
        Blocks that the cache has room for, at least 1.
    options : object
        Its own options, of the class that it `declares`; None: their defaults.
    """

    idea: ClassVar[str] = ""
    """the rule in one line, at most 70 characters"""
    used_by: ClassVar[str] = ""
    """which engines use it; at most 40 characters"""
    source: ClassVar[str] = ""
    """where the rule is from: a paper (name, venue and year), or a file of an engine"""
    checked: ClassVar[str] = ""
    """what it was found equal to; "": nothing but its description"""
    declares: ClassVar[type] = NoOptions
    """its own options: a frozen dataclass of `option` fields (allocators/option.py)"""
    informed: ClassVar[bool] = False
    """whether it wants to be told of requests (`meet`)"""
    offline: ClassVar[bool] = False
    """whether it needs the future (`foresee`): a bound, no policy for a server"""
    stack: ClassVar[bool] = False
    """whether a larger cache always holds what a smaller one does"""
    leaves_room: ClassVar[bool] = False
    """whether blocks may leave though there is room"""
    overfills: ClassVar[bool] = False
    """whether it may hold more than there is room for, as the engine does that it follows"""

    held: Held

    def __init__(self, capacity: int, options: object = None) -> None:
        if capacity < 1:
            raise InvariantError(f"a cache needs room for at least 1 block, got {capacity}")
        self.capacity = capacity
        self.options = self.declares() if options is None else options

    @abstractmethod
    def touch(self, block: int) -> Sequence[int]:
        """Use a block that is held; returns those that leave, most often none."""

    @abstractmethod
    def insert(self, block: int) -> Sequence[int]:
        """Take in a block that is not held; returns those that leave."""

    def meet(self, chain: Chain) -> None:
        """Hear of a request whose blocks are used by the next calls, in any order."""

    def foresee(self, uses: Sequence[int]) -> None:
        """Hear, for each call to come, when its block is used next: smaller is sooner, all are different."""
