"""Routers as in production: each rule by cases worked by hand, and by what must always hold."""

from collections import Counter
from math import exp
from types import SimpleNamespace

import numpy as np
import pytest

import kvsim
from kvsim.sim.errors import KvsimError
from kvsim.sim.routers.cache_aware import CacheAware
from kvsim.sim.routers.conductor import Conductor
from kvsim.sim.routers.consistent_hash import ConsistentHash
from kvsim.sim.routers.d2lpm import D2lpm
from kvsim.sim.routers.dynamo import Dynamo
from kvsim.sim.routers.llm_d import LlmD
from kvsim.sim.routers.power_of_two import PowerOfTwo
from kvsim.sim.serving.request import Request

KNOWING = ("dynamo", "llm-d", "cache-aware", "conductor", "preble")
"""Routers that know prefixes."""


def router(kind, seed=0, **options):
    return kind("", np.random.default_rng(seed), options)


def replica(place, cached=0, **facts):
    usual = {
        "waiting": 0,
        "requests": 0,
        "used_share": 0.0,
        "used_tokens": 0,
        "waiting_tokens": 0,
        "prefill_tokens": 0,
    }
    return SimpleNamespace(
        place=place, block_size=16, cached_tokens=lambda request: cached, **{**usual, **facts}
    )


def prompt(tokens=160, index=0, content=()):
    request = Request(index, tokens, 10)
    request.write(content)
    return request


def sessions(*names):
    return SimpleNamespace(labels={"session": np.array(names)})


# -- D2LPM ---------------------------------------------------------------------------------------


def test_d2lpm_keeps_a_client_at_its_prefix_until_its_deficit_there_is_used_up():
    """A quantum of 200: 160 tokens minus 64 cached are charged, so the third request goes elsewhere."""
    found = router(D2lpm, d2lpm_quantum=200)
    found.begin(SimpleNamespace(labels={"client": np.array(["a", "a", "a", "a", "b"])}))
    replicas = [replica(0), replica(1, cached=64)]
    assert [found.choose(prompt(index=row), replicas) for row in range(3)] == [1, 1, 1]
    assert found.choose(prompt(index=3), replicas) == 0
    assert found.choose(prompt(index=4), replicas) == 1  # b has its own


# -- Mooncake's Conductor ------------------------------------------------------------------------


def timed(place, cached=0, **facts):
    """A replica that computes a token in 1 ms, with 1 us per token of contexts."""
    usual = {"role": "both", "running": 0, "decode_tokens": 0}
    return replica(
        place,
        cached,
        **{**usual, **facts},
        step_s=lambda prompts, tokens, sequences, contexts: (
            tokens / 1000 + (sequences + contexts / 1000) / 1000
        ),
    )


def test_conductor_leaves_a_prefix_when_the_queue_in_front_takes_longer_than_the_prefix():
    """160 tokens: 0.06 s behind the cached 100 and the queue, 0.16 s where nothing is cached."""
    found = router(Conductor)
    waits = {"waiting": 1, "prefill_tokens": 99}
    assert found.time_s(prompt(), timed(0, cached=100)) == pytest.approx(0.060)
    assert found.choose(prompt(), [timed(0), timed(1, cached=100, **waits)]) == 1  # 0.160, 0.159
    waits["prefill_tokens"] = 101
    assert found.choose(prompt(), [timed(0), timed(1, cached=100, **waits)]) == 0  # 0.160, 0.161
    assert found.choose(prompt(), [timed(0), timed(1)]) == 0
    assert found.choose(prompt(), [timed(0, running=1), timed(1)]) == 1  # 0.161, 0.160


def test_conductor_sends_answers_where_steps_are_shortest():
    """A decode replica of 3 sequences with 900 tokens is at 4 + 1.06 ms, one of 2 with 3,000 at 3 + 3.16."""
    many = timed(0, role="decode", running=3, decode_tokens=900)
    long = timed(1, role="decode", running=2, decode_tokens=3000)
    assert [router(Conductor).time_s(prompt(), each) for each in (many, long)] == pytest.approx(
        [0.00506, 0.00616]
    )
    assert router(Conductor).choose(prompt(), [long, many]) == 1


# -- Dynamo --------------------------------------------------------------------------------------


def test_dynamo_adds_prefill_to_decode_blocks():
    """160 tokens are 10 blocks: replica 0 prefills 10 and holds 2 + 10, replica 1 has 4 cached."""
    replicas = [replica(0, used_tokens=32), replica(1, cached=64, used_tokens=100, waiting_tokens=17)]
    found = router(Dynamo)
    assert [found.cost(prompt(), each) for each in replicas] == [10 + 2 + 10, 6 + 7 + 2 + 10]
    assert found.choose(prompt(), replicas) == 0
    heavy = router(Dynamo, kv_overlap_score_weight=3.0)
    assert [heavy.cost(prompt(), each) for each in replicas] == [42, 37]
    assert heavy.choose(prompt(), replicas) == 1


def test_dynamo_counts_what_others_still_prefill():
    busy, idle = replica(0, cached=160, prefill_tokens=800), replica(1)
    assert router(Dynamo).choose(prompt(), [busy, idle]) == 1


def test_dynamo_draws_by_a_softmax_of_costs_over_their_range():
    replicas = [replica(0), replica(1, used_tokens=160), replica(2, used_tokens=320)]
    found = router(Dynamo, router_temperature=0.5)
    drawn = Counter(found.choose(prompt(), replicas) for _ in range(20_000))
    weights = [exp(-share / 0.5) for share in (0, 0.5, 1)]
    for place, weight in enumerate(weights):
        assert drawn[place] / 20_000 == pytest.approx(weight / sum(weights), abs=0.015)
    one, same = (router(Dynamo, router_temperature=0.5) for _ in range(2))
    assert [one.choose(prompt(), replicas) for _ in range(50)] == [
        same.choose(prompt(), replicas) for _ in range(50)
    ]


# -- llm-d ---------------------------------------------------------------------------------------


def test_llm_d_weighs_a_short_queue_against_a_cached_prefix():
    """Of 10 blocks replica 0 has 5, replica 2 has 2; their queues are the longest and half as long."""
    replicas = [replica(0, cached=80, waiting=4), replica(1), replica(2, cached=32, waiting=2)]
    found = router(LlmD, signal_interval=0)
    found.look(replicas)
    assert found.scores(prompt(), replicas) == pytest.approx([3 * 0.5, 2, 2 * 0.5 + 3 * 0.2])
    assert found.choose(prompt(), replicas) == 1


def test_llm_d_scores_memory_requests_and_sessions():
    replicas = [replica(0, used_share=0.25, requests=8), replica(1, used_share=0.5, requests=2)]
    weights = {"queue_weight": 0, "prefix_weight": 0, "signal_interval": 0}
    kv = router(LlmD, kv_weight=1.0, **weights)
    kv.look(replicas)
    assert kv.scores(prompt(), replicas) == [0.75, 0.5]
    active = router(LlmD, active_weight=1.0, **weights)
    assert active.scores(prompt(), replicas) == [0, 0.75]
    session = router(LlmD, session_weight=1.0, **weights)
    session.begin(sessions("a", "b", "a", ""))
    first = session.choose(prompt(index=0), replicas)
    assert session.scores(prompt(index=2), replicas)[first] == 1
    assert session.scores(prompt(index=1), replicas) == [0, 0]
    assert session.scores(prompt(index=3), replicas) == [0, 0]


def test_llm_d_hears_of_queues_late():
    replicas = [replica(0, waiting=9), replica(1, waiting=0)]
    found = router(LlmD, queue_weight=1.0, prefix_weight=0.0)
    found.look(replicas)
    replicas[0].waiting, replicas[1].waiting = 0, 9
    assert found.choose(prompt(), replicas) == 1
    found.look(replicas)
    assert found.choose(prompt(), replicas) == 0
    assert found.interval_ps == 50 * 10**9


def test_late_signals_cost_time_to_first_token():
    asked = {"num_prompts": 600, "request_rate": 60.0, "replicas": 4, "model": "llama-3.1-8b", "gpu": "l40s"}
    asked |= {"router": "llm-d", "prefix_weight": 0.0, "max_num_seqs": 16}
    now, late = (kvsim.simulate(signal_interval=each, **asked).summary for each in (0.0, 5.0))
    assert late.requests.finished == now.requests.finished == 600
    assert late.latency.ttft_s.mean > now.latency.ttft_s.mean


# -- SGLang --------------------------------------------------------------------------------------


def test_cache_aware_sends_a_known_text_where_it_was_sent():
    chat, other = ((7, 0, 160),), ((8, 0, 160),)
    replicas = [replica(0), replica(1)]
    found = router(CacheAware)
    assert found.choose(prompt(content=chat), replicas) == 0  # nobody knows it: the smallest tree, the first
    assert found.choose(prompt(content=other), replicas) == 1  # the smallest tree
    assert [found.choose(prompt(content=chat), replicas) for _ in range(3)] == [0, 0, 0]
    assert found.choose(prompt(tokens=320, content=chat), replicas) == 0  # half of it is not more than half:
    assert found.choose(prompt(tokens=320, content=chat), replicas) == 1  # replica 0's tree is the larger now


def test_cache_aware_sends_to_the_least_loaded_when_both_limits_are_passed():
    chat = ((7, 0, 160),)
    found = router(CacheAware, balance_abs_threshold=4, balance_rel_threshold=1.5)
    assert found.choose(prompt(content=chat), [replica(0), replica(1)]) == 0
    assert found.choose(prompt(content=chat), [replica(0, requests=4), replica(1)]) == 0  # not more than 4
    assert found.choose(prompt(content=chat), [replica(0, requests=15), replica(1, requests=10)]) == 0
    assert found.choose(prompt(content=chat), [replica(0, requests=16), replica(1, requests=10)]) == 1
    assert (
        found.choose(prompt(content=chat), [replica(0), replica(1)]) == 1
    )  # it was sent there, too, and last


def test_cache_aware_finds_a_text_only_with_those_that_can_be_chosen():
    chat = ((7, 0, 160),)
    found = router(CacheAware)
    found.choose(prompt(content=chat), [replica(0), replica(1)])
    assert found.choose(prompt(content=chat), [replica(1), replica(2)]) == 0


def test_power_of_two_takes_the_less_loaded_of_two():
    replicas = [replica(place, requests=place) for place in range(4)]
    drawn = Counter(
        router_.choose(prompt(), replicas) for router_ in [router(PowerOfTwo)] for _ in range(6000)
    )
    for place, pairs in enumerate((3, 2, 1, 0)):  # of six pairs, those in which it is the less loaded
        assert drawn[place] / 6000 == pytest.approx(pairs / 6, abs=0.03)
    assert router(PowerOfTwo).choose(prompt(), replicas[:1]) == 0


# -- consistent hashing --------------------------------------------------------------------------


def hashed(places, names):
    found = router(ConsistentHash)
    found.begin(sessions(*names))
    replicas = [replica(place) for place in places]
    return [places[found.choose(prompt(index=row), replicas)] for row in range(len(names))]


def test_a_session_has_one_home_and_few_move_when_a_replica_goes():
    names = [f"user {number % 400}" for number in range(800)]
    four, three = hashed([0, 1, 2, 3], names), hashed([0, 1, 3], names)
    assert four[:400] == four[400:]
    moved = [before for before, after in zip(four, three, strict=True) if before != after]
    assert set(moved) == {2}
    assert all(400 / 4 * 0.6 < count / 2 < 400 / 4 * 1.4 for count in Counter(four).values())


def test_consistent_hashing_needs_sessions():
    with pytest.raises(KvsimError, match="router consistent-hash needs a trace with sessions, got one with"):
        kvsim.simulate(replicas=2, router="consistent-hash", num_prompts=10)


# -- in a fleet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dynamo", "llm-d", "cache-aware", "power-of-two", "preble"])
def test_every_router_serves_all_in_spans_as_in_steps(name):
    asked = {"num_prompts": 300, "request_rate": 50.0, "replicas": 3, "shared_prefix": "9x300"}
    asked |= {"enable_prefix_caching": True, "router": name, "model": "llama-3.1-8b", "gpu": "l40s"}
    asked |= {"router_temperature": 0.3} if name == "dynamo" else {}
    asked |= {"kv_weight": 1.0, "active_weight": 1.0} if name == "llm-d" else {}
    asked |= {"preble_warm_up": 5, "preble_window": 2.0} if name == "preble" else {}
    fast, slow = (kvsim.simulate(step_mode=mode, **asked) for mode in (False, True))
    assert fast.summary.requests.finished == 300
    assert fast.columns.requests["replica"].tolist() == slow.columns.requests["replica"].tolist()
    assert fast.columns.requests["finish_s"].tolist() == slow.columns.requests["finish_s"].tolist()
    assert len(set(fast.columns.requests["replica"].tolist())) == 3


def test_routers_that_know_prefixes_hit_more_than_round_robin():
    asked = {"num_prompts": 400, "request_rate": 30.0, "replicas": 4, "shared_prefix": "60x800"}
    asked |= {"enable_prefix_caching": True, "model": "llama-3.1-8b", "gpu": "l40s"}
    hits = {
        name: kvsim.simulate(router=name, **asked).summary.engine.prefix_hit_tokens
        for name in ("round-robin", *KNOWING)
    }
    assert all(hits[name] > hits["round-robin"] for name in KNOWING), hits
