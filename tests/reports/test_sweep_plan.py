"""Sweeps: how lists and ranges are read, which runs they make, and what is kept of them."""

import json

import pytest

from kvsim.reports.sweeps.journal import Journal
from kvsim.reports.sweeps.plan import SWEPT, labels, plan_of, varying
from kvsim.reports.sweeps.systems import systems
from kvsim.reports.sweeps.table import columns, numbers, read_table, write_table
from kvsim.reports.sweeps.values import values_of
from kvsim.sim.errors import KvsimError


@pytest.mark.parametrize(
    ("option", "text", "values"),
    [
        ("request_rate", "1:3:0.5", [1.0, 1.5, 2.0, 2.5, 3.0]),
        ("request_rate", "1:2:0.3", [1.0, 1.3, 1.6, 1.9]),
        ("request_rate", "0.1:0.3:0.1,inf", [0.1, 0.2, 0.3, float("inf")]),
        ("tensor_parallel_size", "1:8:x2", [1, 2, 4, 8]),
        ("max_num_seqs", "1:1000:log4", [1, 10, 100, 1000]),
        ("request_rate", "1:4:log3", [1.0, 2.0, 4.0]),
        ("tensor_parallel_size", "1,2,2,1", [1, 2]),
        ("allocator", "buddy:pow2,paged", ["buddy:pow2", "paged"]),
        ("enable_prefix_caching", "on,off", [True, False]),
        ("enable_prefix_caching", "default,on", [None, True]),
        ("block_size", "default,32", [None, 32]),
        ("columns", "a=b,c=d", ["a=b,c=d"]),
        ("scale", "slo:ttft=0.5,tpot=0.05; threshold:", ["slo:ttft=0.5,tpot=0.05", "threshold:"]),
        ("clients_mix", "A:0.8:ttft=1,B:0.2", ["A:0.8:ttft=1,B:0.2"]),
        ("request_rate", [1, "2:3:1"], [1.0, 2.0, 3.0]),
        ("max_num_seqs", range(2, 4), [2, 3]),
        ("sticky", True, [True]),
    ],
)
def test_values(option, text, values):
    found = values_of(SWEPT[option], text)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("option", "text", "complaint"),
    [
        ("request_rate", "1:2", "START:END:STEP"),
        ("request_rate", "2:1:1", "from less to more"),
        ("request_rate", "1:2:0", "step above 0"),
        ("request_rate", "1:2:-1", "step above 0"),
        ("request_rate", "0:2:x2", "above 0"),
        ("request_rate", "1:2:x1", "factor above 1"),
        ("request_rate", "1:2:log1", "at least 2"),
        ("request_rate", "1:1e9:0.1", "at most 100,000"),
        ("request_rate", "fast", "must be a number"),
        ("max_num_seqs", "1.5", "whole numbers"),
        ("sticky", "maybe", "on or off"),
        ("allocator", "a,,b", "must not be empty"),
        ("request_rate", [True], "must be float"),
        ("max_num_seqs", [1.5], "must be int"),
        ("request_rate", [], "at least one value"),
    ],
)
def test_what_is_no_value_is_told(option, text, complaint):
    with pytest.raises(KvsimError, match=complaint):
        values_of(SWEPT[option], text)


def settings(plan):
    """The settings of all points."""
    return [dict(point.settings) for point in plan.points()]


def test_a_grid_has_all_combinations():
    plan = plan_of({"request-rate": "1,2", "allocator": "paged,radix", "gpu": "h100"})
    assert settings(plan) == [
        {"request_rate": rate, "allocator": name, "gpu": "h100"}
        for rate in (1, 2)
        for name in ("paged", "radix")
    ]
    assert varying(plan.points()) == ["request_rate", "allocator"]


def test_zipped_lists_go_together_within_the_grid():
    plan = plan_of(
        {
            "gpu": "l40s,h100",
            "tensor_parallel_size": "2,1",
            "request_rate": "1,2",
            "zip": "gpu,tensor-parallel-size",
        }
    )
    assert settings(plan) == [
        {"gpu": gpu, "tensor_parallel_size": tp, "request_rate": rate}
        for gpu, tp in (("l40s", 2), ("h100", 1))
        for rate in (1, 2)
    ]
    whole = plan_of({"gpu": "l40s,h100", "tensor_parallel_size": "2,1", "n": "1", "zip": True})
    assert len(whole.points()) == 2
    with pytest.raises(KvsimError, match="one length, got gpu 2, request_rate 3"):
        plan_of({"gpu": "l40s,h100", "request_rate": "1:3:1", "zip": "all"}).points()
    with pytest.raises(KvsimError, match="zip must name options"):
        plan_of({"gpu": "l40s,h100", "zip": "model"})


def test_cases_have_grids_of_their_own():
    plan = plan_of({
        "allocator": "paged,radix",
        "case": [
            {"name": "chat", "trace": "sharegpt"},
            {"name": "code", "allocator": "paged", "request-rate": [1, 2]},
        ],
    })  # fmt: skip
    assert [(point.case, dict(point.settings)) for point in plan.points()] == [
        ("chat", {"allocator": "paged", "trace": "sharegpt"}),
        ("chat", {"allocator": "radix", "trace": "sharegpt"}),
        ("code", {"allocator": "paged", "request_rate": 1.0}),
        ("code", {"allocator": "paged", "request_rate": 2.0}),
    ]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"request_rat": "1"}, "did you mean 'request_rate'"),
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": True}, "seeds must be"),
        ({"seed": "1,2"}, "seed must be one number"),
        ({"case": {"name": "a"}}, "case must be tables"),
        ({"case": [{"gpus": "a"}]}, "did you mean 'gpu'"),
    ],
)
def test_what_is_no_plan_is_told(given, complaint):
    with pytest.raises(KvsimError, match=complaint):
        plan_of(given)


def test_a_journal_keeps_every_whole_line(tmp_path):
    path = tmp_path / "runs.jsonl"
    journal = Journal(path)
    journal.add("one", {"status": "finished", "x": 0.1}, 0.5)
    journal.add("two", {"status": "failed", "x": float("nan")}, 0.25)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        again = Journal(path)
        assert len(again.done) == whole[:cut].count(b"\n")
        again.add("three", {"x": 1}, 0.0)
        assert list(Journal(path).done) == [*list(again.done)[:-1], "three"]
    assert again.done["one"].row == {"status": "finished", "x": 0.1}
    assert again.done["two"].row["x"] is None and again.done["two"].cpu_s == 0.25


def test_a_damaged_line_is_a_run_that_is_not_done(tmp_path):
    path = tmp_path / "runs.jsonl"
    good = json.dumps({"key": "a", "row": {"x": 1}, "cpu_s": 1})
    path.write_text(f"{good}\nnonsense\n[]\n" + '{"key": "b", "row": 3, "cpu_s": 1}\n')
    assert list(Journal(path).done) == ["a"]


def test_tables_are_the_same_in_both_formats(tmp_path):
    rows = [
        {"rate": 1.0, "status": "finished", "share": 0.1, "steps": 3, "met": True},
        {"rate": float("inf"), "status": "failed", "reason": 'no, "never"', "met": False},
    ]
    assert columns(rows) == ["rate", "status", "share", "steps", "met", "reason"]
    write_table(rows, tmp_path / "t.parquet")
    write_table(rows, tmp_path / "t.csv")
    assert read_table(tmp_path / "t.parquet") == [
        {"rate": 1.0, "status": "finished", "share": 0.1, "steps": 3, "met": True, "reason": None},
        {
            "rate": float("inf"),
            "status": "failed",
            "share": None,
            "steps": None,
            "met": False,
            "reason": rows[1]["reason"],
        },
    ]
    assert (tmp_path / "t.csv").read_text() == (
        'rate,status,share,steps,met,reason\n1.0,finished,0.1,3,true,\ninf,failed,,,false,"no, ""never"""\n'
    )
    with pytest.raises(KvsimError, match=r"\.parquet or \.csv"):
        write_table(rows, tmp_path / "t.xlsx")


def test_names_carry_units_and_times_of_the_simulation_are_left_out():
    flat = {
        "memory.average.token": 1.0,
        "latency.ttft_s.p99": 2.0,
        "simulation.cpu_s": 3.0,
        "notes": ["x"],
        "label": "a",
    }
    assert numbers(flat) == {"memory.average.token_percent": 1.0, "latency.ttft_s.p99": 2.0}


def row(gpu, rate, seed, served, e2e_s):
    """A row as in a sweep."""
    return {
        "gpu": gpu, "request_rate": rate, "num_prompts": rate * 10, "seed": seed, "status": "finished",
        "throughput.requests_per_s": served, "latency.e2e_s.mean": e2e_s,
    }  # fmt: skip


def test_rows_that_differ_in_load_and_seed_are_one_system():
    rows = [row(gpu, rate, seed, rate, 1.0) for gpu in ("h100", "l40s") for rate in (2, 1) for seed in (0, 1)]
    rows.append({"gpu": "h100", "request_rate": 3, "status": "failed", "reason": "why"})
    found = systems(rows, ["gpu", "request_rate", "num_prompts"])
    assert [system.name for system in found] == ["h100", "l40s"]
    assert [[(at, len(rows)) for at, rows in system.points.items()] for system in found] == [
        [(1, 2), (2, 2)]
    ] * 2
    assert [(at, each.mean) for at, each in found[0].numbers("throughput.requests_per_s")] == [(1, 1), (2, 2)]


def test_a_case_tells_the_settings_that_it_sets():
    rows = [
        row("h100", rate, 0, rate, 1.0) | {"case": case, "trace": trace, "allocator": name}
        for case, trace in (("chat", "sharegpt"), ("fixed", "synthetic"))
        for name in ("paged", "radix")
        for rate in (1, 2)
    ]
    found = systems(rows, ["case", "trace", "allocator", "request_rate"])
    assert [system.name for system in found] == ["chat, paged", "chat, radix", "fixed, paged", "fixed, radix"]


def test_the_knee_is_where_throughput_over_latency_is_largest():
    latencies = {1: 1.0, 2: 1.1, 3: 1.5, 4: 4.0}
    rows = [row("h100", rate, 0, rate, e2e) for rate, e2e in latencies.items()]
    (system,) = systems(rows, ["request_rate"])
    assert system.knee() == 3
    (flat,) = systems(rows[:3], ["request_rate"])
    assert flat.knee() is None, "the last load is the best: the knee lies beyond"


def test_points_are_told_by_what_they_have_that_others_have_not():
    found = plan_of(
        {
            "request_rate": [1, 2],
            "tensor_parallel_size": [1, 2, 4],
            "case": [{"name": "chat"}, {"name": "code", "gpu": "h100"}],
        }
    ).points()
    names = ["case", *varying(found)]
    small = [point for point in found if point.settings["tensor_parallel_size"] < 4]
    assert labels(small, found, names) == [f"{case} tensor_parallel_size=1,2" for case in ("chat", "code")]
    assert labels(small[:4], found, names) == ["chat tensor_parallel_size=1,2"]
    assert labels(found[:6], found, names) == ["chat"]
    assert labels(found[1:3], found, names) == ["chat request_rate=1.0 tensor_parallel_size=2,4"]
    assert labels([found[0], found[5]], found, names) == [
        "chat request_rate=1.0 tensor_parallel_size=1",
        "chat request_rate=2.0 tensor_parallel_size=4",
    ]
    unnamed = plan_of({"request_rate": [1, 2]}).points()
    assert labels(unnamed, unnamed, varying(unnamed)) == ["all settings"]
