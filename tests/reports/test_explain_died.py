"""Lives of requests whose replicas died: told from the arrival to the last token, through each death."""

import json

import numpy as np
import pytest
from support.lives import divided
from support.trace_format import check_trace

import kvsim
from kvsim.commands.repeat import event_log_of
from kvsim.commands.run import traced
from kvsim.reports.lives.apart import story_of
from kvsim.reports.rundir.run import read_run
from kvsim.reports.timeline.events import write_trace

ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "cost": "roofline",
    "num_prompts": 200,
    "request_rate": 12.0,
    "burstiness": 0.3,
    "router": "least-requests",
}
FLEETS = {
    "alike": {"replicas": 3, "fail": ["replica=1:at=4:for=3", "replica=0:at=5:for=20", "replica=1:at=9"]},
    "none alive": {"replicas": 2, "fail": ["replica=0:at=4:for=3", "replica=1:at=5:for=4"]},
    "never again": {"replicas": 2, "fail": ["replica=0:at=4:for=3", "replica=1:at=5", "replica=0:at=12"]},
    "scaling": {
        "replicas": 3,
        "scale": "schedule:0=3,1=2,6=3",
        "startup_time": 0.5,
        "load_bandwidth": 1e6,
        "fail": ["replica=0:at=4:for=3", "replica=1:at=12:for=5"],
    },
    "apart": {
        "pool": "prefill:2 decode:2:kv_tokens=6000",
        "fail": [
            "replica=0:at=3:for=2",
            "replica=2:at=4:for=4",
            "replica=3:at=5:for=2",
            "replica=1:at=9:for=1",
        ],
    },
    "moving": {
        "replicas": 3,
        "kv_tokens": 6000,
        "migrate": "llumnix:source=48,target=96",
        "request_rate": 6.0,
        "fail": ["replica=0:at=5:for=3", "replica=1:at=10:for=5", "replica=0:at=12:for=5"],
    },
    "forking": {"replicas": 2, "scheduler": "vllm-v0", "n": 3, "fail": ["replica=0:at=4:for=3"]},
    "several": {"replicas": 2, "n": 3, "fail": ["replica=0:at=4:for=3"]},
    "beams": {"replicas": 2, "scheduler": "vllm-v0", "beam_width": 3, "fail": ["replica=0:at=4:for=3"]},
}


@pytest.mark.parametrize("name", FLEETS)
def test_every_life_divides_without_a_gap_through_all_deaths(name, tmp_path):
    run = kvsim.simulate(**ASKED | FLEETS[name])
    run.save(tmp_path / "run")
    log, rows = event_log_of(run), run.columns.requests
    died = 0
    for request, e2e_s in enumerate(rows["e2e_s"].tolist()):
        told = story_of(run, log, request)
        if np.isfinite(e2e_s):
            divided(told, e2e_s)
            assert told.lines[-1].event == "finish"
        else:
            assert told.lines[-1].event == "reject"
        events = [line.event for line in told.lines]
        assert events.count("lost") == rows["resent"][request]
        assert sum("TTFT" in line.text for line in told.lines) == np.isfinite(e2e_s)
        died += events.count("lost")
    assert died == run.summary.faults.resent_requests > 10


TWO = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "cost": "constant:1",
    "async_scheduling": False,
    "replicas": 2,
    "trace": "synthetic",
    "input_len": "100",
    "output_len": "5",
    "num_prompts": 2,
    "request_rate": float("inf"),
}


def lines_of(run, request):
    return [(line.time_ps / 1e12, line.text) for line in run.explain(request).lines]


def test_the_story_says_which_replica_died_and_where_the_request_went():
    """One request on each of two replicas, steps of a second: replica 1 dies in the third step."""
    run = kvsim.simulate(**TWO, fail="replica=1:at=2.5:for=9")
    assert lines_of(run, 0)[-1] == (5, "finished: E2E 5.00 s, TPOT 1.00 s, 1.00 s per token overall")
    assert lines_of(run, 1) == [
        (0, "arrived; the queue was empty"),
        (0, "admitted with 100 tokens"),
        (1, "prompt computed, first token"),
        (2.5, "replica 1 died with 102 tokens in memory; sent again to replica 0"),
        (2.5, "arrived; the queue was empty"),
        (3, "admitted with 100 tokens"),
        (4, "prompt computed, first token: TTFT 4.00 s"),
        (8, "finished: E2E 8.00 s, TPOT 1.00 s, 1.60 s per token overall"),
    ]


def test_the_story_says_how_long_no_replica_was_alive():
    run = kvsim.simulate(**TWO, fail=["replica=0:at=2:for=9", "replica=1:at=2.5:for=2"])
    told = lines_of(run, 1)
    assert told[3] == (
        2.5,
        "replica 1 died with 102 tokens in memory; no replica was alive for 2.00 s, then sent to replica 1",
    )
    assert told[4] == (4.5, "arrived behind 1 other, which entered at 4.50 s")
    parts = {part.state: part.time_ps / 1e12 for part in run.explain(1).parts}
    assert parts["down"] == 2


def test_a_timeline_shows_that_a_replica_was_dead_and_the_two_lives_of_its_request(tmp_path):
    run = kvsim.simulate(**TWO, fail=["replica=0:at=2:for=9", "replica=1:at=2.5:for=2"], record_map=4)
    run.save(tmp_path / "run")
    shown = traced(read_run(tmp_path / "run"), steps=False)
    write_trace(shown, tmp_path / "trace.json", 0, None)
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_trace(trace)
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e.get("name") == "thread_name"
    }
    slices = {
        (e["pid"], names[e["pid"], e["tid"]], e["name"]): (e["ts"] / 1e6, e["dur"] / 1e6)
        for e in trace["traceEvents"]
        if e["ph"] == "X" and e["cat"] in {"replica", "request"}
    }
    assert slices == {
        (1, "replica", "dead"): (2, 7.5),
        (2, "replica", "dead"): (2.5, 2),
        (1, "request 0", "request 0"): (0, 2),
        (2, "request 0, sent again 1 time", "request 0, sent again 1 time"): (2, 0.5),
        (2, "request 1", "request 1"): (0, 2.5),
        (2, "request 0, sent again 2 times", "request 0, sent again 2 times"): (4.5, 5),
        (2, "request 1, sent again 1 time", "request 1, sent again 1 time"): (4.5, 5),
    }
