"""The KV memory of a server: its allocator, and what is counted of it while sequences run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.request import Request


@dataclass(frozen=True)
class Abilities:
    """Which parts of the contract an allocator does in a way of its own; the others need not be asked."""

    leaves_at: bool
    surplus: bool
    external_slots: bool
    windows: bool
    knows_prompts: bool
    rests: bool
    """slots that are external, cached or idle"""

    @classmethod
    def of(cls, allocator: Allocator) -> Self:
        """Of an allocator, by the methods that its class has."""
        kind = type(allocator)
        external = kind.external_slots is not Allocator.external_slots
        return cls(
            leaves_at=kind.leaves_at is not Allocator.leaves_at,
            surplus=kind.surplus is not Allocator.surplus,
            external_slots=external,
            windows=allocator.windows,
            knows_prompts=allocator.knows_prompts,
            rests=external or allocator.idles or allocator.caches,
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class KvMemory:
    """An allocator, and the slots that are not what they seem.

    Attributes
    ----------
    abilities : Abilities
        What the allocator can do; asked once.
    internal : int
        Allocated slots that will never be written.
    prefill_held : int
        Tokens held by sequences that do not decode.
    admissions : int
        Sequences that were placed so far: the id of the next one.
    admitted_slots : int
        Slots that admissions took; counted where free slots may be useless.
    below : callable or None
        How many tokens of a request's prompt a tier below has behind the first so many.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.abilities = Abilities.of(allocator)
        self.internal = 0
        self.prefill_held = 0
        self.admissions = 0
        self.admitted_slots = 0
        self.below: Callable[[Request, int], int] | None = None

    def new_seq(self) -> int:
        """The id of a sequence that is placed now: they count admissions and forks."""
        seq = self.admissions
        self.admissions += 1
        return seq

    def set_internal(self, request: Request, slots: int) -> None:
        """So many of a request's slots will never be written."""
        self.internal += slots - request.internal
        request.internal = slots

    def internal_slots(self) -> int:
        """Allocated slots that will never be written, or not before somebody owns them alone."""
        if self.allocator.shared_tokens:
            return self.internal + self.allocator.shared_tail_slots()
        return self.internal

    def publish(self, request: Request, step: Decision) -> None:
        """A chunk that `step` computed is there: from now on its prefix can be found."""
        self.allocator.fill(request.seq, request.computed)

    def free(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Free a request's memory. Its prefix can be found again, but for the last `unknown` tokens."""
        allocator = self.allocator
        if allocator.caches:
            allocator.fill(request.seq, request.computed - unknown)
        if comes_back:
            allocator.evict(request.seq)
        else:
            allocator.release(request.seq)
        self.internal -= request.internal
        request.internal = 0
