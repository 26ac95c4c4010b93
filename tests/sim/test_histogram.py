"""The histogram of gaps between tokens counts, sums and finds the maximum exactly; quantiles nearly so."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.sim.record.histogram import Histogram

pytestmark = pytest.mark.slow

VALUES = st.one_of(st.integers(0, 3_000), st.integers(0, 2**50))
GAPS = st.lists(st.tuples(st.lists(VALUES, min_size=1, max_size=8), st.integers(1, 50)), min_size=1)


def filled(spans):
    """A histogram of (gaps, weight) pairs, added in bulk: a span holds the running sums of its gaps."""
    histogram = Histogram()
    ends = [[sum(gaps[: i + 1]) for i in range(len(gaps))] for gaps, _ in spans]
    histogram.add_spans(ends, [weight for _, weight in spans])
    return histogram


def listed(spans):
    return sorted(gap for gaps, weight in spans for gap in gaps for _ in range(weight))


def facts(histogram):
    return (histogram.count, histogram.total, histogram.maximum, histogram.bins())


@given(GAPS)
def test_count_sum_mean_and_maximum_are_exact(spans):
    histogram, values = filled(spans), listed(spans)
    assert (histogram.count, histogram.total, histogram.maximum) == (len(values), sum(values), values[-1])
    assert histogram.mean() == sum(values) / len(values)
    assert sum(weight for _, weight in histogram.bins()) == len(values)


@given(GAPS, st.lists(st.integers(1, 64), min_size=1))
def test_a_quantile_is_off_by_at_most_a_thousandth(spans, sixty_fourths):
    histogram, values = filled(spans), listed(spans)
    found = histogram.quantiles([k / 64 for k in sixty_fourths])
    for k, value in zip(sixty_fourths, found, strict=True):
        assert value == pytest.approx(values[ceil(k * len(values) / 64) - 1], rel=1e-3, abs=0)
        assert value <= histogram.maximum


@given(st.lists(st.integers(0, 1_023), min_size=1), st.integers(1, 64))
def test_quantiles_of_values_below_1024_are_exact(values, k):
    histogram = Histogram()
    for value in values:
        histogram.add_spans([[value]], [1])
    assert histogram.quantiles([k / 64]) == [sorted(values)[ceil(k * len(values) / 64) - 1]]


@given(GAPS, GAPS)
def test_what_is_added_in_two_parts_counts_as_if_added_at_once(first, second):
    histogram = filled(first)
    ends = [[sum(gaps[: i + 1]) for i in range(len(gaps))] for gaps, _ in second]
    histogram.add_spans(ends, [weight for _, weight in second])
    assert facts(histogram) == facts(filled(first + second)) == facts(filled(second + first))


@given(VALUES, st.integers(1, 50))
def test_a_weight_of_n_counts_n_times(value, n):
    heavy, light = Histogram(), Histogram()
    heavy.add_spans([[value]], [n])
    for _ in range(n):
        light.add_spans([[value]], [1])
    assert facts(heavy) == facts(light)


@given(GAPS, st.lists(VALUES, min_size=1))
def test_a_weight_of_none_counts_nothing(spans, gaps):
    assert facts(filled([*spans, (gaps, 0)])) == facts(filled(spans))


@given(VALUES)
def test_a_single_value_is_all_its_quantiles(value):
    histogram = Histogram()
    histogram.add_spans([[value]], [3])
    assert histogram.quantiles([0.0, 0.5, 1.0]) == pytest.approx([value] * 3, rel=1e-3, abs=0)


def test_an_empty_histogram_has_no_mean_and_no_quantiles():
    histogram = Histogram()
    assert (histogram.count, histogram.total, histogram.maximum) == (0, 0, 0)
    assert histogram.mean() is None
    assert histogram.quantiles([0.5, 0.99]) == [None, None]
    assert histogram.bins() == []


def test_sums_beyond_64_bits_of_picoseconds_stay_exact():
    histogram = Histogram()
    for _ in range(5):
        histogram.add_spans([[2**50]], [2**20])
    assert histogram.total == 5 * 2**70
    assert histogram.mean() == 2**50
