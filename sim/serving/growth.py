"""When each decoding sequence must grow, on the clock of decode steps.

Steady growth (`unit` > 0, e.g. blocks): every growth adds `unit` slots and every step fills one, so a
sequence is due at all clocks of one residue modulo `unit` until its last growth, which is known from
the start. It is written down once, however long it decodes.

Irregular growth (`unit` = 0, e.g. doubling): the next growth is known only when the last one is done.

Between steady growths a sequence may *leave* slots behind a window: when next, is known one time ahead.
"""

from bisect import insort
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from kvsim.allocators.records import Id

Grown = tuple[int, int, int, list[tuple[int, int]] | None, int, int]
"""What growth within a span changed.

The integrals, from then to the end of the span, of the slots allocated, of those never to be written, of
those that were cached before; (step, slots) of what was left behind, or came to be shared; and the integrals
of the slots that came to be idle, and of the tokens that came to be shared.
"""


SOON_PS: Final = 1 << 42
MANY: Final = 1 << 20
"""Four seconds, and slots: times up to the one, of up to the other, add up within 64 bits."""


class GrowthCalendar:
    """Sequence ids by the clock at which they must grow; ascending id at the same clock.

    Attributes
    ----------
    residues : list of lists of int
        Of steady growth: who is due at all clocks that leave this rest when divided by `unit`.
    last : dict of lists of int
        Clock -> sequences that need no more after it.
    leaving : dict of lists of int
        Clock -> sequences that leave slots then, in no order.
    unwritten : dict of lists of (int, int)
        Clock -> (sequence, slots of it that will never be written from then on), where a growth allocates
        more slots than its tokens take. Who is gone by then still stands there.
    margin : int
        Growths for which there must be room in every step, beside those that are due.
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
        if self.unit:
            self._steady += 1
            insort(self.residues[clock % self.unit], seq)
            self.last.setdefault(self._last_growth(clock, finish_clock), []).append(seq)
        else:
            insort(self._irregular.setdefault(clock, []), seq)

    def remove(self, seq: int, clock: int, finish_clock: int) -> None:
        """Forget a sequence that is due at `clock`; one that needs no more is forgotten already."""
        due = self.residues[clock % self.unit] if self.unit else self._irregular.get(clock, [])
        if seq in due:
            due.remove(seq)
            if self.unit:
                self._steady -= 1
                last = self._last_growth(clock, finish_clock)
                self.last[last].remove(seq)
                if not self.last[last]:
                    del self.last[last]

    def leave_next(self, seq: int, clock: int) -> None:
        """A sequence leaves slots at `clock`."""
        self.leaving.setdefault(clock, []).append(seq)
        self._leaves_at[seq] = clock

    def pop_leaving(self, clock: int) -> list[int]:
        """Who leaves slots at `clock`: when next is to be said anew."""
        seqs = self.leaving.pop(clock, [])
        for seq in seqs:
            del self._leaves_at[seq]
        return seqs

    def stay(self, seq: int) -> None:
        """A sequence leaves no more."""
        clock = self._leaves_at.pop(seq, None)
        if clock is not None:
            self.leaving[clock].remove(seq)
            if not self.leaving[clock]:
                del self.leaving[clock]

    def rename(self, seq: Id, later: Id, clock: int, finish_clock: int) -> None:
        """A sequence that is due at `clock`, in steady growth, goes on under an id larger than all others."""
        unit = self.unit
        due: list[Id] = self.residues[clock % unit]
        try:
            due.remove(seq)
        except ValueError:  # it needs no more
            return
        due.append(later)
        last: list[Id] = self.last[finish_clock - 1 - (finish_clock - 1 - clock) % unit]
        last[last.index(seq)] = later

    def allocate_more(self, seq: int, clock: int, finish_clock: int, surplus: int, slots: int) -> None:
        """Each growth from `clock` on allocates so many slots: write down when more than 0 will be left over.

        `surplus` is what a sequence has before, less what it will need.
        """
        first = max(-surplus // slots, 0)
        for at in range(clock + first * self.unit, self._last_growth(clock, finish_clock) + 1, self.unit):
            self.unwritten.setdefault(at, []).append((seq, surplus + (first + 1) * slots))
            first += 1

    def growths(self, clock: int, steps: int, counts: list[int]) -> Iterator[list[int]]:
        """Who grows at each of so many clocks behind this one; asking for the next says that they did.

        How many they are goes to `counts`.
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
        """How many must grow at `clock`, who are still to be asked for."""
        return len(self.residues[clock % self.unit] if self.unit else self._irregular.get(clock, ()))

    def due(self, clock: int) -> list[int]:
        """The sequences that must grow at `clock`, as a list that `remove` and `pop_full` change.

        Those of irregular growth are due once: who asks lets them grow.
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
        """How many of `steps` steps from `clock` on grow within the budget; the first does not count."""
        if not self.unit:
            return min([steps, *(later - clock for later in self._irregular if later > clock)])
        steps = min(steps, self.unit + 1)  # nobody is due twice
        for later in range(clock + 1, clock + steps):
            budget -= len(self.residues[later % self.unit])
            if budget < 0:
                return later - clock
        return steps

    def growth_within(
        self, clock: int, ends: list[int], lefts: list[tuple[int, int]] | None = None
    ) -> tuple[list[int], int, list[tuple[int, int, int]]]:
        """Who grows in a span of steps, the i-th of which ends at `ends[i]`; its first step has its memory.

        Returns who grows in the others, in order; the integral of the slots they get from then to the
        end of the span; and of those that are full now (sequence, clock, time left). To `lefts`, where it is
        given, go (how many grow at a time, time left).
        """
        grown: list[int] = []
        full: list[tuple[int, int, int]] = []
        if not self.unit:
            return grown, 0, full
        residues, last, total = self.residues, self.last, ends[-1]
        long_before = 0  # sum over growths of the time before them, in 64 bits where that is enough
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
