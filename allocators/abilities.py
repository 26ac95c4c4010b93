"""The abilities (protocols.py) of an allocator, checked once, when the engine builds a server.

abilities = Abilities.of(allocator)
abilities.prefixes                         the allocator, if it keeps prefixes, or None
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvsim.allocators.base import Allocator, Match
from kvsim.allocators.protocols import (
    AfterSteps,
    Branches,
    InGroups,
    InSpans,
    LeavesBehind,
    Pieces,
    Prefixes,
    ReadsHoles,
    Swaps,
)


@dataclass(frozen=True)
class Abilities:
    """What an allocator can do, and which defaults of the contract it overrides."""

    prefixes: Prefixes | None
    """it keeps prefixes"""
    can_hold_after: Callable[[Match, int, int], bool] | None
    """like `can_hold`, for a new sequence that shares what `match` found"""
    pieces: Pieces | None
    ends_pieces: Pieces | None
    """the same object as `pieces`, if it decides where chunks end; else None"""
    leaves_behind: LeavesBehind | None
    branches: Branches | None
    swaps: Swaps | None
    after_steps: AfterSteps | None
    in_spans: InSpans | None
    reads_holes: ReadsHoles | None
    in_groups: InGroups | None
    surplus: bool
    """`surplus` is not simply `capacity` minus tokens"""
    external_slots: bool
    """free slots may be external"""
    rests: bool
    """free slots may be external, cached or idle"""

    @classmethod
    def of(cls, allocator: Allocator) -> "Abilities":
        kind = type(allocator)
        prefixes = allocator if allocator.caches and isinstance(allocator, Prefixes) else None
        pieces = allocator if isinstance(allocator, Pieces) else None
        external = kind.external_slots is not Allocator.external_slots
        return cls(
            prefixes=prefixes,
            can_hold_after=None
            if prefixes is None
            else getattr(allocator, "can_hold_after", allocator.can_admit_after),
            pieces=pieces,
            ends_pieces=pieces if pieces is not None and pieces.ends_pieces else None,
            leaves_behind=allocator if isinstance(allocator, LeavesBehind) else None,
            branches=allocator if isinstance(allocator, Branches) else None,
            swaps=allocator if isinstance(allocator, Swaps) else None,
            after_steps=allocator if isinstance(allocator, AfterSteps) else None,
            in_spans=allocator if isinstance(allocator, InSpans) else None,
            reads_holes=allocator if isinstance(allocator, ReadsHoles) else None,
            in_groups=allocator if isinstance(allocator, InGroups) else None,
            surplus=kind.surplus is not Allocator.surplus,
            external_slots=external,
            rests=external or allocator.idles or allocator.caches,
        )
