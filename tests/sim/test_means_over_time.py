"""Means over time are over the time for which a replica is there and requests are served: cases by hand."""

import json

import pytest

import kvsim

TWO = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "cost": "constant:1",
    "async_scheduling": False,
    "kv_tokens": 1024,
    "replicas": 2,
    "trace": "synthetic",
    "input_len": "100",
    "output_len": "5",
    "num_prompts": 2,
    "request_rate": float("inf"),
}
"""A request on each replica, done after 5 steps of a second."""


def test_the_time_for_which_a_replica_is_dead_is_in_no_mean():
    """Its request runs from second 3 to 8 on the other: 3 s alone, 2 s of two, 3 s alone."""
    run = kvsim.simulate(**TWO, fail="replica=1:at=2.5:for=9")
    one, other = (each["engine"]["mean_running"] for each in run.summary.replicas)
    assert (one, other) == (10 / 8, 1)
    assert run.summary.engine.mean_running == (10 + 2.5) / (8 + 2.5)
    assert run.summary.replicas[1]["memory"]["average"]["token"] == pytest.approx(
        100 * (100 + 101 + 0.5 * 102) / 2.5 / 1024
    )
    timeline = run.columns.timeline
    assert timeline["time_s"][timeline["replica"] == 1][-1] == 2.5


def test_a_replica_that_comes_back_is_counted_from_then_on():
    run = kvsim.simulate(**TWO, fail="replica=1:at=2.5:for=0.5")
    assert run.summary.duration_s == 8
    assert run.summary.engine.mean_running == (10 + 2.5) / (8 + 7.5)


def test_means_of_a_fleet_that_never_scales_are_those_without_a_policy_also_if_replicas_die():
    fail = ["replica=1:at=2.5:for=1", "replica=0:at=6.5"]
    plain, scaled = (
        kvsim.simulate(**TWO, fail=fail, scale=scale).summary for scale in ("none", "schedule:0=2")
    )
    for name in ("engine", "memory", "load", "replicas", "faults"):
        assert plain[name] == scaled[name], name


CACHED = {"enable_prefix_caching": True, "trace": "synthetic", "num_prompts": 2, "request_rate": float("inf")}


def test_copies_to_the_host_after_the_last_answer_are_in_no_mean():
    """One request for 5 s; what it computed, 128 KiB a token, is written at 0.1 MB/s for 130 s more."""
    asked = {**TWO, "replicas": 1, "num_prompts": 1, "scheduler": "sglang", "allocator": "sglang"}
    asked |= {"async_scheduling": None}
    asked |= {"enable_prefix_caching": True, "enable_hierarchical_cache": True, "hicache_link": "0.0001"}
    run = kvsim.simulate(**asked)
    assert run.summary.duration_s == 5
    assert run.summary.engine.mean_running == 1
    assert run.summary.tier.store_busy_share > 0.5
    held = run.summary.tier.average_used_share * run.summary.tier.capacity_bytes
    assert held == pytest.approx(100 * 131_072 * 4 / 5)  # the prompt, from the end of its step on


ONE = {**TWO, "num_prompts": 1, "enable_prefix_caching": True, "kv_offloading_size": "1", "input_len": "96"}


@pytest.mark.parametrize("absent", [{"fail": "replica=1:at=0"}, {"scale": "schedule:0=1"}])
def test_the_host_of_a_replica_that_is_not_there_is_no_room(absent):
    alone, fleet = kvsim.simulate(**{**ONE, "replicas": 1}), kvsim.simulate(**ONE, **absent)
    assert alone.summary.duration_s == fleet.summary.duration_s == 5
    assert fleet.summary.tier.average_used_share == alone.summary.tier.average_used_share
    held = alone.summary.tier.average_used_share * alone.summary.tier.capacity_bytes
    assert held == pytest.approx(96 * 131_072)  # it takes the room when the store is planned


def test_a_replica_that_stores_on_after_it_is_off_is_not_there(tmp_path):
    """Its text goes on to a tier that others share, slowly; it was off after its last answer, at 5 s."""
    rows = [
        {"arrival_s": at_s, "prompt_tokens": 96, "output_tokens": size}
        for at_s, size in ((0, 5), (0, 5), (6, 20))
    ]
    (tmp_path / "three.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {**TWO, "trace": str(tmp_path / "three.jsonl"), "enable_prefix_caching": True, "num_prompts": 3}
    asked |= {"tier": "host:1GiB ssd:1GiB:0.001:shared", "router": "round-robin"}
    for name in ("input_len", "output_len", "request_rate"):
        del asked[name]
    run = kvsim.simulate(**asked, scale="schedule:0=2,1=1")
    assert run.summary.duration_s == 26
    assert run.summary.scaling.changes[-1] == {"time_s": 5, "replica": 1, "state": "off"}
    timeline = run.columns.timeline
    assert timeline["time_s"][timeline["replica"] == 1][-1] == 5
    assert run.summary.engine.mean_running == (5 + 5 + 20) / (26 + 5)
    assert [each["engine"]["mean_running"] for each in run.summary.replicas] == [25 / 26, 1]


def test_what_only_a_copy_holds_is_shared_by_nobody():
    """Two requests of one text, one after the other; the copy of the first to the host outlasts it."""
    asked = {**TWO, "replicas": 1, "scheduler": "sglang", "allocator": "sglang", "async_scheduling": None}
    asked |= {"enable_prefix_caching": True, "enable_hierarchical_cache": True, "max_num_seqs": 1}
    run = kvsim.simulate(**asked, hicache_link="0.001")
    assert run.summary.memory.saved_by_sharing == 0
    assert run.summary.memory.average["token"] > 100 * 102 / 1024
