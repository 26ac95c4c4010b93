"""The growth calendar against a list that is searched completely."""

from itertools import accumulate, cycle, islice

from hypothesis import given
from hypothesis import strategies as st

from kvsim.sim.serving.growth import GrowthCalendar

UNITS = st.integers(1, 9)
SEQS = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 60)), max_size=12)
"""For each sequence: clocks until it is full (cut to below the unit), and from then to its end."""

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=9)
"""Steps of one span after another."""


class NaiveCalendar:
    """Sequences that grow by `unit` when full: at `first`, `first + unit`, ... before `finish`."""

    def __init__(self, unit):
        self.unit = unit
        self.plans = {}

    def grows(self, seq, clock):
        first, finish = self.plans[seq]
        return first <= clock < finish and (clock - first) % self.unit == 0

    def due(self, clock):
        return sorted(seq for seq in self.plans if self.grows(seq, clock))

    def full(self, clock):
        """Sequences that grow at the clock and never again."""
        return sorted(seq for seq in self.due(clock) if clock + self.unit >= self.plans[seq][1])

    def next_due(self, seq, clock):
        return next((c for c in range(clock, clock + self.unit) if self.grows(seq, c)), None)


def filled(unit, seqs, clock=0):
    """Both calendars with the sequences, whose ids are not in ascending order."""
    calendar, naive = GrowthCalendar(unit), NaiveCalendar(unit)
    for seq, (wait, stay) in reversed([*enumerate(seqs)]):
        first = clock + wait % unit
        calendar.add(seq, first, first + stay)
        naive.plans[seq] = (first, first + stay)
    return calendar, naive


def take(calendar, clock):
    """Sequences due at the clock, and those of them that need no more, as the server asks for them."""
    due = calendar.due(clock)[:]
    return due, sorted(calendar.pop_full(clock))


def content(calendar):
    """Everything in a calendar."""
    return calendar.last, calendar.residues, calendar._irregular


@given(UNITS, SEQS, st.integers(0, 1_000))
def test_step_by_step_everybody_is_due_when_full_and_in_order_of_admission(unit, seqs, start):
    calendar, naive = filled(unit, seqs, start)
    for clock in range(start, start + 80):
        assert take(calendar, clock) == (naive.due(clock), naive.full(clock))


@given(UNITS, SEQS, st.lists(st.tuples(st.integers(0, 79), st.integers(0, 11)), max_size=6))
def test_who_is_removed_is_never_due_again_and_the_others_stay(unit, seqs, removals):
    calendar, naive = filled(unit, seqs)
    for clock in range(80):
        for when, seq in removals:
            if when == clock and seq in naive.plans:
                due = naive.next_due(seq, clock)
                at = clock if due is None else due  # with no growth left there is nothing to do
                calendar.remove(seq, at, naive.plans[seq][1])
                del naive.plans[seq]
        assert take(calendar, clock) == (naive.due(clock), naive.full(clock))


@given(UNITS, SEQS)
def test_who_is_removed_leaves_nothing_behind(unit, seqs):
    calendar, naive = filled(unit, seqs)
    for seq, (first, finish) in naive.plans.items():
        calendar.remove(seq, first, finish)
    assert content(calendar) == content(GrowthCalendar(unit))


@given(
    UNITS, SEQS, st.lists(st.integers(1, 12), min_size=1, max_size=9), st.lists(st.integers(1, 9), min_size=1)
)
def test_a_span_grows_as_its_steps_would_one_by_one(unit, seqs, lengths, durations):
    calendar, naive = filled(unit, seqs)
    clock = 0
    for length in lengths:
        assert take(calendar, clock) == (naive.due(clock), naive.full(clock))
        ends = [*accumulate(islice(cycle(durations), length))]
        starts = dict(zip(range(clock, clock + length), [0, *ends], strict=False))
        later = range(clock + 1, clock + length)
        lefts = []
        grown, used, full = calendar.growth_within(clock, ends, lefts)
        assert grown == [seq for c in later for seq in naive.due(c)]
        assert lefts == [(len(naive.due(c)), ends[-1] - starts[c]) for c in later if naive.due(c)]
        assert used == unit * sum(count * left for count, left in lefts)
        expected = [(seq, c, ends[-1] - starts[c]) for c in later for seq in naive.full(c)]
        assert sorted(full) == sorted(expected)
        clock += length


@given(UNITS, SEQS, st.integers(1, 40), st.integers(0, 20))
def test_guaranteed_steps_stay_within_the_budget_and_stop_only_for_it(unit, seqs, steps, budget):
    calendar, naive = filled(unit, seqs)
    take(calendar, 0)
    sure = calendar.guaranteed_steps(0, steps, budget)
    assert 1 <= sure <= steps

    def growths(count):
        return sum(len(naive.due(clock)) for clock in range(1, count))

    assert growths(sure) <= budget
    if sure < min(steps, unit + 1):  # it looks no further than a round
        assert growths(sure + 1) > budget


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12), st.integers(1, 50))
def test_irregular_growth_is_due_once_at_its_clock_and_ends_a_span_before_it(plans, steps):
    calendar, naive = GrowthCalendar(0), {}
    for seq, (clock, removed) in reversed([*enumerate(plans)]):
        calendar.add(seq, clock, clock + 5)
        naive[seq] = clock
        if removed:
            calendar.remove(seq, clock, clock + 5)
            del naive[seq]
    for clock in range(45):
        due = sorted(seq for seq, at in naive.items() if at == clock)
        assert calendar.due(clock)[:] == due
        naive = {seq: at for seq, at in naive.items() if at != clock}
        assert calendar.pop_full(clock) == []
        next_growth = min([at for at in naive.values() if at > clock], default=clock + steps)
        sure = calendar.guaranteed_steps(clock, steps, 0)
        assert 1 <= sure <= min(steps, next_growth - clock)
        assert calendar.growth_within(clock, list(range(1, sure + 1))) == ([], 0, [])
