"""Spans counted one by one in 64-bit integers: what a compiled recorder does, where Python counts in bulk.

The sums are those of `Integrals.add_spans` (span.py) and `Histogram.add_spans` (histogram.py), to the last
unit. A product of slots and picoseconds fits into 64 bits, a sum of them need not, and is kept in halves:

    product = upper * 2^32 + lower        sum = sum(upper) * 2^32 + sum(lower)

Spans with larger numbers are left for the bulk.
"""

from typing import Final

from mypy_extensions import i64

from kvsim.sim.record.histogram import BINS, Histogram
from kvsim.sim.record.span import Integrals, Rest, Span, peak_slots
from kvsim.sim.serving.growth import Grown

COMPILED: Final = not __file__.endswith(".py")
"""Whether this module is compiled: interpreted, it would be slower than the bulk."""

LONGEST_PS: Final = 1 << 40
MOST_SLOTS: Final = 1 << 22
"""Below these, products of both are below 2^62: what a span holds never exceeds what it holds at its end."""
HALF: Final = 32
LOWER: Final = (1 << 32) - 1
BITS: Final = 10
LEAST: Final = 1 << 9
"""`MANTISSA_BITS` of the histogram, and the highest of them, as the compiler knows them."""


class Total:
    """A sum of integers from 0 to 2^62."""

    def __init__(self) -> None:
        self.upper: i64 = 0
        self.lower: i64 = 0

    def add(self, value: i64) -> None:
        """Add one."""
        self.upper += value >> HALF
        self.lower += value & LOWER

    def take(self) -> int:
        """The sum, which begins again at 0."""
        upper, lower = int(self.upper), int(self.lower)
        self.upper = self.lower = 0
        return (upper << HALF) + lower


class Sums:
    """What `Integrals` sum up, of some spans."""

    def __init__(self) -> None:
        self.time_ps, self.token, self.used = Total(), Total(), Total()
        self.internal, self.running = Total(), Total()
        self.changes: list[tuple[list[int], Rest | None, Grown | None]] = []

    def give(self, to: Integrals) -> None:
        """Add the sums to others, and begin again."""
        to.time_ps += self.time_ps.take()
        to.token += self.token.take()
        to.used += self.used.take()
        to.internal += self.internal.take()
        to.running += self.running.take()
        if self.changes:
            to.add_changes(*zip(*self.changes, strict=True))
            self.changes = []


class Counting:
    """Counts spans for a recorder.

    Attributes
    ----------
    spans : int
        Counted since the sums were given away.
    max_running, peak_slots : int
        The most that ran in any span, and the most slots that held a token.
    """

    def __init__(self, slots_per_token: int) -> None:
        self.max_running = 0
        self.peak_slots = 0
        self._per_token = slots_per_token
        self._saturated, self._unsaturated = Sums(), Sums()
        self._held_ps: dict[str, int] = {}
        self.spans = self._count = self._longest_ps = 0
        self._weighted = Total()  # sum of the gaps
        self._weights = [0] * BINS
        self._filled: list[int] = []  # bins that hold something
        self._shift: i64 = 0

    def add(self, span: Span) -> bool:
        """Count a span; False: it is left for the bulk."""
        ends, grown = span.ends, span.grown
        total, steps, more = ends[-1], len(ends), self._per_token * span.decoding
        peak = peak_slots(steps, span.held, more, grown)
        most = span.held + more * (steps - 1)
        large = peak | most | span.used | span.internal | span.running | span.decoding
        if total >= LONGEST_PS or large >= MOST_SLOTS:
            return False
        self.spans += 1
        self.max_running = max(self.max_running, span.running)
        self.peak_slots = max(self.peak_slots, peak)
        if span.held_by:
            self._held_ps[span.held_by] = self._held_ps.get(span.held_by, 0) + total
            self._add(self._saturated, span, total)
        else:
            self._add(self._unsaturated, span, total)
        if span.decoding:
            self._count += span.decoding * steps
            total_ps: i64 = total
            decoding: i64 = span.decoding
            self._weighted.add(decoding * total_ps)
            self._longest_ps = max(self._longest_ps, self._add_gaps(ends, span.decoding))
        return True

    def give(
        self, saturated: Integrals, unsaturated: Integrals, held_ps: dict[str, int], gaps: Histogram
    ) -> None:
        """Add what was counted since the last time to the sums of a recorder."""
        self._saturated.give(saturated)
        self._unsaturated.give(unsaturated)
        for held_by, duration_ps in self._held_ps.items():
            held_ps[held_by] += duration_ps
        weights, count, self._held_ps = self._weights, self._count, {}
        gaps.add_bins(
            self._filled,
            [weights[bin] for bin in self._filled],
            count,
            self._weighted.take(),
            self._longest_ps,
        )
        for bin in self._filled:
            weights[bin] = 0
        self._filled = []
        self.spans = self._count = self._longest_ps = 0

    def _add(self, sums: Sums, span: Span, total_ps: i64) -> None:
        """Add what a span holds from its first step on, and the tokens that come in the later ones."""
        held: i64 = span.held
        used: i64 = span.used
        internal: i64 = span.internal
        running: i64 = span.running
        product = held * total_ps
        ends = span.ends
        if len(ends) > 1:
            later: i64 = 0
            for at in ends:
                end: i64 = at
                later += total_ps - end
            more: i64 = self._per_token * span.decoding
            product += more * later
        sums.time_ps.add(total_ps)
        sums.token.add(product)
        sums.used.add(used * total_ps)
        sums.internal.add(internal * total_ps)
        sums.running.add(running * total_ps)
        if span.rest is not None or span.grown is not None:
            sums.changes.append((ends, span.rest, span.grown))

    def _add_gaps(self, ends: list[int], weight: int) -> int:
        """Count the steps of a span, each so many times, in their bins; returns the longest."""
        weights, shift = self._weights, self._shift
        before: i64 = 0
        longest: i64 = 0
        for at in ends:
            end: i64 = at
            gap = end - before
            before = end
            if gap > longest:
                longest = gap
            while gap >> shift >= 2 * LEAST:
                shift += 1
            while shift > 0 and gap >> shift < LEAST:
                shift -= 1
            bin = (shift << BITS) | (gap >> shift)
            known = weights[bin]
            if not known:
                self._filled.append(bin)
            weights[bin] = known + weight
        self._shift = shift
        return longest
