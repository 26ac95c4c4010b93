"""When each decoding sequence must grow, on the clock of decode steps.

Steady growth (`unit` > 0, e.g. blocks): every growth adds `unit` slots and every step fills one, so a
sequence is due at all clocks of one residue modulo `unit` until its last growth, which is known from the
start. It is entered once, however long it decodes.

Irregular growth (`unit` = 0, e.g. doubling): the next growth is known only when the previous one is done.

Between steady growths a sequence may *leave* slots behind a window; each time the next time is known.
"""

from bisect import insort
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from kvsim.allocators.records import Id

Grown = tuple[int, int, int, list[tuple[int, int]] | None, int, int]
"""What growth within a span changed, as integrals from each growth to the end of the span.

Slots allocated; slots that will never be written; slots that were cached before; (step, slots) that were left
behind or became shared; slots that became idle; tokens that became shared.
"""


SOON_PS: Final = 1 << 42
MANY: Final = 1 << 20
"""Four seconds, and slots: products of times and slots up to these add up within 64 bits."""


class GrowthCalendar:
    """Sequence ids by the clock at which they must grow; ascending id at the same clock.

    Attributes
    ----------
    residues : list of lists of int
        Steady growth: the sequences due at all clocks with this residue modulo `unit`.
    last : dict of lists of int
        Clock -> sequences that need no more growth after it.
    leaving : dict of lists of int
        Clock -> sequences that leave slots then, in no order.
    unwritten : dict of lists of (int, int)
        Clock -> (sequence, its slots that will never be written from then on), if a growth allocates more
        slots than its tokens take. Sequences that are gone by then are still listed.
    margin : int
        Growths for which every step must have room, in addition to those that are due.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.residues: list[list[int]] = [[] for _ in range(unit)]
        self.last: dict[int, list[int]] = {}
        self.leaving: dict[int, list[int]] = {}
        self.unwritten: dict[int, list[tuple[int, int]]] = {}
        self.margin = 0
        self._steady = 0  # sequences in `residues`
        self._irregular: dict[int, list[int]] = {}
        self._leaves_at: dict[int, int] = {}

    def add(self, seq: int, clock: int, finish_clock: int) -> None:
        """A sequence is full at `clock` and ends at `finish_clock`, which comes later."""
        unit = self.unit
        if unit:
            self._steady += 1
            insort(self.residues[clock % unit], seq)
            last = self._last_growth(clock, finish_clock)
            if last in self.last:
                self.last[last].append(seq)
            else:
                self.last[last] = [seq]
        else:
            insort(self._irregular.setdefault(clock, []), seq)

    def remove(self, seq: int, clock: int, finish_clock: int) -> None:
        """Remove a sequence that is due at `clock`; one that needs no more growth is already removed."""
        unit = self.unit
        due = self.residues[clock % unit] if unit else self._irregular.get(clock, [])
        if seq in due:
            due.remove(seq)
            if unit:
                self._steady -= 1
                last = self._last_growth(clock, finish_clock)
                full = self.last[last]
                full.remove(seq)
                if not full:
                    del self.last[last]

    def leave_next(self, seq: int, clock: int) -> None:
        """A sequence leaves slots at `clock`."""
        self.leaving.setdefault(clock, []).append(seq)
        self._leaves_at[seq] = clock

    def pop_leaving(self, clock: int) -> list[int]:
        """Sequences that leave slots at `clock`; the caller says when each does so next."""
        seqs = self.leaving.pop(clock, [])
        for seq in seqs:
            del self._leaves_at[seq]
        return seqs

    def stay(self, seq: int) -> None:
        """A sequence leaves no more slots."""
        clock = self._leaves_at.pop(seq, None)
        if clock is not None:
            self.leaving[clock].remove(seq)
            if not self.leaving[clock]:
                del self.leaving[clock]

    def rename(self, seq: Id, later: Id, clock: int, finish_clock: int) -> None:
        """A sequence in steady growth, due at `clock`, continues under an id larger than all others."""
        due: list[Id] = self.residues[clock % self.unit]
        try:
            due.remove(seq)
        except ValueError:  # it needs no more growth
            return
        due.append(later)
        last: list[Id] = self.last[self._last_growth(clock, finish_clock)]
        last[last.index(seq)] = later

    def allocate_more(self, seq: int, clock: int, finish_clock: int, surplus: int, slots: int) -> None:
        """Each growth from `clock` on allocates `slots`: note from when on some will never be written.

        `surplus` is what a sequence has before, less what it will need.
        """
        first = max(-surplus // slots, 0)
        for at in range(clock + first * self.unit, self._last_growth(clock, finish_clock) + 1, self.unit):
            self.unwritten.setdefault(at, []).append((seq, surplus + (first + 1) * slots))
            first += 1

    def growths(self, clock: int, steps: int, counts: list[int]) -> Iterator[list[int]]:
        """The sequences that grow at each of the next `steps` clocks; asking for the next confirms the last.

        Their number goes to `counts`.
        """
        for later in range(clock + 1, clock + 1 + steps):
            due = self.residues[later % self.unit]
            counts.append(len(due))
            yield due
            if later in self.last:
                self.pop_full(later)

    def _last_growth(self, clock: int, finish_clock: int) -> int:
        """The last clock before the finish at which a sequence that is due at `clock` grows."""
        return finish_clock - 1 - (finish_clock - 1 - clock) % self.unit

    def many_due(self, clock: int) -> int:
        """How many sequences must still grow at `clock`."""
        return len(self.residues[clock % self.unit] if self.unit else self._irregular.get(clock, ()))

    def due(self, clock: int) -> list[int]:
        """The sequences that must grow at `clock`, as a list that `remove` and `pop_full` change.

        In irregular growth each is due once: the caller must let them grow.
        """
        return self.residues[clock % self.unit] if self.unit else self._irregular.pop(clock, [])

    def pop_full(self, clock: int) -> list[int]:
        """The sequences that grew for the last time at `clock`."""
        full = self.last.pop(clock, [])
        self._steady -= len(full)
        for seq in full:
            self.residues[clock % self.unit].remove(seq)
        return full

    def guaranteed_steps(self, clock: int, steps: int, budget: int) -> int:
        """How many of `steps` steps from `clock` on stay within the budget; the first does not count."""
        if not self.unit:
            return min([steps, *(later - clock for later in self._irregular if later > clock)])
        steps = min(steps, self.unit + 1)  # no sequence is due twice
        for later in range(clock + 1, clock + steps):
            budget -= len(self.residues[later % self.unit])
            if budget < 0:
                return later - clock
        return steps

    def growth_within(
        self, clock: int, ends: list[int], lefts: list[tuple[int, int]] | None = None
    ) -> tuple[list[int], int, list[tuple[int, int, int]]]:
        """The growths in a span whose i-th step ends at `ends[i]`; the first step has its memory already.

        Returns the sequences that grow in the other steps, in order; the integral of their new slots from
        then to the end of the span; and (sequence, clock, time left) of those that are now full. If `lefts`
        is given, (sequences that grow together, time left) goes there.
        """
        grown: list[int] = []
        full: list[tuple[int, int, int]] = []
        if not self.unit:
            return grown, 0, full
        residues, last, total = self.residues, self.last, ends[-1]
        long_before = 0  # sum over growths of the time before them, in 64 bits if that is enough
        before: i64 = 0
        unit: i64 = self.unit
        at: i64 = clock
        count: i64 = 0
        start: i64 = 0
        long = total > SOON_PS or self._steady * len(ends) * self.unit > MANY
        for start in ends[:-1]:
            at += 1
            due = residues[at % unit]
            if due:
                grown += due
                count = len(due)
                if long:
                    start_ps: int = start
                    long_before += len(due) * start_ps
                else:
                    before += count * start
                if lefts is not None:
                    lefts.append((len(due), total - start))
                if at in last:
                    left = total - start
                    full += [(seq, at, left) for seq in self.pop_full(at)]
        if long:
            return grown, (len(grown) * total - long_before) * self.unit, full
        count = len(grown)
        span: i64 = total
        return grown, (count * span - before) * unit, full
