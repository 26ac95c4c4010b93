"""The life of a request on the two replicas that served it, with separate prefill."""

import json

import numpy as np
import pytest

import kvsim
from kvsim import cli
from kvsim.reports.palette import seconds
from kvsim.sim.workload import PS_PER_S

FLEET = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "pool": "prefill:2:kv_tokens=60000 decode:2:kv_tokens=30000",
    "kv_transfer_link": "2",
    "input_len": "2000",
    "output_len": "300",
    "request_rate": 20.0,
    "num_prompts": 60,
}


@pytest.fixture(scope="module")
def run():
    return kvsim.simulate(**FLEET)


def test_the_parts_of_every_life_sum_to_e2e_and_follow_each_other(run):
    waited = 0
    rows = run.columns.requests
    for request in range(0, 60, 7):
        told = run.explain(request)
        assert sum(part.time_ps for part in told.parts) == told.end_ps - told.arrival_ps
        assert all(one.end_ps == next.start_ps for one, next in zip(told.spans, told.spans[1:], strict=False))
        seconds = {part.state: part.time_ps / PS_PER_S for part in told.parts}
        assert seconds["handed"] == pytest.approx(0.001)
        read_s = rows["read_end_s"][request] - rows["read_begin_s"][request]
        assert seconds["loading"] == pytest.approx(read_s, abs=1e-9)
        assert told.arrival_ps == round(rows["arrival_s"][request] * PS_PER_S)
        assert told.end_ps == round(rows["finish_s"][request] * PS_PER_S)
        waited += "head" in seconds
    assert waited > 2


def test_who_waits_for_a_seat_after_its_read_is_told_so():
    """Reads take no seat, so that all that wait for one are read when the first is free."""
    few = "prefill:2:kv_tokens=60000 decode:1:kv_tokens=60000,max_num_seqs=4"
    run = kvsim.simulate(**FLEET | {"pool": few, "kv_transfer_link": "10", "num_prompts": 20})
    rows, divided = run.columns.requests, [run.explain(request).parts for request in range(20)]
    waited = [{part.reason: part.time_ps for part in parts if part.state == "loaded"} for parts in divided]
    assert sum({"", "seats"} == each.keys() for each in waited) > 5
    assert {reason for each in waited for reason in each} == {"", "seats"}
    longest = max(range(20), key=lambda request: sum(waited[request].values()))
    told = run.explain(longest)
    read_s = rows["read_end_s"][longest] - rows["read_begin_s"][longest]
    assert sum(waited[longest].values()) > 10 * read_s * PS_PER_S
    said = [line.text for line in told.lines]
    assert any(text.startswith("headed the queue") and "all 4 seats were taken" in text for text in said)
    assert (sum("has read the prompt" in text for text in said), "2,000 tokens loaded" in said) == (1, False)
    (read,) = [place for place, text in enumerate(said) if "has read the prompt" in text]
    assert said[read + 1] == f"waited {seconds(waited[longest][''] / PS_PER_S)} in the queue"
    assert "loaded, waiting to be scheduled: seats" in str(told)
    decode = run.replicas[2]
    waiting = decode.columns.timeline["waiting"].max()
    assert (decode.columns.timeline["running"].max(), waiting > 8) == (4, True)
    held_s = decode.summary["load"]["held_back_share"]["max_num_seqs"] * decode.summary["duration_s"]
    assert held_s * PS_PER_S > waited[longest]["seats"]


def test_without_contention_nothing_is_held_back():
    """A request whose read ended in a step enters the next one."""
    run = kvsim.simulate(**FLEET | {"pool": "prefill:1 decode:1", "request_rate": 2.0, "num_prompts": 20})
    assert run.columns.requests["read_end_s"].max() > 0
    assert run.replicas[1].summary["load"]["held_back_share"]["max_num_batched_tokens"] == 0


def test_its_lines_name_both_sides_in_order_of_time(run):
    told = run.explain("slowest")
    times = [line.time_ps for line in told.lines]
    assert times == sorted(times)
    said = " | ".join(line.text for line in told.lines)
    for words in (
        "2,000 tokens held until they are read",
        "came to replica ",
        "has read the prompt, in",
        "TTFT",
    ):
        assert words in said
    assert said.count("TTFT") == 1


def test_the_command_repeats_a_run_and_a_timeline_has_a_process_for_each_replica(run, tmp_path, capsys):
    run.save(tmp_path / "run")
    assert cli.main(["explain", str(tmp_path / "run"), "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["labels"] == {}
    spent = sum(part["seconds"] for part in told["division"])
    assert np.isclose(spent, told["finish_s"] - told["arrival_s"])
    assert cli.main(["trace-events", str(tmp_path / "run"), "--requests", "10"]) == 0
    events = json.loads((tmp_path / "run" / "trace-events.json").read_text())["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert len(names) == 4
    for name in names:
        assert "replica" in name
    assert sum(each.get("name") == "thread_name" for each in events) >= 20
