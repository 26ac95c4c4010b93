"""Timelines for trace viewers: the published format, and the numbers of the run in it."""

import gzip
import json
import shutil
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, HAPPENS, draw_case
from support.lives import run_of, served
from support.stories import workload
from support.trace_format import check_trace

from kvsim import cli
from kvsim.commands import run as jobs
from kvsim.reports.lives.spans import STATES as STATE_NAMES
from kvsim.reports.lives.words import STATES
from kvsim.reports.timeline.events import MOST_REQUESTS, Traced, chosen_requests, write_trace
from kvsim.reports.timeline.steps import step_slices
from kvsim.reports.timeline.text import micro
from kvsim.sim.build import build_engine
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.metrics import step_table
from kvsim.sim.workload import PS_PER_S, Beam, Workload


def trace_of(tmp_path, *traced, first=0, last=None, name="trace.json"):
    """The file of these runs, read and checked."""
    write_trace(traced, tmp_path / name, first, last)
    with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    check_trace(trace)
    return trace["traceEvents"]


def told(events, thread):
    """The slices and instants of a thread: (second, seconds, name), instants without seconds."""
    tids = {e["tid"] for e in events if e["ph"] == "M" and e["args"].get("name") == thread}
    (tid,) = tids
    return [
        (e["ts"] / 1e6, *([e["dur"] / 1e6] if "dur" in e else []), e["name"])
        for e in events
        if e["ph"] in "Xi" and e["tid"] == tid
    ]


def test_a_preempted_request_and_the_arrow_from_its_preemptor(tmp_path):
    run, lives = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4)]), max_num_seqs=2)
    events = trace_of(tmp_path, Traced(run, lives))
    assert told(events, "request 1") == [
        (0, 6, "request 1"),
        (0, 1, "prefill"),
        (1, 1, "decode"),
        (2, 1, "preempted, in the queue again: step that evicts"),
        (3, 1, "preempted, in the queue again: no room"),
        (4, 1, "recomputing what was lost"),
        (5, 1, "decode"),
    ]
    (arrow,) = [e for e in events if e["ph"] == "s"]
    (head,) = [e for e in events if e["ph"] == "f"]
    assert (arrow["ts"], arrow["tid"], head["ts"], head["tid"]) == (2e6, 1000, 2e6, 1001)
    assert events.index(arrow) > events.index(head)
    (waits,) = [e for e in events if e["name"].endswith("no room")]
    assert waits["args"] == {"step": 3, "need": 12, "free": 4, "largest": 4, "reason": "no room"}
    whole = next(e for e in events if e["ph"] == "X" and e["name"] == "request 1")
    assert whole["args"] == {
        "prompt_tokens": 7,
        "output_tokens": 4,
        "status": "finished",
        "ttft_s": 1.0,
        "tpot_s": round(5 / 3, 9),
        "e2e_s": 6.0,
    }


def test_the_arrow_to_a_displaced_request_says_that_another_goes_first(tmp_path):
    run, lives = served("vllm-v1", 16, workload([(0, 4, 20), (1, 4, 2)]), max_num_seqs=1, policy="srpt")
    events = trace_of(tmp_path, Traced(run, lives))
    assert {(e["name"], e["ph"], e["tid"]) for e in events if e["ph"] in "sf"} == {
        ("goes first", "s", 1001),
        ("goes first", "f", 1000),
    }
    assert not any(": less is predicted" in e["name"] for e in events)


def test_the_counters_are_the_timeline(tmp_path):
    run, lives = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4)]), max_num_seqs=2)
    events = trace_of(tmp_path, Traced(run, lives))
    memory = [e for e in events if e["name"] == "KV memory (slots)"]
    assert [e["ts"] / 1e6 for e in memory] == run.columns.timeline["time_s"].tolist()
    assert all(sum(e["args"].values()) == 16 for e in memory)
    for kind in ("token", "reserved", "internal", "cached", "external", "free"):
        assert [e["args"][kind] for e in memory] == run.columns.timeline[kind].tolist()
    queue = [e["args"] for e in events if e["name"] == "requests"]
    assert [args["waiting"] for args in queue] == run.columns.timeline["waiting"].tolist()
    assert [e["args"]["preemptions"] for e in events if e["name"] == "preemptions"][-1] == 1


def test_answers_have_threads_of_their_own_from_the_fork_on(tmp_path):
    run, lives = served("vllm-v0", 99, workload([(0, 6, [2, 4])]))
    events = trace_of(tmp_path, Traced(run, lives))
    assert told(events, "request 0, answer 1") == [
        (0, 4, "request 0, answer 1"),
        (0, 1, "prefill"),
        (1, 3, "decode"),
        (1, "copy"),
    ]
    assert told(events, "request 0, answer 0") == [
        (1, 1, "request 0, answer 0"),
        (1, 1, "decode"),
        (1, "fork"),
    ]


def test_steps_are_drawn_with_what_they_compute(tmp_path):
    run, lives = served("vllm-v1", 99, workload([(0, 3, 2)]))
    columns = dict.fromkeys(
        ("hit_tokens", "recomputed_tokens", "swapped", "cow_copies", "swap_in_blocks", "swap_out_blocks"),
        np.zeros(2, np.int64),
    ) | {
        "start_s": np.array([0.0, 1.0]),
        "duration_s": np.array([1.0, 1.0]),
        "step": np.array([0, 1]),
        "running": np.array([1, 1]),
        "waiting": np.array([0, 0]),
        "prefill_tokens": np.array([3, 0]),
        "decode_tokens": np.array([0, 1]),
        "kv_tokens": np.array([3, 4]),
        "blocks_in_use": np.array([1, 1]),
        "finished": np.array([0, 1]),
    }
    events = trace_of(tmp_path, Traced(run, lives, columns))
    assert told(events, "engine steps") == [(0, 1, "prefill"), (1, 1, "decode")]
    step = next(e for e in events if e["ph"] == "X" and e["name"] == "decode" and e["cat"] == "engine")
    assert step["args"] == {
        "step": 1,
        "running": 1,
        "waiting": 0,
        "decode_tokens": 1,
        "kv_tokens": 4,
        "blocks_in_use": 1,
        "finished": 1,
    }
    only = [text for _, text in step_slices(1, columns, (int(1.5 * PS_PER_S), 2 * PS_PER_S))]
    assert len(only) == 1 and '"step": 1' in only[0]


NOBODY_IN_PARTICULAR = ("sglang", "lightllm", "past-future", "tensorrt-llm")
"""Engines that evict because memory is short for all, before requests grow: no arrows."""


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", HAPPENS)
def test_whatever_happens_keeps_the_format_and_the_times(scheduler, tmp_path):
    happened = set()
    for seed in range(3000, 3012):
        case = draw_case(Random(seed), scheduler)
        engine = build_engine(case.scenario, case.work, events=True, step_log=True)
        engine.replica.pricing.cost = COSTS[case.cost]()
        run, lives, result = run_of(engine, case.scenario)
        events = trace_of(tmp_path, Traced(run, lives, step_table(result)))
        happened |= {event["ph"] for event in events}
        for track, request in enumerate(lives.request.tolist()):
            name = f"request {request}"
            if (lives.request == request).sum() > 1:
                name += f", answer {lives.sample[track]}"
            (_, seconds, _), *inner = [each for each in told(events, name) if len(each) == 3]
            assert seconds * 1e9 == pytest.approx((lives.end_ps[track] - lives.begin_ps[track]) / 1e3, abs=1)
            assert sum(each[1] for each in inner) == pytest.approx(seconds, abs=1e-9)
        steps = [event for event in events if event.get("cat") == "engine"]
        assert len(steps) == len(result.steps["step"])
    assert {"M", "X", "C"} <= happened
    if "preemptions" in HAPPENS[scheduler] and scheduler not in NOBODY_IN_PARTICULAR:
        assert {"s", "f"} <= happened


def test_rejected_requests_candidates_and_empty_runs_are_drawn(tmp_path):
    run, lives = served("vllm-v1", 99, workload([(0, 16, 1)]))
    events = trace_of(tmp_path, Traced(run, lives))
    assert told(events, "request 0") == [(0, 0, "request 0")]
    assert next(e for e in events if e["name"] == "request 0")["args"]["status"] == "rejected"
    run, lives = served("vllm-v0", 99, workload([(0, 4, 3)], beam=Beam(2, "uniform", 0)))
    assert told(trace_of(tmp_path, Traced(run, lives)), "request 0")[0] == (0, 3, "request 0")
    run, lives = served("vllm-v1", 99, Workload("none", *(np.array([], np.int64) for _ in range(3))))
    events = trace_of(tmp_path, Traced(run, lives))
    assert {event["ph"] for event in events} == {"M", "C"}


def test_several_runs_are_several_processes(tmp_path):
    work = workload([(0, 5, 3), (0, 2, 1)])
    one = Traced(*served("orca", 6, work, "contiguous", allocator="contiguous"))
    two = Traced(*served("vllm-v1", 6, work, "paged"))
    events = trace_of(tmp_path, one, two, name="both.json.gz")
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "contiguous", 2: "paged"}
    assert {e["pid"] for e in events} == {1, 2}
    assert (tmp_path / "both.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_only_the_chosen_requests_are_drawn_and_arrows_only_between_them(tmp_path):
    run, lives = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4)]), max_num_seqs=2)
    events = trace_of(tmp_path, Traced(run, lives), first=1, last=1)
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {"request 1"}
    assert not {"s", "f"} & {e["ph"] for e in events}
    with pytest.raises(KvsimError, match="requests must begin below 2, the number of them, got 7"):
        write_trace([Traced(run, lives)], tmp_path / "none.json", 7, 9)
    assert not (tmp_path / "none.json").exists()


def test_requests_are_chosen_by_number_range_or_all():
    assert chosen_requests(None) == (0, MOST_REQUESTS - 1)
    assert chosen_requests("all") == (0, None)
    assert chosen_requests("20") == (0, 19)
    assert chosen_requests("3-5") == (3, 5)
    assert chosen_requests("0-0") == (0, 0)
    for text in ("0", "", "-", "3-", "-3", "x", "1-2-3", "1.5"):
        with pytest.raises(KvsimError, match="requests must be a number of them, A-B or all"):
            chosen_requests(text)
    with pytest.raises(KvsimError, match="requests must go up, got '5-3'"):
        chosen_requests("5-3")


def test_times_are_microseconds_to_the_nanosecond():
    assert [micro(ns) for ns in (0, 1, 1_000, 123_456_789)] == ["0.000", "0.001", "1.000", "123456.789"]
    assert len(STATES) == len(STATE_NAMES)


# -- the checker itself ---------------------------------------------------------------------------

GOOD = [
    {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "p"}},
    {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "t"}},
    {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 10, "name": "a", "cat": "c"},
    {"ph": "X", "pid": 1, "tid": 1, "ts": 2, "dur": 8, "name": "b", "cat": "c"},
]
BAD = {
    "overlap": [*GOOD, {"ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 6, "name": "d", "cat": "c"}],
    "order": [*GOOD, {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "d", "cat": "c"}],
    "negative": [*GOOD, {"ph": "X", "pid": 1, "tid": 1, "ts": 11, "dur": -1, "name": "d", "cat": "c"}],
    "no duration": [*GOOD, {"ph": "X", "pid": 1, "tid": 1, "ts": 11, "name": "d", "cat": "c"}],
    "no end": [*GOOD, {"ph": "B", "pid": 1, "tid": 1, "ts": 11, "name": "d"}],
    "no async end": [*GOOD, {"ph": "b", "pid": 1, "ts": 11, "name": "d", "cat": "c", "id": 1}],
    "half an arrow": [*GOOD, {"ph": "s", "pid": 1, "tid": 1, "ts": 11, "name": "d", "cat": "c", "id": 1}],
    "a counter of words": [*GOOD, {"ph": "C", "pid": 1, "ts": 11, "name": "d", "args": {"x": "1"}}],
    "no thread name": [*GOOD, {"ph": "X", "pid": 1, "tid": 2, "ts": 11, "dur": 1, "name": "d", "cat": "c"}],
    "not a number": [*GOOD, {"ph": "i", "pid": 1, "tid": 1, "ts": float("nan"), "name": "d", "s": "t"}],
}


def test_the_checker_takes_what_is_right():
    check_trace({"traceEvents": GOOD})


@pytest.mark.parametrize("damage", BAD)
def test_the_checker_finds_what_is_wrong(damage):
    with pytest.raises(AssertionError):
        check_trace({"traceEvents": BAD[damage]})


# -- the command ----------------------------------------------------------------------------------

SMALL = ("--cost", "constant:0.03", "--num-prompts", "12", "--request-rate", "inf", "--no-plots", "-q")


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A run with everything recorded, the same with nothing, and a comparison."""
    place = tmp_path_factory.mktemp("traces")
    assert cli.main(["run", *SMALL, "--out", str(place / "with"), "--record-map", "4", "--step-log"]) == 0
    assert cli.main(["run", *SMALL, "--out", str(place / "without")]) == 0
    both = ["--allocator", "contiguous,paged", "--out", str(place / "both"), "--record-map", "2"]
    assert cli.main(["compare", *SMALL, *both]) == 0
    return place


@pytest.fixture
def sim(directories, capsys, monkeypatch):
    """Run `sim trace-events`: exit code, stdout and stderr."""
    monkeypatch.chdir(directories)

    def sim(*arguments):
        code = cli.main(["trace-events", *arguments])
        return code, *capsys.readouterr()

    return sim


def read(path):
    trace = json.loads(path.read_text(encoding="utf-8"))
    check_trace(trace)
    return trace["traceEvents"]


@pytest.mark.slow
def test_a_run_without_records_is_repeated_and_gives_the_same_file(sim, directories):
    code, out, err = sim("with")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith(" MB: open it in ui.perfetto.dev")
    assert out.splitlines()[1] == "with/trace-events.json"
    assert {e["cat"] for e in read(directories / "with/trace-events.json") if e["ph"] == "X"} > {"engine"}
    code, out, err = sim("without", "--out", "again.json")
    assert (code, err) == (0, "paged: no events were recorded: repeating the run\n")
    same = (directories / "with/trace-events.json").read_bytes()
    assert (directories / "again.json").read_bytes() == same
    assert sim("with", "--out", "packed.json.gz")[0] == 0
    assert gzip.decompress((directories / "packed.json.gz").read_bytes()) == same


@pytest.mark.slow
def test_steps_are_left_out_or_repeated_for_as_asked(sim, directories, monkeypatch):
    code, _, err = sim("both", "--out", "both.json", "--no-steps")
    assert (code, err) == (0, "")
    events = read(directories / "both.json")
    assert "engine" not in {e.get("cat") for e in events}
    assert {e["pid"] for e in events} == {1, 2}
    code, _, err = sim("both/paged", "--out", "steps.json")
    assert (code, err) == (0, "paged: no steps were recorded: repeating the run\n")
    assert "engine" in {e.get("cat") for e in read(directories / "steps.json")}
    monkeypatch.setattr(jobs, "MANY_STEPS", 10)
    code, _, err = sim("both/paged", "--out", "few.json")
    assert (code, err) == (0, "paged: its steps are many, and none were recorded: see --steps\n")
    assert "engine" not in {e.get("cat") for e in read(directories / "few.json")}


def test_what_is_left_out_is_said(sim, directories):
    code, out, _ = sim("with", "--requests", "3-5", "--out", "some.json")
    assert code == 0
    line = "requests 3 to 5 of 12, and what the engine did in their time; all: --requests all"
    assert out.splitlines()[0] == line
    names = {e["args"]["name"] for e in read(directories / "some.json") if e["name"] == "thread_name"}
    assert names == {"engine steps", "request 3", "request 4", "request 5"}


def test_what_is_wrong_is_one_line_and_leaves_nothing(sim, directories, tmp_path):
    damaged = tmp_path / "run"
    shutil.copytree(directories / "with", damaged)
    (damaged / "steps.parquet").write_bytes(b"nothing")
    code, out, err = sim(str(damaged), "--out", str(tmp_path / "t.json"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {damaged / 'steps.parquet'} is damaged: ")
    shutil.copy(damaged / "requests.parquet", damaged / "steps.parquet")
    code, out, err = sim(str(damaged), "--out", str(tmp_path / "t.json"))
    assert err.startswith(f"error: {damaged / 'steps.parquet'} is damaged: it lacks the columns start_s")
    code, out, err = sim("with", "--out", str(tmp_path / "none/t.json"))
    assert (code, err) == (2, f"error: cannot write {tmp_path / 'none/t.json'}: No such file or directory\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
