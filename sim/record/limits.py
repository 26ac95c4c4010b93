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
"""Values of a scheduler's `held_back` -> the limit behind them."""


def limit(server: Server, scheduler: Scheduler) -> str:
    """What keeps the head of the queue out of the step that was just decided; "": nobody waits.

    Requests whose load was over wait, too. If the queue is empty but sequences are in the host pool, it is
    the memory. An allocator that can hold no more sequences has no free seat.
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
