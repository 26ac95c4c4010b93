"""A span of steps as the books count it, and the sums over time that spans are added to.

A span is written down when its steps were carried out, and counted with others (recorder.py): exact integers
in slot-picoseconds, or requests times picoseconds.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import add, mul, sub
from typing import Final

from kvsim.sim.serving.growth import Grown

Rest = tuple[int, int, int, int]
"""External, cached and idle slots, and tokens saved by sharing."""


Start = tuple[int, int, int, int, int, str, Rest | None]
"""How it was when a span began.

Sequences that get a token in each step, none of them late; requests that run; slots that hold a token in the
first step (in each later one those of so many tokens more), that are used, and that will never be written, of
these before any growth in the span; the limit that held the queue back (sim/record/limits.py), empty where
nobody waited; and the rest, None for allocators without any.
"""
HELD_BY: Final = 5
"""Where that limit stands."""

Span = tuple[list[int], Start, Grown | None]
"""Steps that were carried out without a decision between them.

When each ended, in picoseconds from the start of the span; how it was then; and what growth within the span
changed, None where nobody could grow. A plain tuple: nothing is quicker to make and to count.
"""


def unlike_tokens(span: Span, contexts: Sequence[int]) -> int:
    """Slot picoseconds of tokens, where each step has so many, beyond those of `decoding` more a step."""
    (ends, start, _), first = span, contexts[0]
    steps, total = len(ends), ends[-1]
    held: int = ends[0] * first + sum(map(mul, contexts[1:], map(sub, ends[1:], ends)))
    return held - first * total - start[0] * (steps * total - sum(ends))


def peak_slots(steps: int, held: int, more: int, grown: Grown | None) -> int:
    """The most slots that held a token in any of so many steps, each of which adds `more`."""
    if grown is None or not grown[3]:
        return held + more * (steps - 1)
    peak, gone = held, 0
    for step, slots in grown[3]:
        peak = max(peak, held + more * (step - 1) - gone)
        gone += slots
    return max(peak, held + more * (steps - 1) - gone)


class Columns:
    """Spans side by side, to count many at once.

    Attributes
    ----------
    totals : list of int
        Of each span, its duration in picoseconds.
    steps : list of int
        How many steps it has.
    more : sequence of int
        Slots that every step after the first adds.
    """

    def __init__(self, spans: list[Span], slots_per_token: int) -> None:
        columns = zip(*spans, strict=True)
        self.ends: Sequence[list[int]] = next(columns)
        starts = zip(*next(columns), strict=True)
        self.grown: Sequence[Grown | None] = next(columns)
        self.decoding: Sequence[int] = next(starts)
        self.running: Sequence[int] = next(starts)
        self.held: Sequence[int] = next(starts)
        self.used: Sequence[int] = next(starts)
        self.internal: Sequence[int] = next(starts)
        self.held_by: Sequence[str] = next(starts)
        self.rest: Sequence[Rest | None] = next(starts)
        self.totals: list[int] = [ends[-1] for ends in self.ends]
        self.steps = list(map(len, self.ends))
        self.more = self.decoding
        if slots_per_token != 1:
            self.more = [slots_per_token * decoding for decoding in self.decoding]

    def peak_slots(self, known: int) -> int:
        """The most slots that held a token in any step, or `known` if that is more."""
        at_most = map(sub, map(add, self.held, map(mul, self.more, self.steps)), self.more)
        if max(at_most) <= known:  # even if nobody left any behind
            return known
        return max(known, *map(peak_slots, self.steps, self.held, self.more, self.grown))


@dataclass
class Integrals:
    """Sums over time of what the memory held: slots (or requests) times picoseconds.

    `shared` counts the tokens that sequences hold beyond the slots that hold them, `beyond` the slots of
    unlike memories beyond the capacity that stands for all of them.
    """

    time_ps: int = 0
    token: int = 0
    used: int = 0
    internal: int = 0
    running: int = 0
    external: int = 0
    cached: int = 0
    idle: int = 0
    shared: int = 0
    beyond: int = 0

    def __reduce__(self) -> tuple[type["Integrals"], tuple[int, ...]]:
        """For processes that hand it on: a compiled class cannot be pickled otherwise."""
        return Integrals, astuple(self)

    def add_spans(self, spans: Columns) -> None:
        """Add steps that were carried out."""
        totals = spans.totals
        # step i holds i * more slots than the first, and sum(i * duration) = steps * total - sum(ends)
        later = map(sub, map(mul, spans.steps, totals), map(sum, spans.ends))
        self.time_ps += sum(totals)
        self.token += sum(map(mul, spans.held, totals)) + sum(map(mul, spans.more, later))
        self.used += sum(map(mul, spans.used, totals))
        self.internal += sum(map(mul, spans.internal, totals))
        self.running += sum(map(mul, spans.running, totals))
        self.add_changes(spans.ends, spans.rest, spans.grown)

    def add_changes(
        self, ends: Sequence[list[int]], rests: Sequence[Rest | None], changes: Sequence[Grown | None]
    ) -> None:
        """Add what most allocators never have, and what growth within spans changed."""
        if any(rests):
            for each, rest in zip(ends, rests, strict=True):
                if rest is not None:
                    self.add_rest(each[-1], *rest)
        grown = [change for change in changes if change is not None]
        if not grown:
            return
        used, internal, evicted, lefts, idle, shared = zip(*grown, strict=True)
        self.used += sum(used)
        self.internal += sum(internal)
        self.cached -= sum(evicted)
        self.idle += sum(idle)
        self.shared += sum(shared)
        if any(lefts):
            for each, change in zip(ends, changes, strict=True):
                for step, slots in (change[3] if change is not None else None) or ():
                    self.token -= slots * (each[-1] - each[step - 1])

    def add_rest(self, duration_ps: int, external: int, cached: int, idle: int, shared: int) -> None:
        """Add those that most allocators never have."""
        self.external += external * duration_ps
        self.cached += cached * duration_ps
        self.idle += idle * duration_ps
        self.shared += shared * duration_ps
