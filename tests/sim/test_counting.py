"""Spans counted one by one, as a compiled recorder does, give the sums that are counted in bulk."""

from operator import mul
from random import Random

import numpy as np
import pytest

from kvsim.sim.record.counting import LARGEST, LONGEST_PS, MOST_SLOTS, Counting
from kvsim.sim.record.histogram import Histogram
from kvsim.sim.record.products import sums_of_products
from kvsim.sim.record.span import HELD_BY, Columns, Integrals

PER_TOKEN = 3


def planned(*facts, grown=None):
    """A span with these facts."""
    ends, *start = facts
    return ends, tuple(start), grown


def drawn(random, longest_ps, most_slots):
    """A span of some steps: of a few slots or many, with growth, windows, a rest, or none of these."""
    ends, end = [], 0
    for _ in range(random.choice((1, 1, 2, 3, 30))):
        end += random.randrange(1, random.choice((4, 2_000, longest_ps // 40)))
        ends.append(end)
    rest = random.choice((None, tuple(random.randrange(100) for _ in range(5))))
    most = random.choice((2, most_slots))
    decoding, running, held, used = (random.randrange(bound) for bound in (9, 9, most, most))
    held_by = random.choice(("", "kv_memory"))
    left, grown = random.choice((None, [(step, 1) for step in range(1, len(ends))])), None
    if len(ends) > 1:
        grown = random.choice((None, (random.randrange(1 << 50), 5, 7, left, 11, 13)))
    return planned(ends, decoding, running, held, used, used // 3, held_by, rest, grown=grown)


def in_bulk(spans):
    """The sums, the histogram and the extremes as an interpreted recorder counts them."""
    sums, gaps, held_ps, running, peak = [], Histogram(), 0, 0, 0
    for held_by in ("kv_memory", ""):
        columns = Columns([span for span in spans if span[1][HELD_BY] == held_by], PER_TOKEN)
        sums.append(Integrals())
        sums[-1].add_spans(columns)
        gaps.add_ends(columns.ends_ps, columns.steps, columns.starts[0])
        held_ps += sum(columns.totals_ps.tolist()) if held_by else 0
        running, peak = max(running, int(columns.starts[1].max())), columns.peak_slots(peak)
    return sums, (gaps.bins(), gaps.count, gaps.total, gaps.maximum), held_ps, (running, peak)


@pytest.mark.parametrize("seed", range(20))
def test_one_by_one_and_in_bulk_come_to_the_same(seed):
    random = Random(seed)
    spans = [drawn(random, LONGEST_PS, MOST_SLOTS // 2) for _ in range(300)]
    counting, gaps, held_ps = Counting(PER_TOKEN), Histogram(), {"kv_memory": 0}
    sums = [Integrals(), Integrals()]
    for part in (spans[:100], spans[100:]):
        assert all(counting.add(span) for span in part)
        counting.give(*sums, held_ps, gaps)
    extremes = counting.max_running, counting.peak_slots
    found = sums, (gaps.bins(), gaps.count, gaps.total, gaps.maximum), held_ps["kv_memory"], extremes
    assert found == in_bulk(spans)


@pytest.mark.parametrize(
    "larger",
    [
        planned([LARGEST], 1, 1, 1, 1, 0, "", None),
        planned([LARGEST // 8], 9, 1, 1, 1, 0, "", None),
        planned([5, LARGEST // MOST_SLOTS], 1, 1, MOST_SLOTS - 1, 1, 0, "", None),
        planned([LONGEST_PS], 1, 1, 1, LARGEST // LONGEST_PS, 0, "", None),
        planned([LONGEST_PS], 1, 1, 1, 1, 0, "", (0, 0, 0, 0, LARGEST // LONGEST_PS)),
        planned([5, 9], 1, 1, 1, 1, 0, "", None, grown=(LARGEST, 0, 0, None, 0, 0)),
    ],
)
def test_spans_with_larger_numbers_are_left_for_the_bulk(larger):
    counting, gaps, sums = Counting(1), Histogram(), Integrals()
    counted = [counting.add(span) for span in (planned([5], 1, 1, 1, 1, 0, "", None), larger)]
    counting.give(sums, sums, {}, gaps)
    assert counted == [True, False]
    assert (sums.time_ps, gaps.count, counting.spans) == (5, 1, 0)


def test_late_tokens_one_by_one_and_in_bulk_come_to_the_same():
    random = Random(0)
    late = [(random.randrange(10 ** random.randrange(1, 12)), random.randrange(1, 9)) for _ in range(100)]
    counting, gaps, bulk, sums = Counting(1), Histogram(), Histogram(), Integrals()
    assert all(counting.late(*each) for each in late)
    assert not counting.late(LARGEST, 1)
    assert not counting.late(LARGEST // 8, 9)
    assert not counting.late(1, MOST_SLOTS)
    counting.give(sums, sums, {}, gaps)
    bulk.add_spans([[gap] for gap, _ in late], [count for _, count in late])
    found, expected = ((each.bins(), each.count, each.total, each.maximum) for each in (gaps, bulk))
    assert found == expected


@pytest.mark.parametrize("most", [1 << 20, 1 << 31, 1 << 40, 1 << 62])
@pytest.mark.parametrize("longest_ps", [1 << 20, 1 << 42, (1 << 63) - 1])
def test_sums_of_products_are_exact_whatever_their_size(most, longest_ps):
    random = Random(most ^ longest_ps)
    rows = [[random.randrange(most) for _ in range(1_500)] for _ in range(2)]
    times = [random.randrange(longest_ps) for _ in range(1_500)]
    expected = [sum(map(mul, row, times)) for row in rows]
    for kind in (np.int64, object):
        assert sums_of_products(np.array(rows), np.array(times, kind)) == expected
