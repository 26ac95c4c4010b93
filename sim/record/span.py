"""A span of steps as the books count it, and the sums over time that spans are added to.

A span is written down when its steps were carried out, and counted with others (recorder.py): exact integers
in slot-picoseconds, or requests times picoseconds.
"""

from dataclasses import astuple, dataclass
from operator import mul

from kvsim.sim.serving.growth import Grown


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

    def __init__(  # noqa: PLR0917 - made for every span, and by position it is quick
        self,
        ends: list[int],
        decoding: int,
        running: int,
        held: int,
        used: int,
        internal: int,
        held_by: str,
        rest: tuple[int, int, int, int] | None,
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

    def peak_slots(self, per_token: int) -> int:
        """The most slots that held a token in any step, with so many for each token."""
        more, gone = per_token * self.decoding, 0
        if self.grown is None or not self.grown[3]:
            return self.held + more * (len(self.ends) - 1)
        peak = self.held
        for step, slots in self.grown[3]:
            peak = max(peak, self.held + more * (step - 1) - gone)
            gone += slots
        return max(peak, self.held + more * (len(self.ends) - 1) - gone)


@dataclass
class Integrals:
    """Sums over time of what the memory held: slots (or requests) times picoseconds.

    `shared` counts the tokens that sequences hold beyond the slots that hold them.
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

    def __reduce__(self) -> tuple[type["Integrals"], tuple[int, ...]]:
        """For processes that hand it on: a compiled class cannot be pickled otherwise."""
        return Integrals, astuple(self)

    def add_spans(self, spans: list[Span], slots_per_token: int) -> None:
        """Add steps that were carried out."""
        totals = [span.ends[-1] for span in spans]
        # step i holds i * more slots than the first, and sum(i * duration) = steps * total - sum(ends)
        later = [
            span.decoding * (len(span.ends) * span.ends[-1] - sum(span.ends))
            for span in spans
            if len(span.ends) > 1
        ]
        self.time_ps += sum(totals)
        self.token += sum(map(mul, [span.held for span in spans], totals)) + sum(later) * slots_per_token
        self.used += sum(map(mul, [span.used for span in spans], totals))
        self.internal += sum(map(mul, [span.internal for span in spans], totals))
        self.running += sum(map(mul, [span.running for span in spans], totals))
        self.add_changes(spans)

    def add_changes(self, spans: list[Span]) -> None:
        """Add what most allocators never have, and what growth within spans changed."""
        for span in spans:
            if span.rest is not None:
                self.add_rest(span.ends[-1], *span.rest)
            if span.grown is not None:
                used, internal, evicted, left, idle, shared = span.grown
                self.idle += idle
                self.used += used
                self.internal += internal
                self.cached -= evicted
                self.shared += shared
                for step, slots in left or ():
                    self.token -= slots * (span.ends[-1] - span.ends[step - 1])

    def add_rest(self, duration_ps: int, external: int, cached: int, idle: int, shared: int) -> None:
        """Add those that most allocators never have."""
        self.external += external * duration_ps
        self.cached += cached * duration_ps
        self.idle += idle * duration_ps
        self.shared += shared * duration_ps
