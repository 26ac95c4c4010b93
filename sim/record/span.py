"""A span of steps as the books count it, and the sums over time that spans are added to.

A span is written down when its steps were carried out, and counted with others (recorder.py): exact integers
in slot-picoseconds, or requests times picoseconds.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import add, attrgetter, mul, sub

from kvsim.sim.serving.growth import Grown

Rest = tuple[int, int, int, int]
"""External, cached and idle slots, and tokens saved by sharing."""


class Span:
    """Steps without a decision, and what the memory held: planned, perhaps cut, then carried out.

    `held` slots hold a token in the first step, those of `decoding` tokens more in each later one; `used`
    and `internal` are those before any growth in the span.

    Attributes
    ----------
    ends : list of int
        When each step ends, in picoseconds from the start of the span.
    decoding : int
        Sequences that get a token in each step, none of them late.
    held_by : str
        The limit that held the queue back when it began (sim/record/limits.py); empty: nobody waited.
    rest : tuple or None
        External, cached and idle slots, and tokens saved by sharing; None for allocators without any.
    grown : Grown or None
        What growth within the span changed; None: nobody could grow.
    """

    __slots__ = ("decoding", "ends", "grown", "held", "held_by", "internal", "rest", "running", "used")

    def __init__(  # noqa: PLR0917 - for every span, and by position it is quick
        self,
        ends: list[int],
        decoding: int,
        running: int,
        held: int,
        used: int,
        internal: int,
        held_by: str,
        rest: Rest | None,
    ) -> None:
        self.ends = ends
        self.decoding = decoding
        self.running = running
        self.held = held
        self.used = used
        self.internal = internal
        self.held_by = held_by
        self.rest = rest
        self.grown: Grown | None = None

    def unlike_tokens(self, contexts: Sequence[int]) -> int:
        """Slot picoseconds of tokens, where each step has so many, beyond those of `decoding` more a step."""
        ends, steps = self.ends, len(self.ends)
        total, first = ends[-1], contexts[0]
        held: int = ends[0] * first + sum(map(mul, contexts[1:], map(sub, ends[1:], ends)))
        return held - first * total - self.decoding * (steps * total - sum(ends))


FACTS = attrgetter("ends", "decoding", "running", "held", "used", "internal", "held_by", "rest", "grown")


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
        columns = zip(*map(FACTS, spans), strict=True)
        self.ends: Sequence[list[int]] = next(columns)
        self.decoding: Sequence[int] = next(columns)
        self.running: Sequence[int] = next(columns)
        self.held: Sequence[int] = next(columns)
        self.used: Sequence[int] = next(columns)
        self.internal: Sequence[int] = next(columns)
        self.held_by: Sequence[str] = next(columns)
        self.rest: Sequence[Rest | None] = next(columns)
        self.grown: Sequence[Grown | None] = next(columns)
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
