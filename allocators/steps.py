"""One call of an allocator: the call, its outcome, and the allocator before and after.

    State --- call, outcome or error ---> State        a Step

Created by allocators/walk.py, checked by allocators/rules.py.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvsim.allocators.base import Allocator, Ledger, Region

NEEDS = (1, 2, 5, 16, 60, 256, 1_000)
"""Request sizes for which `external_slots` is recorded."""


class State(NamedTuple):
    """All that can be observed of an allocator without changing it."""

    used: int
    free: int
    cached: int
    idle: int
    shared: int
    expired: int
    states: int
    copied: int
    cow: int
    maps: int
    unmaps: int
    budget: int
    largest: int
    external: tuple[int, ...]
    admits: tuple[bool, ...]
    regions: tuple[Region, ...]
    capacities: dict[int, int]

    @classmethod
    def of(cls, allocator: Allocator, seqs: Iterable[int], before: "State | None" = None) -> "State":
        """The current state, given the sequences that hold something.

        Reuses the regions of the state `before` if they are equal.
        """
        capacity, regions = allocator.capacity_slots, tuple(allocator.regions())
        return cls(
            used=allocator.used_slots,
            free=allocator.free_slots,
            cached=allocator.cached_slots,
            idle=allocator.idle_slots,
            shared=allocator.shared_tokens,
            expired=allocator.expired_slots,
            states=allocator.state_slots,
            copied=allocator.copied_slots,
            cow=allocator.cow_copies,
            maps=allocator.maps,
            unmaps=allocator.unmaps,
            budget=allocator.growth_budget(),
            largest=allocator.largest_free_extent(),
            external=tuple(allocator.external_slots(need) for need in NEEDS),
            admits=tuple(allocator.can_admit(size, size) for size in (1, capacity // 3 + 1, capacity)),
            regions=before.regions if before and before.regions == regions else regions,
            capacities={seq: allocator.capacity(seq) for seq in seqs},
        )


class Step(NamedTuple):
    """One call; `tokens` and `ledger` (or its error message) are as after the call."""

    call: str
    outcome: object
    error: str
    mistake: bool
    before: State
    after: State
    fresh: State
    tokens: dict[int, int]
    ledger: Ledger | str
    capacity_slots: int
    slots_per_token: int = 1
    idles: bool = False
    frees_when_refused: bool = False
    moves_on_release: bool = False
    moves_in_part: bool = False
    most_sequences: int | None = None
    foretold: bool | None = None
    fits: bool | None = None
    grown: tuple[int, ...] = ()
    growth_unit: int = 0
    revived: tuple[tuple[int, int], ...] = ()


class Sums(NamedTuple):
    """Sums over regions; `gap` describes the first region that does not follow its predecessor."""

    owned: int
    cached: int
    idle: int
    once: bool
    of_sequence: dict[int, int]
    end: int
    gap: str


class _Latest:
    """Caches the sums of the last regions, as about every other call changes none."""

    regions: tuple[Region, ...] | None = None
    sums: Sums


def sums_of(regions: tuple[Region, ...]) -> Sums:
    """The sums over all regions that the rules need, in one pass."""
    if regions is _Latest.regions:
        return _Latest.sums
    owned, cached, idle, once, of_sequence = 0, 0, 0, True, dict[int, int]()
    end, gap = 0, ""
    for region in regions:
        start, size, owners, _, is_cached, is_idle, *_ = region
        if (start != end or size < 1) and not gap:
            gap = f"after slot {end - 1} comes {region}"
        end += size
        if owners:
            owned += size
            for seq in owners:
                of_sequence[seq] = of_sequence.get(seq, 0) + size
            once &= not (is_cached or is_idle)
        if is_cached:
            cached += size
            once &= not is_idle
        if is_idle:
            idle += size
    _Latest.regions, _Latest.sums = regions, Sums(owned, cached, idle, once, of_sequence, end, gap)
    return _Latest.sums
