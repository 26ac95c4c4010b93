"""Lives in fleets whose replicas come and go: whole, also where a replica has had several lives."""

import pytest
from support.lives import divided

import kvsim
from kvsim.commands.repeat import event_log_of
from kvsim.reports.lives.apart import story_of

ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "cost": "roofline",
    "num_prompts": 300,
    "request_rate": 12.0,
    "burstiness": 0.3,
    "startup_time": 0.5,
    "load_bandwidth": 1e6,
}
FLEETS = {
    "alike": {"replicas": 3, "router": "least-requests", "scale": "schedule:0=3,1=2,20=3"},
    "apart": {
        "pool": "prefill:2 decode:2:kv_tokens=6000",
        "scale": "prefill=schedule:0=2,3=1,5=2,7=1,9=2 decode=schedule:0=1,4=2,8=1,40=2",
    },
    "moving": {
        **{"replicas": 3, "kv_tokens": 6000, "migrate": "llumnix:source=48,target=96", "request_rate": 6.0},
        "scale": "schedule:0=3,3=2,20=3",
    },
}


@pytest.mark.parametrize("name", FLEETS)
def test_every_life_divides_without_a_gap(name, tmp_path):
    run = kvsim.simulate(**ASKED | FLEETS[name])
    run.save(tmp_path / name)
    log, rows = event_log_of(run), run.columns.requests
    changes = run.summary["scaling"]["changes"]
    again = {each["replica"] for each in changes if each["state"] == "starting"}
    assert len(set(log.numbers["replica"])) >= 2
    for request, e2e_s in enumerate(rows["e2e_s"].tolist()):
        divided(story_of(run, log, request), e2e_s)
    late = {int(place) for place in log.numbers["replica"][log.numbers["time_ps"] > 10 * 10**12]}
    assert again & late  # a second life
