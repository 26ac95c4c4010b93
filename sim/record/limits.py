"""What holds requests back: while the head of the queue is not admitted, one limit blocks the whole queue."""

from kvsim.sim.record.events import FUTURE_PEAK, NO_ROOM, RESERVATION, SAME_PREFIX, STORAGE, TIER
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.server import Server

KV_MEMORY, SEATS, TOKEN_BUDGET, BATCH = "kv_memory", "max_num_seqs", "max_num_batched_tokens", "batch"
LIMITS = (KV_MEMORY, SEATS, TOKEN_BUDGET, BATCH)

_OF_REASON = {
    NO_ROOM: KV_MEMORY,
    FUTURE_PEAK: KV_MEMORY,
    RESERVATION: KV_MEMORY,
    "watermark": KV_MEMORY,
    "eviction": KV_MEMORY,
    "swapped": KV_MEMORY,
    "seats": SEATS,
    "token budget": TOKEN_BUDGET,
    "batch": BATCH,
    SAME_PREFIX: BATCH,
    STORAGE: BATCH,
    TIER: BATCH,
}
"""A scheduler's `held_back` -> the limit behind it."""


def limit(server: Server, scheduler: Scheduler) -> str:
    """The limit that kept the head of the queue out of the step just decided; "": nobody waits.

    Requests whose load has ended also wait. If the queue is empty but sequences are in the host pool, the
    limit is memory. An allocator that can hold no more sequences counts as having no free seat.
    """
    waits = server.waiting or server.wakes.passed_over
    if not (waits or server.swapped):
        return ""
    most = server.allocator.most_sequences
    if most is not None and waits and len(server.running) >= most:
        return SEATS
    if server.step.no_room or not waits:
        return KV_MEMORY
    return _OF_REASON[scheduler.held_back(server)]
