"""Dynamo's planner for one side of prefill and decode pools, by closed forms."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvsim.sim.serving.scaling import policy_of
from kvsim.sim.serving.slo_planner import planner_of
from kvsim.sim.serving.slo_sides import DecodePlanner, PrefillPlanner
from kvsim.sim.workload import PS_PER_S

from .test_slo_planner import ANSWER, Log
from .test_slo_planner import load as both


def load(waiting=0, decode=0, loading=0):
    """A replica whose steps take 10 ms, 0.1 ms per prompt token, and 1 ms per 1,000 tokens of contexts."""
    return SimpleNamespace(**{**vars(both(waiting, decode)), "loading_tokens": loading})


def planner(kind, per_s=0.2, **given):
    """A planner that has seen the lengths of requests: 1,000 tokens of a prompt, 100 of an answer."""
    return planner_of({"look": 5.0, "every": 60.0, **given}, 9, Log(per_s), kind)


def planned(found):
    """The number of replicas after an interval without load."""
    return [found.target(5 * look, [load()], 1) for look in range(1, 13)][-1]


def test_a_prefill_replica_computes_one_prompt_after_the_other():
    """A prompt takes 110 ms; 20 per second need 2.2 replicas."""
    found = planner(PrefillPlanner)
    found._observe(5 * PS_PER_S, [load()], False)
    assert found._served_per_s(load(decode=50_000)) == pytest.approx(1 / 0.11)
    assert [planned(planner(PrefillPlanner, per_s)) for per_s in (1, 9, 20, 40)] == [1, 1, 3, 5]


def test_a_prompt_that_is_late_alone_takes_as_many_replicas_as_goals():
    assert [planned(planner(PrefillPlanner, 1, ttft=ttft)) for ttft in (0.2, 0.06, 0.03)] == [1, 2, 4]


def test_a_prefill_replica_is_judged_by_its_queue_alone():
    found = planner(PrefillPlanner)
    for count, loads in (
        (3, [load(4000, 90_000)] * 2),  # 5,000 tokens take 2 x 210 + 110 ms
        (2, [load(3000)] * 2),  # 4,000: 420 ms; one alone would queue 6,000, 630 ms
        (2, [load(4000), load()]),
        (2, [load(2000)] * 2),  # of one alone 4,000: 420 ms beside its own prompt, more than 0.8 x 390
        (1, [load(1000, 90_000)] * 2),  # 210 ms
    ):
        assert found.target(5, loads, len(loads)) == count


def test_a_decode_replica_serves_the_largest_batch_within_its_goal():
    """A batch of x takes 10 + 1.05 x ms: at 50 ms 38."""
    found = planner(DecodePlanner)
    found._observe(5 * PS_PER_S, [load()], False)
    assert found._served_per_s(load(9000)) == pytest.approx(38 / (ANSWER * 0.0499))
    assert replace(found, tpot_s=0.001)._served_per_s(load()) == pytest.approx(1 / (ANSWER * 0.01105))
    few = SimpleNamespace(**{**vars(load()), "max_num_seqs": 7})
    assert found._served_per_s(few) == pytest.approx(7 / (ANSWER * 0.01735))
    small = SimpleNamespace(**{**vars(load()), "capacity_tokens": 4000})
    assert found._served_per_s(small) == pytest.approx(3 / (ANSWER * 0.01315))
    assert [planned(planner(DecodePlanner, per_s)) for per_s in (1, 7, 20, 40)] == [1, 1, 3, 6]


def test_who_waits_or_is_on_the_way_counts_for_a_decode_replica():
    found = planner(DecodePlanner)
    for count, loads in (
        (3, [load(10_000, 20_000, 9_000)] * 2),  # and one more sequence: 10 + 40.05 ms
        (2, [load(10_000, 20_000, 8_900), load()]),
        (2, [load(5_000, 10_000)] * 2),  # one alone: 10 + 31.05 ms, more than 0.8 x 50
        (1, [load(4_000, 10_000)] * 2),  # 39.05 ms
    ):
        assert found.target(5, loads, len(loads)) == count


def test_a_decode_replica_keeps_what_the_others_have_no_memory_for():
    found = planner(DecodePlanner, tpot=9.0)
    assert found.target(5, [load(0, 49_000)] * 2, 2) == 1
    assert found.target(10, [load(0, 50_000)] * 2, 2) == 2


def test_nothing_changes_where_no_replica_is_alive_or_one_is_not():
    for kind in (PrefillPlanner, DecodePlanner):
        found = planner(kind)
        assert found.target(5, [], 2) == 2
        assert found.target(10, [load(9000)], 2) == 2
    assert policy_of("threshold:least=2", 4).target(5, [], 1) == 2
