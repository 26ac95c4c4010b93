"""A row of the timeline: what the memory holds at an instant, and what runs and waits."""

from kvsim.allocators.base import InvariantError
from kvsim.sim.record.instants import Instant
from kvsim.sim.serving.server import Server

NO_TIER = (0, 0, 0)


def instant_of(server: Server, tokens: int) -> Instant:
    """The row for now, if `tokens` slots hold a token; InvariantError if a kind of slot is negative."""
    allocator, tier = server.allocator, server.totals.tier
    used, cached, external = allocator.used_slots, allocator.cached_slots, server.external_slots()
    internal = server.memory.internal_slots()
    reserved, free = used - tokens - internal, allocator.free_slots - cached - external - allocator.idle_slots
    held = server.held_slots()
    fields: tuple[int, ...] = (
        server.now_ps,
        tokens - held,
        reserved,
        internal,
        cached,
        external,
        free,
        len(server.running),
        len(server.waiting) + server.wakes.loaded,
        allocator.largest_free_extent(),
        server.totals.preemptions + server.totals.swap_outs,
        allocator.idle_slots,
        held,
    )
    fields += NO_TIER if tier is None else (tier.held_bytes, tier.loaded_bytes, tier.stored_bytes)
    found: Instant = tuple.__new__(Instant, fields)  # the same as Instant(*fields), at half the cost
    if reserved < 0 or internal < 0 or free < 0 or tokens < held:
        raise InvariantError(f"no kind of slot can be negative, got {found} of {used} slots in use")
    return found
