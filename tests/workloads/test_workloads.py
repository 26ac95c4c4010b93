"""Facts about workloads: the built-in lengths, the arrival process, and what a seed fixes."""

import math
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.shared_data import shared

from kvsim import workloads
from kvsim.sim.errors import KvsimError, listed
from kvsim.sim.workload import PS_PER_S, Workload
from kvsim.workloads.arrivals import arrival_times_ps
from kvsim.workloads.lengths import Lengths, take
from kvsim.workloads.sharegpt import load_lengths

ROWS = 8156
KNOWN = listed(list(workloads.TRACES))
COLUMNS = ("prompt_tokens", "output_tokens")
FREE = {"num_prompts": None, "request_rate": None, "burstiness": None, "seed": 0}


def build(trace="sharegpt", *, num_prompts=None, request_rate=2.0, burstiness=1.0, seed=0) -> Workload:
    return workloads.build(
        trace, num_prompts=num_prompts, request_rate=request_rate, burstiness=burstiness, seed=seed
    )


def gaps_s(n, request_rate, burstiness, seed=1):
    times = arrival_times_ps(n, request_rate, burstiness, np.random.default_rng(seed))
    return np.diff(times, prepend=0) / PS_PER_S


def as_bytes(workload: Workload) -> bytes:
    columns = (workload.arrival_ps, workload.prompt_tokens, workload.output_tokens)
    return b"".join(column.tobytes() for column in columns)


def five_rows() -> Lengths:
    return Lengths("five", np.arange(10, 15), np.arange(20, 25), ("Five rows.",))


# The built-in table


def test_sharegpt_has_8156_rows_of_4_to_2048_tokens():
    lengths = load_lengths()
    assert len(lengths) == ROWS
    assert lengths.prompt_tokens.dtype == lengths.output_tokens.dtype == np.int64
    assert lengths.prompt_tokens.min() == lengths.output_tokens.min() == 4
    assert (lengths.prompt_tokens + lengths.output_tokens).max() <= 2048


def test_sharegpt_means_are_those_of_the_shipped_file_and_of_its_sources_page():
    data = resources.files("kvsim.workloads.data")
    with data.joinpath("sharegpt.parquet").open("rb") as file:
        table = pq.read_table(file)
    sources = data.joinpath("SOURCES.md").read_text()
    assert f"{ROWS:,} requests" in sources
    lengths = load_lengths()
    for column in COLUMNS:
        shipped = table[column].to_pylist()
        assert getattr(lengths, column).mean() == sum(shipped) / ROWS
        line = f"| {column} | {sum(shipped) / ROWS:.1f} | {min(shipped)} | {max(shipped):,} |"
        assert line in sources


def test_sharegpt_equals_the_reference_row_by_row():
    reference = pq.read_table(shared("data/traces/sharegpt_human_2048.parquet"))
    lengths = load_lengths()
    for column in COLUMNS:
        assert np.array_equal(getattr(lengths, column), reference[column].to_numpy())


# How many rows


def test_without_num_prompts_the_table_comes_whole_and_in_order():
    workload = build()
    assert np.array_equal(workload.prompt_tokens, load_lengths().prompt_tokens)
    assert workload.notes == load_lengths().notes


def test_num_prompts_equal_to_the_rows_is_the_whole_table():
    assert as_bytes(build(num_prompts=ROWS)) == as_bytes(build())


def test_fewer_prompts_are_the_first_rows_whatever_the_seed():
    for seed in (0, 1):
        taken = take(five_rows(), 3, np.random.default_rng(seed))
        assert taken.prompt_tokens.tolist() == [10, 11, 12]
        assert taken.output_tokens.tolist() == [20, 21, 22]
    assert taken.notes == (
        "Five rows.",
        "The first 3 of the 5 rows of five, whatever the seed (see --shuffle).",
    )


def test_shuffled_rows_are_other_ones_with_every_seed_each_once_and_whole():
    taken = [take(five_rows(), 3, np.random.default_rng(seed), shuffle=True) for seed in range(40)]
    rows = [tuple(each.prompt_tokens.tolist()) for each in taken]
    assert all(len({*each}) == 3 and {*each} <= {10, 11, 12, 13, 14} for each in rows)
    assert all(np.array_equal(each.output_tokens, each.prompt_tokens + 10) for each in taken)
    assert len({*rows}) > 25 and {row[0] for row in rows} == {10, 11, 12, 13, 14}
    assert taken[0].notes[1:] == ("3 of the 5 rows of five, drawn by the seed.",)
    whole = take(five_rows(), None, np.random.default_rng(0), shuffle=True)
    assert sorted(whole.prompt_tokens) == [10, 11, 12, 13, 14]
    assert len(take(five_rows(), 7, np.random.default_rng(0), shuffle=True)) == 7


def test_fewer_shuffled_rows_are_the_first_of_more():
    few, more = (take(five_rows(), n, np.random.default_rng(3), shuffle=True) for n in (2, 4))
    assert few.prompt_tokens.tolist() == more.prompt_tokens[:2].tolist()


def test_rows_that_come_at_their_own_times_or_in_turns_are_not_shuffled():
    timed = replace(five_rows(), arrival_s=np.arange(5.0))
    with pytest.raises(KvsimError, match="shuffle must be left out for trace five, which has its own"):
        workloads.build(timed, **FREE, shuffle=True)
    turns = replace(five_rows(), labels={"session": np.zeros(5, np.int64)})
    with pytest.raises(KvsimError, match="shuffle must be left out with closed_sessions"):
        workloads.build(turns, **FREE, closed_sessions=True, shuffle=True)


def test_more_prompts_are_whole_rows_drawn_with_replacement():
    taken = take(five_rows(), 1000, np.random.default_rng(0))
    assert taken.notes == ("Five rows.", "1,000 rows drawn with replacement from the 5 of five.")
    assert np.array_equal(taken.output_tokens, taken.prompt_tokens + 10)
    counts = np.bincount(taken.prompt_tokens - 10, minlength=5)
    assert np.abs(counts - 200).max() < 5 * math.sqrt(1000 * 0.2 * 0.8)


def test_a_million_requests_keep_the_mean_lengths():
    workload, table = build(num_prompts=1_000_000), load_lengths()
    assert len(workload) == 1_000_000
    for column in COLUMNS:
        values = getattr(table, column)
        error = abs(getattr(workload, column).mean() - values.mean())
        assert error < 5 * values.std() / math.sqrt(1_000_000)


# Arrivals


def test_poisson_gaps_have_the_asked_mean_and_a_cv_of_one():
    n, rate = 200_000, 8.0
    gaps = gaps_s(n, rate, 1.0)
    assert gaps.mean() == pytest.approx(1 / rate, rel=5 / math.sqrt(n))
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=5 / math.sqrt(n))


def test_poisson_gaps_are_exponential():
    n, rate = 200_000, 8.0
    gaps = gaps_s(n, rate, 1.0)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        below = (gaps < -math.log(1 - quantile) / rate).mean()
        assert abs(below - quantile) < 5 * math.sqrt(quantile * (1 - quantile) / n)


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 4.0, 100.0])
def test_burstiness_b_gives_a_cv_of_one_over_root_b(burstiness):
    n = 200_000
    gaps = gaps_s(n, 3.0, burstiness)
    cv = 1 / math.sqrt(burstiness)
    assert gaps.mean() == pytest.approx(1 / 3, rel=5 * cv / math.sqrt(n))
    # Standard error of a gamma's CV, relative: sqrt((1 + cv**2) / 2n).
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=5 * math.sqrt((1 + cv**2) / (2 * n)))


def test_gaps_are_those_of_the_gamma_call_in_the_vllm_benchmark():
    rate, burstiness = 3.0, 0.5
    expected = np.random.default_rng(1).gamma(shape=burstiness, scale=1 / (rate * burstiness), size=1000)
    times = arrival_times_ps(1000, rate, burstiness, np.random.default_rng(1))
    assert times == pytest.approx(np.cumsum(expected) * PS_PER_S, rel=1e-12, abs=1)


def test_an_infinite_rate_lets_all_arrive_at_zero():
    workload = build(request_rate=math.inf)
    assert workload.arrival_ps.dtype == np.int64
    assert not workload.arrival_ps.any()


def test_the_first_request_comes_after_the_first_gap():
    assert build().arrival_ps[0] > 0


def test_no_requests_have_no_arrivals():
    assert arrival_times_ps(0, 1.0, 1.0, np.random.default_rng(0)).shape == (0,)


# What a seed fixes


@pytest.mark.parametrize("num_prompts", [100, 10_000])
def test_the_same_seed_gives_the_same_bytes(num_prompts):
    one, again = (build(num_prompts=num_prompts, seed=7) for _ in range(2))
    assert as_bytes(one) == as_bytes(again)


def test_another_seed_gives_other_arrivals_and_another_sample():
    one, other = build(num_prompts=10_000, seed=7), build(num_prompts=10_000, seed=8)
    assert (one.arrival_ps != other.arrival_ps).any()
    assert (one.prompt_tokens != other.prompt_tokens).any()


def test_the_rate_and_burstiness_do_not_change_the_sampled_lengths():
    one = build(num_prompts=10_000)
    other = build(num_prompts=10_000, request_rate=50.0, burstiness=0.3)
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert np.array_equal(one.output_tokens, other.output_tokens)


def test_twice_the_rate_is_the_same_arrivals_at_half_the_time():
    slow, fast = build(request_rate=3.0), build(request_rate=6.0)
    assert np.abs(slow.arrival_ps - 2 * fast.arrival_ps).max() <= 1


def test_more_prompts_only_add_arrivals():
    assert np.array_equal(build(num_prompts=50).arrival_ps, build(num_prompts=90).arrival_ps[:50])


# Errors


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trace": "sharegtp"}, f"trace 'sharegtp' is unknown; did you mean 'sharegpt'? (known: {KNOWN})"),
        ({"num_prompts": 0}, "num_prompts must be at least 1, got 0"),
        ({"num_prompts": -3}, "num_prompts must be at least 1, got -3"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ({"request_rate": 0.0}, "request_rate must be above 0 requests/s (inf: all at once), got 0.0"),
        ({"request_rate": -2.0}, "request_rate must be above 0 requests/s (inf: all at once), got -2.0"),
        ({"request_rate": math.nan}, "request_rate must be above 0 requests/s (inf: all at once), got nan"),
        ({"burstiness": 0.0}, "burstiness must be above 0 and finite, got 0.0"),
        ({"burstiness": math.nan}, "burstiness must be above 0 and finite, got nan"),
        ({"burstiness": math.inf}, "burstiness must be above 0 and finite, got inf"),
        (
            {"burstiness": -1.0, "request_rate": math.inf},
            "burstiness must be above 0 and finite, got -1.0",
        ),
        (
            {"request_rate": 5e-324, "num_prompts": 10},
            "request_rate 5e-324 is too low for 10 requests: the last would arrive at inf s, "
            "the clock ends at 4.61e+06 s",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(wrong, message):
    with pytest.raises(KvsimError) as error:
        build(**wrong)
    assert str(error.value) == message


def test_arrivals_past_the_end_of_the_clock_name_the_rate_and_the_count():
    expected = (
        r"request_rate 1e-06 is too low for 1000 requests: the last would arrive at "
        r"\S+e\+0[89] s, the clock ends at 4\.61e\+06 s"
    )
    with pytest.raises(KvsimError, match=f"^{expected}$"):
        build(num_prompts=1000, request_rate=1e-6)


def test_a_table_with_no_rows_or_uneven_columns_is_refused():
    column = np.ones(2, dtype=np.int64)
    with pytest.raises(KvsimError, match=r"^trace 'empty' has no rows$"):
        Lengths("empty", column[:0], column[:0])
    with pytest.raises(KvsimError, match=r"^output_tokens has 1 rows, prompt_tokens has 2$"):
        Lengths("uneven", column, column[:1])


# Names


def test_every_trace_loads_under_its_own_name():
    assert workloads.trace_names() == list(workloads.TRACES)
    for name in workloads.trace_names():
        own = workloads.load(name).arrival_s is not None
        assert build(name, num_prompts=1, request_rate=None if own else 2.0, burstiness=None).name == name


def test_importing_workloads_does_not_import_pyarrow():
    code = "import sys, kvsim.workloads; sys.exit('pyarrow' in sys.modules)"
    root = Path(workloads.__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
