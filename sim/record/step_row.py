"""A row of the step log, in two halves: what was decided, and the state after the step."""

from kvsim.sim.serving.decision import NO_MOVES, NO_PROMPTS, Decision
from kvsim.sim.serving.server import Server


def start_of_step(  # noqa: PLR0917 - what the replica knows already
    server: Server, step: Decision, held: int, duration_ps: int, running: int, waiting: int
) -> tuple[int, ...]:
    """The columns of `STEP_COLUMNS` up to `kv_tokens`.

    `held` slots hold a token; `running` and `waiting` are as counted by the engine itself.
    """
    allocator, swaps = server.allocator, server.memory.abilities.swaps
    unit, moved, prompts = allocator.block_slots, step.moved or NO_MOVES, step.prompts or NO_PROMPTS
    return (
        server.steps,
        server.now_ps,
        duration_ps,
        running,
        waiting,
        server.swapped,
        server.totals.preemptions,
        server.totals.swap_outs,
        allocator.used_slots // unit,
        allocator.logical_slots() // unit,
        allocator.shared_slots() // unit,
        moved.cow_copies,
        moved.swapped_in_blocks,
        moved.swapped_out_blocks,
        swaps.host_used_slots // unit if swaps else 0,
        step.budget_spent,
        0 if step.paused else server.progress.added(1),
        prompts.hit_tokens,
        prompts.recomputed_tokens,
        (held + allocator.shared_tokens + allocator.expired_slots - allocator.state_slots)
        // allocator.slots_per_token,
    )


def end_of_step(server: Server, running: int) -> tuple[int, int]:
    """(running, blocks in use) after the step."""
    allocator = server.allocator
    return running, allocator.used_slots // allocator.block_slots
