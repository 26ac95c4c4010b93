"""Steps with drafts, many at a time: while the same sequences decode, all of it is foreseen.

    accepted      a sequence's draws are known, so is what each step adds to it: 3, 1, 4, 2, ...
    scheduled     each step 1 + K tokens of each, as long as none ends, none is near the longest sequence
    grown         a table takes a block when tokens, drafts and lookahead need it; as far as blocks are free

Let T be the tokens of a sequence before a step. What its scheduler knows when the step is decided:

    synchronous   C = T - 1, then T + K                          room for T + K + lookahead
    asynchronous  C = T' + K of the step before, then T + K      room for T' + 2 K + 1 + lookahead
"""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from kvsim.allocators.abilities import AfterSteps
from kvsim.allocators.base import Allocator
from kvsim.sim.serving.batch import Within
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server

HORIZON = 64
"""Most steps that are foreseen at a time; and twice as many as the last span had, as who comes ends it."""


class Run:
    """One sequence in the steps ahead.

    Attributes
    ----------
    known : list of int
        Its tokens before each step, and behind the last.
    accepted : list of int
        Drafts that are right in each step.
    capacity : int
        Tokens for which its table has room.
    """

    __slots__ = ("accepted", "capacity", "known", "request")

    def __init__(self, request: Request, known: list[int], accepted: list[int], capacity: int) -> None:
        self.request, self.known, self.accepted, self.capacity = request, known, accepted, capacity


class Need(NamedTuple):
    """The room that a step takes: for the tokens before it, or so many steps `earlier`, and `beyond` them."""

    earlier: int
    beyond: int


def may_span(allocator: Allocator) -> bool:
    """Whether growth of an allocator's sequences is a matter of counting blocks."""
    return (
        allocator.growth_unit > 0
        and allocator.growth_slots == allocator.growth_unit * allocator.slots_per_token
        and not (allocator.windows or isinstance(allocator, AfterSteps) or allocator.reserves)
    )


def foreseen(runs: list[Run], at_most: int) -> int:
    """Steps up to the first in which one of them has its last token."""
    steps = at_most
    for run in runs:
        known, final = run.known, run.request.final_tokens
        if known[steps] > final:  # tokens known, the newest included, are one more than those stored
            steps = next(step for step in range(1, steps + 1) if known[step] > final)
    return steps


def tokens_in(runs: list[Run], steps: int) -> list[int]:
    """Tokens that all of them have stored in each step."""
    return [
        sum(column) - len(runs) for column in zip(*[run.known[1 : steps + 1] for run in runs], strict=True)
    ]


def known_after(tokens: int, accepted: list[int], final: int) -> list[int]:
    """A sequence's tokens before each step, and behind the last; one more than `final` when it has all."""
    known = list(accumulate([right + 1 for right in accepted], initial=tokens))
    return known if known[-1] <= final else [min(tokens, final + 1) for tokens in known]


def grow(server: Server, runs: list[Run], need: Need, steps: int, watched: bool) -> list[Within]:
    """Give tables the blocks of all steps but the first, which has them; what the memory holds in each."""
    allocator, memory, found = server.allocator, server.memory, []
    now = Within(allocator.used_slots, memory.internal_slots(), server.rest() if watched else None)
    due: list[list[int]] = [[] for _ in range(steps + 1)]  # who grows in each step; in the last: behind it
    for at, run in enumerate(runs):
        due[_grows_in(run, need, steps)].append(at)
    for step in range(1, steps):
        for at in sorted(due[step]):
            run = runs[at]
            request, room = run.request, run.known[step - need.earlier] + need.beyond
            if not allocator.grow(request.seq, room):
                raise AssertionError(f"sequence {request.seq} was promised {room} tokens and got no room")
            run.capacity = allocator.capacity(request.seq)
            memory.set_internal(request, max(0, allocator.surplus(request.seq, request.final_tokens)))
            due[_grows_in(run, need, steps)].append(at)
        if due[step]:
            now = Within(allocator.used_slots, memory.internal_slots(), server.rest() if watched else None)
        found.append(now)
    return found


def _grows_in(run: Run, need: Need, steps: int) -> int:
    """The first step that needs more room than a table has, `steps` at most."""
    return min(bisect_right(run.known, run.capacity - need.beyond) + need.earlier, steps)


def steps_with_room(allocator: Allocator, runs: list[Run], need: Need, steps: int) -> int:
    """How many of the steps find all the blocks that they need, whoever asks first."""
    budget, found = allocator.growth_budget(), steps
    while found > 1 and _blocks(allocator.growth_unit, runs, need, found - 1) > budget:
        found -= 1
    return found


def _blocks(unit: int, runs: list[Run], need: Need, step: int) -> int:
    """Blocks that all tables are short of in a step."""
    before, missing = step - need.earlier, 0
    for run in runs:
        short = run.known[before] + need.beyond - run.capacity
        if short > 0:
            missing -= -short // unit
    return missing
