"""A span of steps as recorded, and the sums over time to which spans are added.

A span is recorded after its steps, and counted together with others (tally.py): exact integers in
slot-picoseconds, or requests times picoseconds.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import chain, pairwise
from operator import mul, sub
from typing import Final

import numpy as np
from mypy_extensions import i64

from kvsim.sim.record.products import FITS, Times, sums_of_products
from kvsim.sim.serving.growth import MANY, SOON_PS, Grown

Rest = tuple[int, int, int, int, int]
"""External, cached and idle slots, tokens saved by sharing, and slots held for another server."""

Kept = tuple[int, int, int, int]
"""While nothing is computed: slots with a token, used slots, slots never to be written, running requests.

The KV of requests is in transit, or they were set aside, or wait for the outcome of their drafts.
"""


Start = tuple[int, int, int, int, int, str, Rest | None]
"""State at the start of a span.

Sequences that get a token in each step, none of them late; running requests; slots that hold a token in the
first step (each later step adds one token per such sequence), slots that are used, and slots that will never
be written, these before any growth in the span; the limit that held the queue back (sim/record/limits.py),
empty if nothing waited; and the rest, None for allocators without any.
"""
HELD_BY: Final = 5
"""Index of that limit."""

Span = tuple[list[int], Start, Grown | None]
"""Steps that were carried out without a decision between them.

The end of each, in picoseconds from the start of the span; the state at the start; and the changes from
growth within the span, None if nothing could grow. A plain tuple: the fastest to create and to count.
"""


def unlike_tokens(ends: list[int], start: Start, contexts: list[int]) -> int:
    """Slot-picoseconds of tokens beyond `decoding` more per step, if steps have `contexts` tokens."""
    total, decoding = ends[-1], start[0]
    if total > SOON_PS or contexts[-1] > MANY:
        added = [after - before - decoding for before, after in pairwise(contexts)]
        return sum([more * (total - end) for more, end in zip(added, ends, strict=False)])
    sums: i64 = 0  # no step adds less than `decoding`, all together less than the contexts of the last
    each: i64 = decoding
    span: i64 = total
    before: i64 = contexts[0]
    for step in range(1, len(ends)):
        after: i64 = contexts[step]
        end: i64 = ends[step - 1]
        sums += (after - before - each) * (span - end)
        before = after
    return sums


def peak_slots(steps: int, held: int, more: int, grown: Grown | None) -> int:
    """The most slots that held a token in any of `steps` steps, each of which adds `more`."""
    if grown is None or not grown[3]:
        return held + more * (steps - 1)
    peak, gone = held, 0
    for step, slots in grown[3]:
        peak = max(peak, held + more * (step - 1) - gone)
        gone += slots
    return max(peak, held + more * (steps - 1) - gone)


class Columns:
    """Spans as columns, to count many at once.

    Attributes
    ----------
    starts : int64 array, shape (5, spans)
        The first five numbers of every `Start`.
    steps, totals_ps : int64 arrays, shape (spans,)
        Number of steps and duration of each span.
    ends_ps : int64 array, shape (steps,)
        End of each step of all spans, from the start of its span.
    more : int64 array, shape (spans,)
        Slots added by every step after the first.
    """

    def __init__(self, spans: list[Span], slots_per_token: int) -> None:
        columns = zip(*spans, strict=True)
        self.ends: Sequence[list[int]] = next(columns)
        *starts, held_by, rest = zip(*next(columns), strict=True)
        self.grown: Sequence[Grown | None] = next(columns)
        self.held_by: Sequence[str] = held_by
        self.rest: Sequence[Rest | None] = rest
        self.starts = np.array(starts, np.int64)
        self.steps = np.fromiter(map(len, self.ends), np.int64, len(spans))
        self._behind = self.steps.cumsum()
        self.ends_ps = np.fromiter(chain.from_iterable(self.ends), np.int64, int(self._behind[-1]))
        self.totals_ps = self.ends_ps[self._behind - 1]
        self.more = slots_per_token * self.starts[0]

    def peak_slots(self, known: int) -> int:
        """The most slots that held a token in any step; at least `known`."""
        steps, held = self.steps, self.starts[2]
        if int((held + self.more * (steps - 1)).max()) <= known:  # even if no sequence left any slots behind
            return known
        return max(known, *map(peak_slots, steps.tolist(), held.tolist(), self.more.tolist(), self.grown))

    def later_ps(self) -> Times:
        """Per span, the summed time after its steps: step i holds i * more slots than the first."""
        steps, totals_ps = self.steps, self.totals_ps
        if int(steps.max()) * int(totals_ps.max()) < FITS:
            later: Times = steps * totals_ps - np.add.reduceat(self.ends_ps, self._behind - steps)
        else:
            each = map(sub, map(mul, steps.tolist(), totals_ps.tolist()), map(sum, self.ends))
            later = np.array(list(each), object)
        return later


@dataclass
class Integrals:
    """Sums over time of what the memory held: slots (or requests) times picoseconds.

    `shared` counts tokens that sequences hold beyond the slots that store them; `held` the slots of `token`
    that wait for another server to read them; `beyond` the slots of memories beyond the one capacity used for
    all.
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
    held: int = 0
    beyond: int = 0

    def __reduce__(self) -> tuple[type["Integrals"], tuple[int, ...]]:
        """For other processes: a compiled class cannot be pickled otherwise."""
        return Integrals, astuple(self)

    def add_spans(self, spans: Columns) -> None:
        """Add steps after they were carried out."""
        _, running, held, used, internal = sums_of_products(spans.starts, spans.totals_ps)
        self.time_ps += sum(spans.totals_ps.tolist())
        self.token += held + sums_of_products(spans.more[None], spans.later_ps())[0]
        self.used += used
        self.internal += internal
        self.running += running
        self.add_changes(spans.ends, spans.rest, spans.grown)

    def add_changes(
        self, ends: Sequence[list[int]], rests: Sequence[Rest | None], changes: Sequence[Grown | None]
    ) -> None:
        """Add the kinds that most allocators never have, and the changes from growth within spans."""
        if any(rests):
            for each, rest in zip(ends, rests, strict=True):
                if rest is not None:
                    self.add_rest(each[-1], rest)
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

    def add_idle(self, duration_ps: int, rest: Rest, kept: Kept) -> None:
        """Add time in which nothing was computed."""
        token, used, internal, running = kept
        self.time_ps += duration_ps
        self.token += token * duration_ps
        self.used += used * duration_ps
        self.internal += internal * duration_ps
        self.running += running * duration_ps
        self.add_rest(duration_ps, rest)

    def less(self, other: "Integrals") -> "Integrals":
        """These sums minus others."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Integrals(*[mine - its for mine, its in pairs])

    def add_rest(self, duration_ps: int, rest: Rest) -> None:
        """Add the kinds of slots that most allocators never have."""
        external, cached, idle, shared, held = rest
        self.external += external * duration_ps
        self.cached += cached * duration_ps
        self.idle += idle * duration_ps
        self.shared += shared * duration_ps
        self.held += held * duration_ps
