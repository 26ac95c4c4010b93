"""The KV memory of a server: its allocator, and counters kept while sequences run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mypy_extensions import mypyc_attr

from kvsim.allocators.abilities import Abilities
from kvsim.allocators.base import Allocator, Match
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.request import Request


class Level(Protocol):
    """A tier further below, behind the one that the GPU loads from."""

    @property
    def column(self) -> str:
        """The column of the timeline that tells what it holds."""

    @property
    def held_bytes(self) -> int:
        """What it holds, including what is still being written."""


class Used(Protocol):
    """The link of a tier further below, or one that replicas share."""

    def called(self, place: int) -> str:
        """What the replica in this place of a fleet calls it."""

    def busy_by(self, loads: bool, end_ps: int) -> tuple[int, int]:
        """For how long it was in use until `end_ps`, or until the last copy came; and until when."""


@dataclass
class Below:
    """Tiers below the GPU's memory: whom a server asks and tells, and what is reported of them."""

    find: Callable[[Request, int], int] | None = None
    """(request, n) -> tokens of its prompt that the nearest tier has after the first n"""
    preempts: Callable[[Request], None] | None = None
    """(request): told before the memory of a preempted request is freed"""
    stack: Sequence[Level] = ()
    """the tiers behind the nearest, from the top"""
    links: list[Used] = field(default_factory=list)
    """links that copies use besides the GPU's own"""


@mypyc_attr(allow_interpreted_subclasses=True)
class KvMemory:
    """An allocator, and counters of slots that are not what they seem.

    Attributes
    ----------
    abilities : Abilities
        What the allocator can do; asked once.
    prefixes : Prefixes or None
        The allocator, if it keeps prefixes.
    windows : bool
        Whether a token may take several slots, or no longer any.
    internal : int
        Allocated slots that will never be written.
    prefill_held : int
        Tokens held by sequences that do not decode.
    admissions : int
        Sequences placed so far: the id of the next one.
    admitted_slots : int
        Slots that admissions took; counted if free slots may be useless.
    below : Below
        Tiers below it, if there are any.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.abilities = abilities = Abilities.of(allocator)
        self.prefixes = abilities.prefixes
        self.windows = allocator.windows
        self.internal = 0
        self.prefill_held = 0
        self.admissions = 0
        self.admitted_slots = 0
        self.below = Below()

    def new_seq(self) -> int:
        """The id of a sequence that is placed now: ids count admissions and forks."""
        seq = self.admissions
        self.admissions += 1
        return seq

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """Place a new sequence that shares what `match` found; False if there is no room."""
        assert self.prefixes is not None
        return self.prefixes.admit_after(match, seq, tokens, bound)

    def can_hold(self, match: Match | None, tokens: int, bound: int) -> bool:
        """Whether a new sequence that shares what `match` found would have room to grow to `tokens`."""
        can_hold_after = self.abilities.can_hold_after
        if match is None or can_hold_after is None:
            return self.allocator.can_hold(tokens, bound)
        return can_hold_after(match, tokens, bound)

    def set_internal(self, request: Request, slots: int) -> None:
        """Set how many of a request's slots will never be written."""
        self.internal += slots - request.internal
        request.internal = slots

    def internal_slots(self) -> int:
        """Allocated slots that will never be written, or only once a single sequence owns them."""
        if self.allocator.shared_tokens:
            return self.internal + self.allocator.shared_tail_slots()
        return self.internal

    def publish(self, request: Request, step: Decision) -> None:
        """A chunk that `step` computed is stored: from now on its prefix can be found."""
        if self.prefixes is not None:
            self.prefixes.fill(request.seq, request.computed)

    def free(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Free a request's memory. Its prefix can still be found, except the last `unknown` tokens."""
        allocator = self.allocator
        if self.prefixes is not None:
            self.prefixes.fill(request.seq, request.computed - unknown)
        if comes_back:
            if self.below.preempts is not None:
                self.below.preempts(request)
            allocator.evict(request.seq)
        else:
            allocator.release(request.seq)
        self.internal -= request.internal
        request.internal = 0
