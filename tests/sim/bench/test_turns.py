"""Replays of conversations and of cut requests: which waits for which, what is shared, what counts."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.shared_data import shared

import kvsim
from kvsim.sim.bench.measured import PER_S, MeasuredRun, Requests
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.workload import MEASURED, Load, workload_of
from kvsim.sim.errors import KvsimError

SERVER = {"model": "llama-3.1-8b", "gpu": "l4", "cost": "roofline", "kv_tokens": 40_000}


def run_of(rows, clients=None, cached=None, **facts):
    """A run of (start, prompt, answer, E2E, conversation)."""
    start, prompt, answer, e2e, names = zip(*rows, strict=True)
    whole = [np.array(each, dtype=np.int64) for each in (prompt, answer)]
    times = [np.array(each, dtype=np.float64) for each in (start, e2e)]
    found = None if cached is None else np.array(cached, dtype=np.int64)
    requests = Requests(times[0], *whole, times[1] / 10, times[1], session=names, cached_tokens=found)
    return MeasuredRun("r", "AIPerf", requests, count=len(rows), clients=clients, **facts)


TALK = [(0.0, 100, 20, 1.0, "a"), (0.1, 90, 10, 2.0, "b"), (1.5, 140, 20, 1.0, "a"), (3.0, 50, 5, 1.0, "c")]


def test_a_turn_comes_after_the_answer_before_it_and_the_pause_that_was():
    work = workload_of(run_of(TALK))
    assert work.waits.after.tolist() == [-1, -1, 0, -1]
    assert work.waits.think_ps.tolist() == [0, 0, 500_000_000_000, 0]
    assert work.arrival_ps[[0, 1, 3]].tolist() == [0, 100_000_000_000, 3_000_000_000_000]


def test_a_limit_of_clients_holds_so_many_conversations_at_once():
    work = workload_of(run_of(TALK, clients=2))
    assert work.waits.after.tolist() == [-1, -1, 0, 1]  # b ends at 2.1, a at 2.5
    one = workload_of(run_of(TALK, clients=2), Load(clients=1))
    assert one.waits.after.tolist() == [-1, 0, 1, 2] and one.prompt_tokens.tolist() == [100, 140, 90, 50]
    assert one.labels[MEASURED].tolist() == [0, 2, 1, 3]


def test_clients_of_a_closed_loop_pause_as_they_did():
    """Two clients; the first to end asks again after 0.5 s, then the other after 0.25; then none pauses."""
    rows = [(0.0, 9, 9, 1.0, "a"), (0.0, 9, 9, 2.0, "b"), (1.5, 9, 9, 1.0, "c"), (2.25, 9, 9, 1.0, "d"),
            (2.5, 9, 9, 1.0, "e")]  # fmt: skip
    run = run_of(rows, clients=2)
    work = workload_of(run)
    assert work.waits.clients == 2
    assert (work.waits.think_ps / 1e12).tolist() == [0, 0, 0.5, 0.25, 0]
    assert "Clients ask again 250.0 ms after an answer on average, as measured." in work.notes
    three = workload_of(run, Load(clients=3))
    assert (three.waits.think_ps / 1e12).tolist() == [0, 0, 0, 0.5, 0.25]
    paced = workload_of(replace(run, clients=None), Load(clients=2))
    assert not paced.waits.think_ps.any() and not any("ask again" in note for note in paced.notes)
    many = workload_of(replace(run, clients=9))
    assert not many.waits.think_ps.any() and not any("ask again" in note for note in many.notes)


def test_a_conversation_begins_as_long_after_another_as_it_did():
    work = workload_of(run_of(TALK, clients=2))  # c began 0.9 s after b had ended, the first to end
    assert work.waits.after[3] == 1 and work.waits.think_ps[3] == 900_000_000_000
    paced = workload_of(run_of(TALK), Load(clients=2))
    assert paced.waits.after[3] == 1 and paced.waits.think_ps[3] == 0


def test_what_was_cut_held_its_client_to_the_end():
    rows = [(0.0, 9, 9, 1.0, "a"), (3.0, 9, 9, 1.0, "b")]
    cut = Requests(np.array([0.0]), *(np.array([9]),) * 2, *(np.array([np.nan]),) * 2)
    work = workload_of(run_of(rows, clients=2, cut=cut, cut_count=1))
    assert work.waits.think_ps.tolist() == [0, 0, 2_000_000_000_000]


def test_a_real_client_that_pauses_is_replayed_with_its_pauses():
    """AIPerf's 12 clients asked 0.54 s after an answer: without that 27 % more requests per second came."""
    live = shared("data/live")
    options = {"model": str(live / "model/config.json"), "gpu": str(live / "profiles/two-cpu-cores.toml")}
    replay = kvsim.replay(live / "aiperf/big-aiperf-c12", **options, log=live / "logs/big.server.log.gz")
    (rate,) = (each for each in replay.compared if (each.what, each.statistic) == ("requests", PER_S))
    assert abs(rate.simulated / rate.measured - 1) < 0.11


def test_one_client_that_talks_twice_keeps_the_order_of_the_rows():
    rows = [(0.0, 10, 5, 1.0, "a"), (1.2, 30, 5, 1.0, "a"), (2.5, 10, 5, 1.0, "b"), (3.6, 40, 5, 1.0, "b")]
    assert workload_of(run_of(rows, clients=1)).waits.after.tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize(
    ("found", "shared_tokens"),
    [
        (None, 140),  # not told: all of the turn before
        (128, 140),  # all of it, in blocks of 16
        (112, 112),  # not all of the answer
        (16, 100),  # the prompt before it was thrown out, and is the same all the same
    ],
)
def test_a_turn_has_as_much_of_the_answer_before_it_as_the_server_found(found, shared_tokens):
    rows = [
        (0.0, 100, 40, 1.0, "a"),
        (2.0, 300, 10, 1.0, "a"),
        (3.0, 40, 5, 1.0, "b"),
        (4.0, 90, 5, 1.0, "b"),
    ]
    cached = None if found is None else [0, found, 0, 32]  # in blocks of 16
    content = workload_of(run_of(rows, cached=cached)).content
    assert sum(length for _, _, length in content[1]) == shared_tokens


def test_what_first_prompts_found_is_one_text_in_front_of_them():
    rows = [(float(place), 100, 5, 0.5, str(place)) for place in range(4)]
    content = workload_of(run_of(rows, cached=[0, 64, 0, 64])).content
    lengths = [sum(length for _, _, length in each) for each in content]
    assert lengths == [64, 64, 0, 64]


def test_requests_that_were_cut_load_the_server_and_count_nowhere(tmp_path):
    rows = [(0.0, 100, 20, 1.0, "a"), (0.1, 90, 10, 2.0, "b")]
    cut = Requests(np.array([0.05]), *(np.array([each]) for each in (500, 3)), *(np.array([np.nan]),) * 2)
    run = run_of(rows, cut=cut, cut_count=1)
    work = workload_of(run)
    assert work.prompt_tokens.tolist() == [100, 500, 90] and work.labels[MEASURED].tolist() == [0, -1, 1]
    assert work.output_tokens.tolist() == [20, 15, 10]
    assert any("1 requests were cut" in note for note in work.notes)


def guide(path, incomplete, errored=()):
    """A GuideLLM report of three answered requests, and others."""

    def one(place, latency=1.0, answer=10):
        return {"request_start_time": 100.0 + place, "request_latency": latency, "prompt_tokens": 50} | {
            "output_tokens": answer,
            "time_to_first_token_ms": 100.0,
            "time_per_output_token_ms": None if latency is None else 1e3 * latency / answer,
        }

    requests = {"successful": [one(0), one(1), one(2)], "errored": list(errored)}
    requests["incomplete"] = [one(each, None, None) for each in incomplete]
    totals = {"successful": 3, "incomplete": 9, "errored": len(errored), "total": 12}
    metrics = {"request_totals": totals}
    one_of = {
        "config": {"strategy": {"type_": "constant", "rate": 1.0}},
        "requests": requests,
        "metrics": metrics,
    }
    path.write_text(json.dumps({"benchmarks": [one_of]}))
    return path


def test_guidellms_incomplete_requests_are_no_failures(tmp_path):
    file = guide(tmp_path / "g.json", [-0.5, 2.5])
    run = read_result(file)
    assert (run.count, run.failed, run.cut_count, len(run.cut)) == (3, 0, 9, 2)
    assert run.cut.start_s.tolist() == [-0.5, 2.5]
    replay = kvsim.replay(file, **SERVER)
    assert len(replay.requests) == 3 and len(replay.found.outcome.requests["status"]) == 5
    notes = " ".join(replay.notes())
    assert "7 more requests were cut" in notes and "failed" not in notes


# -- a server that really ran ---------------------------------------------------------------------


def test_a_real_chat_is_replayed_turn_by_turn():
    """AIPerf, 24 conversations of six clients: 24,960 of 46,214 prompt tokens were found."""
    run = read_result(shared("data/live/aiperf/comp-aiperf-turns"))
    assert run.name == "comp-aiperf-turns" and len(set(run.requests.session)) == 24
    work = workload_of(run)
    assert (work.waits.after >= 0).sum() == 115 - 6
    replay = kvsim.replay(
        shared("data/live/aiperf/comp-aiperf-turns"),
        model=str(shared("data/live/model/config.json")),
        gpu=str(shared("data/live/profiles/two-cpu-cores.toml")),
        cost="roofline",
        host_time="11.61+522.5",
        frontend_latency=0.015,
        num_gpu_blocks=681,
        block_size=128,
        max_num_seqs=12,
        max_num_batched_tokens=2048,
        enable_prefix_caching=True,
        async_scheduling=False,
    )
    hits = replay.found.summary["engine"]["prefix_hit_tokens"]
    assert hits == pytest.approx(24_960, rel=0.05)
    table = replay.table.set_index(["what", "statistic"])
    assert abs(table.off["requests", "per s"]) < 0.1 and abs(table.off["TPOT", "mean"]) < 0.1


def test_a_real_sweep_ends_with_requests_that_were_cut():
    run = read_result(shared("data/live/guidellm/comp-guide.benchmarks.json.gz"), 2)
    assert (run.count, run.failed, run.cut_count, len(run.cut)) == (69, 0, 508, 20)


def test_a_folder_without_a_result_is_told(tmp_path):
    with pytest.raises(KvsimError, match=r"is a folder, which must hold profile_export.jsonl or"):
        read_result(tmp_path)
