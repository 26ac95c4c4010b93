"""Counts spans one by one in 64-bit integers, for the compiled build; pure Python counts in bulk.

The sums equal those of `Integrals.add_spans` (span.py) and `Histogram.add_spans` (histogram.py), to the last
unit. A product of slots and picoseconds fits into 64 bits; a sum of them may not, and is kept in halves:

    product = upper * 2^32 + lower        sum = sum(upper) * 2^32 + sum(lower)

Spans with larger products are left to bulk counting.
"""

from typing import Final

from mypy_extensions import i64

from kvsim.sim.record.histogram import BINS, Histogram
from kvsim.sim.record.span import HELD_BY, Integrals, Rest, Span, peak_slots
from kvsim.sim.serving.growth import Grown

COMPILED: Final = not __file__.endswith(".py")
"""Whether this module is compiled; interpreted, it is slower than counting in bulk."""

LONGEST_PS: Final = 1 << 40
MOST_SLOTS: Final = 1 << 21
LARGEST: Final = 1 << 61
"""A time and a number of slots below the first two limits have a product below the third; other products are
checked one by one. A span never holds more than at its end."""
HALF: Final = 32
LOWER: Final = (1 << 32) - 1
BITS: Final = 10
LEAST: Final = 1 << 9
"""`MANTISSA_BITS` of the histogram, and the highest mantissa bit, as constants for the compiler."""


class Total:
    """A sum of integers from -2^62 to 2^62."""

    def __init__(self) -> None:
        self.upper: i64 = 0
        self.lower: i64 = 0

    def add(self, value: i64) -> None:
        """Add one value."""
        self.upper += value >> HALF
        self.lower += value & LOWER

    def take(self) -> int:
        """Return the sum so far and restart at 0."""
        upper, lower = int(self.upper), int(self.lower)
        self.upper = self.lower = 0
        return (upper << HALF) + lower


class Sums:
    """The sums of `Integrals` over some spans."""

    def __init__(self) -> None:
        self.time_ps, self.token, self.used = Total(), Total(), Total()
        self.internal, self.running = Total(), Total()
        self.external, self.cached, self.idle = Total(), Total(), Total()
        self.shared, self.held = Total(), Total()

    def add_rest(self, rest: Rest, total_ps: i64) -> None:
        """Add the kinds of slots that most allocators never have."""
        external: i64 = rest[0]
        cached: i64 = rest[1]
        idle: i64 = rest[2]
        shared: i64 = rest[3]
        held: i64 = rest[4]
        self.external.add(external * total_ps)
        self.cached.add(cached * total_ps)
        self.idle.add(idle * total_ps)
        self.shared.add(shared * total_ps)
        self.held.add(held * total_ps)

    def add_grown(self, grown: Grown, ends: list[int], total_ps: i64) -> None:
        """Add the changes from growth within a span."""
        used, internal, evicted, lefts, idle, shared = grown
        self.used.add(used)
        self.internal.add(internal)
        self.cached.add(-evicted)
        self.idle.add(idle)
        self.shared.add(shared)
        for step, slots in lefts or ():
            left_at: i64 = ends[step - 1]
            self.token.add(-slots * (total_ps - left_at))

    def give(self, to: Integrals) -> None:
        """Add the sums to `to`, and restart at 0."""
        to.time_ps += self.time_ps.take()
        to.token += self.token.take()
        to.used += self.used.take()
        to.internal += self.internal.take()
        to.running += self.running.take()
        to.external += self.external.take()
        to.cached += self.cached.take()
        to.idle += self.idle.take()
        to.shared += self.shared.take()
        to.held += self.held.take()


class Counting:
    """Counts spans for a recorder.

    Attributes
    ----------
    spans : int
        Spans counted since the sums were last handed over.
    tokens : int
        Tokens since the start that are not the first of their answer.
    max_running, peak_slots : int
        The most requests running in any span, and the most slots that held a token.
    """

    def __init__(self, slots_per_token: int) -> None:
        self.max_running: i64 = 0
        self.peak_slots: i64 = 0
        self.spans: i64 = 0
        self.tokens: i64 = 0
        self._per_token: i64 = slots_per_token
        self._saturated, self._unsaturated = Sums(), Sums()
        self._held_ps: dict[str, int] = {}
        self._count: i64 = 0
        self._longest_ps: i64 = 0
        self._weighted = Total()  # sum of the gaps
        self._weights = [0] * BINS
        self._filled: list[int] = []  # nonempty bins
        self._shift: i64 = 0

    def add(self, span: Span) -> bool:
        """Count a span; False if it is left to bulk counting."""
        ends, start, grown = span
        held_by, rest = start[HELD_BY], start[6]
        if ends[-1] >= LARGEST or (grown is not None and not _is_small(grown)):
            return False
        total: i64 = ends[-1]
        steps: i64 = len(ends)
        decoding: i64 = start[0]
        running: i64 = start[1]
        held: i64 = start[2]
        used: i64 = start[3]
        internal: i64 = start[4]
        more = self._per_token * decoding
        peak = held + more * (steps - 1)
        large = peak | used | internal | running | decoding
        if rest is not None:
            large |= _highest_bits(rest)
        if (total >= LONGEST_PS or large >= MOST_SLOTS) and large >= LARGEST // (total + 1):
            return False
        if grown is not None and grown[3]:
            peak = peak_slots(len(ends), start[2], int(more), grown)
        self.spans += 1
        if running > self.max_running:
            self.max_running = running
        if peak > self.peak_slots:
            self.peak_slots = peak
        sums = self._unsaturated
        if held_by:
            self._held_ps[held_by] = self._held_ps.get(held_by, 0) + ends[-1]
            sums = self._saturated
        token = held * total
        if decoding:
            self._count += decoding * steps
            self.tokens += decoding * steps
            self._weighted.add(decoding * total)
            token += more * self._add_gaps(ends, decoding, total)
        sums.time_ps.add(total)
        sums.token.add(token)
        sums.used.add(used * total)
        sums.internal.add(internal * total)
        sums.running.add(running * total)
        if rest is not None:
            sums.add_rest(rest, total)
        if grown is not None:
            sums.add_grown(grown, ends, total)
        return True

    def late(self, gap_ps: int, count: int) -> bool:
        """Count `count` equal gaps; False if they are left to bulk counting."""
        if gap_ps >= LARGEST or count >= MOST_SLOTS:
            return False
        gap: i64 = gap_ps
        weight: i64 = count
        if gap >= LONGEST_PS and weight >= LARGEST // gap:
            return False
        self._count += weight
        self.tokens += weight
        self._weighted.add(weight * gap)
        self._add_gaps([gap_ps], weight, gap)
        return True

    def give(
        self, saturated: Integrals, unsaturated: Integrals, held_ps: dict[str, int], gaps: Histogram
    ) -> None:
        """Add what was counted since the last call to a recorder's sums."""
        self._saturated.give(saturated)
        self._unsaturated.give(unsaturated)
        for held_by, duration_ps in self._held_ps.items():
            held_ps[held_by] += duration_ps
        weights, self._held_ps = self._weights, {}
        gaps.add_bins(
            self._filled,
            [weights[bin] for bin in self._filled],
            int(self._count),
            self._weighted.take(),
            int(self._longest_ps),
        )
        for bin in self._filled:
            weights[bin] = 0
        self._filled = []
        self.spans = self._count = self._longest_ps = 0

    def _add_gaps(self, ends: list[int], weight: i64, total: i64) -> i64:
        """Bin the steps of a span, with this `weight`; returns the sum of the times after each step.

        Steps get longer only slightly, so many in a row fall into one bin.
        """
        shift, longest = self._shift, self._longest_ps
        before: i64 = 0
        later: i64 = 0
        low: i64 = 0  # start of the bin
        high: i64 = 0  # end of the bin
        inside: i64 = 0  # consecutive steps in the bin
        for at in ends:
            end: i64 = at
            gap = end - before
            before = end
            later += total - end
            if gap > longest:
                longest = gap
            if low <= gap < high:
                inside += 1
                continue
            if inside:
                self._fill(shift << BITS | low >> shift, inside * weight)
            while gap >> shift >= 2 * LEAST:
                shift += 1
            while shift > 0 and gap >> shift < LEAST:
                shift -= 1
            low = gap >> shift << shift
            high = low + (1 << shift)
            inside = 1
        self._fill(shift << BITS | low >> shift, inside * weight)
        self._shift, self._longest_ps = shift, longest
        return later

    def _fill(self, bin: i64, weight: i64) -> None:
        """Count `weight` gaps in a bin."""
        known: i64 = self._weights[bin]
        if not known:
            self._filled.append(int(bin))
        self._weights[bin] = int(known + weight)


def _is_small(grown: Grown) -> bool:
    """Whether the changes from growth within a span fit into 64 bits."""
    used, internal, evicted, _, idle, shared = grown
    return used < LARGEST and internal < LARGEST and evicted < LARGEST and idle < LARGEST and shared < LARGEST


def _highest_bits(rest: Rest) -> i64:
    """A number with at least as many binary digits as each of these."""
    external: i64 = rest[0]
    cached: i64 = rest[1]
    idle: i64 = rest[2]
    shared: i64 = rest[3]
    held: i64 = rest[4]
    return external | cached | idle | shared | held
