"""The life of a request that moved between replicas: its stays, one after the other."""

import numpy as np
import pytest
from support.lives import divided

import kvsim
from kvsim.commands.repeat import event_log_of
from kvsim.reports.lives.apart import story_of

ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "cost": "roofline",
    "replicas": 3,
    "kv_tokens": 6000,
    "num_prompts": 120,
    "request_rate": 12.0,
    "burstiness": 0.3,
    "migrate": "llumnix:source=48,target=96",
}


@pytest.fixture(scope="module")
def run():
    return kvsim.simulate(**ASKED, record_map=4)


def test_every_life_divides_without_a_gap_and_moves_between_its_stays(run):
    log, rows = event_log_of(run), run.columns.requests
    moves = {}
    for request, e2e_s in enumerate(rows["e2e_s"].tolist()):
        told = divided(story_of(run, log, request), e2e_s)
        events = [line.event for line in told.lines]
        assert events.count("move_out") == events.count("move_in")
        moves[request] = events.count("move_in")
    assert sum(moves.values()) == run.summary.migration.migrations > 10
    assert max(moves.values()) > 1
    moved = [request for request, count in moves.items() if count]
    assert moved == np.flatnonzero(np.isfinite(rows["migration_end_s"])).tolist()
    assert len(moved) == run.summary.migration.requests


def test_its_lines_say_where_it_went(run):
    rows = run.columns.requests
    request = int(np.flatnonzero(np.isfinite(rows["migration_end_s"]))[0])
    told = [line.text for line in run.explain(request).lines]
    (stopped,) = [text for text in told if text.startswith("stopped with")]
    assert stopped.endswith("tokens: the last of its blocks are copied to another replica")
    assert f"decodes on at replica {int(rows['replica'][request])}" in told


def test_who_is_preempted_where_it_went_has_its_first_token_once():
    run = kvsim.simulate(**ASKED | {"kv_tokens": 3000}, record_map=4)
    log, preempted = event_log_of(run), 0
    for request in range(ASKED["num_prompts"]):
        lines = story_of(run, log, request).lines
        assert sum("first token" in line.text for line in lines) == 1
        events = [line.event for line in lines]
        preempted += "move_in" in events and "preempt" in events[events.index("move_in") :]
    assert preempted > 3
