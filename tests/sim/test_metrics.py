"""The numbers of the summary, worked out by hand for three made-up requests."""

import json
import math

import numpy as np
import pytest

from kvsim.sim.record.histogram import Histogram
from kvsim.sim.record.instants import TIMELINE_COLUMNS
from kvsim.sim.record.load import LIMITS
from kvsim.sim.record.metrics import request_table, step_table, summary, timeline_table
from kvsim.sim.record.recorder import STEP_COLUMNS, Result
from kvsim.sim.record.request_log import REQUEST_COLUMNS
from kvsim.sim.record.span import Integrals
from kvsim.sim.workload import PS_PER_S, Workload

CAPACITY = 1_000
SPREAD = ("mean", "p50", "p90", "p95", "p99", "max")


def column(*values):
    return np.array(values, dtype=np.int64)


def seconds(*values):
    return column(*(round(value * PS_PER_S) for value in values))


def made_up(finished=(True, True, True, False), **changes):
    """A with one token; B with five, with one gap twice as long; C cut from 9 to 2 tokens; D rejected.

    | | arrival | scheduled | first | last |
    | A | 0 | 0 | 1 | 1 |
    | B | 1 | 3 | 4 | 9 |
    | C | 2 | 2 | 5 | 7 |
    """
    gaps = Histogram()
    gaps.add_spans([[PS_PER_S], [2 * PS_PER_S]], [3, 2])
    times = {
        "first_scheduled_ps": seconds(0, 3, 2, 0),
        "first_token_ps": seconds(1, 4, 5, 0),
        "finish_ps": seconds(1, 9, 7, 0),
        "num_preemptions": column(0, 1, 0, 0),
        "first_scheduled_step": column(0, 2, 1, 0),
        "first_token_step": column(0, 3, 4, 0),
        "finish_step": column(0, 8, 6, 0),
    }
    assert set(times) == set(REQUEST_COLUMNS)
    saturated = Integrals(
        time_ps=4 * PS_PER_S,
        token=4 * PS_PER_S * 500,
        used=4 * PS_PER_S * 800,
        internal=4 * PS_PER_S * 100,
        running=4 * PS_PER_S * 2,
        external=4 * PS_PER_S * 150,
    )
    unsaturated = Integrals(
        time_ps=6 * PS_PER_S,
        token=6 * PS_PER_S * 100,
        used=6 * PS_PER_S * 300,
        internal=0,
        running=6 * PS_PER_S,
        cached=6 * PS_PER_S * 50,
        shared=6 * PS_PER_S * 10,
    )
    facts = {
        "workload": Workload("test", seconds(0, 1, 2, 3), column(10, 20, 30, 9_999), column(1, 5, 9, 7)),
        "arrival_ps": seconds(0, 1, 2, 3),
        "output_tokens": column(1, 5, 2, 7),
        "finished": np.array(finished),
        "truncated": 1,
        "rejected": {"too long": 1},
        "requests": times,
        "timeline": {name: column(0, 1) for name in TIMELINE_COLUMNS if name not in ("held", "idle")}
        | {"time_ps": seconds(0, 2.5)},
        "steps": None,
        "saturated": saturated,
        "unsaturated": unsaturated,
        "held_ps": dict.fromkeys(LIMITS, 0) | {"kv_memory": 3 * PS_PER_S, "max_num_seqs": PS_PER_S},
        "token_gaps": gaps,
        "capacity_slots": CAPACITY,
        "end_ps": 10 * PS_PER_S,
        "step_count": 9,
        "max_running": 3,
        "peak_used_tokens": 640,
        "preemptions": 1,
        "fragmented_refusals": 2,
        "copied_slots": 48,
        "cow_copies": 3,
    }
    return Result(**facts | changes)


def summed_up(result):
    return summary(result, request_table(result))


def test_each_request_gets_its_latencies_by_definition():
    table = request_table(made_up())
    expected = {
        "queueing_s": [0, 2, 0],
        "ttft_s": [1, 3, 3],
        "tpot_s": [0, 5 / 4, 2],  # (E2E - TTFT) / (output - 1); 0 for one token
        "e2e_s": [1, 8, 5],
        "normalized_s_per_token": [1, 8 / 5, 5 / 2],
        "finish_step": [0, 8, 6],
    }
    for name, values in expected.items():
        assert table[name][:3].tolist() == values, name
    assert table["status"].tolist() == ["finished", "finished", "truncated", "rejected"]
    assert table["request"].tolist() == [0, 1, 2, 3]
    assert table["output_tokens"].tolist() == [1, 5, 2, 7]


def test_a_rejected_request_has_no_times():
    table = request_table(made_up())
    without = {name for name, values in table.items() if values.dtype == float and math.isnan(values[3])}
    times = {"first_scheduled_s", "first_token_s", "finish_s", "queueing_s", "ttft_s", "tpot_s", "e2e_s"}
    assert without == times | {
        *("normalized_s_per_token", "first_scheduled_step", "first_token_step", "finish_step")
    }
    assert table["arrival_s"][3] == 3


def test_one_token_takes_no_time_per_further_token():
    only = made_up(finished=(True, False, False, False))
    assert summed_up(only)["latency"]["tpot_s"] == dict.fromkeys(
        ("mean", "p50", "p90", "p95", "p99", "max"), 0
    )


def test_latencies_are_summed_up_over_finished_requests():
    latency = summed_up(made_up())["latency"]
    assert latency["ttft_s"]["mean"] == pytest.approx(7 / 3)
    assert (latency["ttft_s"]["p50"], latency["ttft_s"]["max"]) == (3, 3)
    assert latency["e2e_s"]["mean"] == pytest.approx(14 / 3)
    assert latency["e2e_s"]["p90"] == pytest.approx(5 + 0.8 * 3)  # between the last two, as numpy does
    assert latency["normalized_s_per_token"]["mean"] == pytest.approx((1 + 1.6 + 2.5) / 3)


def test_gaps_between_tokens_count_each_gap_once():
    gaps = summed_up(made_up())["latency"]["itl_s"]
    assert gaps["mean"] == pytest.approx(7 / 5)
    assert gaps["p50"] == pytest.approx(1, rel=1e-3)
    assert gaps["p90"] == pytest.approx(2, rel=1e-3)
    assert gaps["max"] == 2


def test_throughput_counts_what_finished_in_all_the_time():
    found = summed_up(made_up())
    assert found["duration_s"] == 10
    assert found["throughput"] == {
        "requests_per_s": 0.3,
        "output_tokens_per_s": 0.8,
        "total_tokens_per_s": 6.8,
    }
    assert found["requests"] == {
        "submitted": 4,
        "finished": 3,
        "rejected": 1,
        "rejected_reasons": {"too long": 1},
        "truncated": 1,
    }


def test_memory_is_averaged_over_time_in_percent_of_the_capacity():
    memory = summed_up(made_up())["memory"]
    assert memory["saturated"] == {
        **{"token": 50, "reserved": 20, "internal": 10, "cached": 0, "external": 15, "free": 5}
    }
    assert memory["average"] == pytest.approx(
        {"token": 26, "reserved": 20, "internal": 4, "cached": 3, "external": 6, "free": 41}
    )
    assert sum(memory["average"].values()) == pytest.approx(100)
    assert memory["saturated_share"] == pytest.approx(0.4)
    assert memory["saved_by_sharing"] == pytest.approx(0.6)
    assert (memory["capacity_tokens"], memory["peak_used_tokens"]) == (CAPACITY, 640)


def test_what_held_requests_back_is_told_as_shares_of_the_whole_run():
    assert summed_up(made_up())["load"]["held_back_share"] == {
        **{"kv_memory": 0.3, "max_num_seqs": 0.1, "max_num_batched_tokens": 0, "batch": 0}
    }


def test_running_is_averaged_over_the_whole_and_the_saturated_time():
    engine = summed_up(made_up())["engine"]
    assert (engine["mean_running"], engine["mean_running_saturated"]) == (1.4, 2)
    assert (engine["steps"], engine["max_running"], engine["preemptions_recompute"]) == (9, 3, 1)


def test_where_nothing_finished_or_nobody_waited_there_is_none_and_not_zero():
    nothing = made_up(
        finished=(False,) * 4,
        rejected={"too long": 4},
        saturated=Integrals(),
        unsaturated=Integrals(),
        token_gaps=Histogram(),
        end_ps=0,
    )
    found = summed_up(nothing)
    assert all(spread == dict.fromkeys(SPREAD) for spread in found["latency"].values())
    assert set(found["throughput"].values()) == {None}
    assert (found["memory"]["average"], found["memory"]["saturated"]) == (None, None)
    assert (found["memory"]["saved_by_sharing"], found["memory"]["saturated_share"]) == (None, None)
    assert (found["engine"]["mean_running"], found["engine"]["mean_running_saturated"]) == (None, None)
    assert found["requests"]["rejected"] == 4
    assert set(found["load"]["held_back_share"].values()) == {None}
    assert not found["load"]["overloaded"]


def test_the_summary_is_json():
    json.dumps(summed_up(made_up()), allow_nan=False)


def test_tables_give_seconds_and_name_them_so():
    result = made_up()
    assert timeline_table(result)["time_s"].tolist() == [0, 2.5]
    assert "time_ps" not in timeline_table(result)
    assert step_table(result) is None
    steps = step_table(made_up(steps={name: seconds(1.5) for name in STEP_COLUMNS}))
    assert (steps["start_s"].tolist(), steps["duration_s"].tolist()) == ([1.5], [1.5])
    assert len(steps) == len(STEP_COLUMNS)
