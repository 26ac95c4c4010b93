"""Preble's E2 by cases worked by hand: a prompt token takes 1 ms, a decode step 10 ms."""

from types import SimpleNamespace

import numpy as np
import pytest

from kvsim.sim.routers.preble import Preble
from kvsim.sim.serving.request import Request, State
from kvsim.sim.workload import PS_PER_S

A, B = 1, 2
"""Documents of 160 tokens."""


def router(**options):
    return Preble("", np.random.default_rng(0), options)


def replica(place, capacity_tokens=100_000):
    return SimpleNamespace(
        place=place,
        capacity_tokens=capacity_tokens,
        running=0,
        decode_tokens=0,
        prefill_s=lambda tokens: tokens / 1000,
        step_s=lambda *_: 0.01,
    )


def about(document, tokens, own, at_s=0.0):
    """A prompt of a document of 160 tokens and `tokens` of its own."""
    request = Request(own, 160 + tokens, 10)
    request.arrival_ps = round(at_s * PS_PER_S)
    request.write(((document, 0, 160), (1000 + own, 0, tokens)) if tokens else ((document, 0, 160),))
    return request


def text(stream, tokens, at_s=0.0):
    request = Request(stream, tokens, 10)
    request.arrival_ps = round(at_s * PS_PER_S)
    request.write(((stream, 0, tokens),))
    return request


def costs_s(found, request, replicas):
    return [found.cost_s(request, found.keys(request), each) for each in replicas]


def answer(request, first_token_s):
    request.state = State.FINISHED
    request.first_token_ps = request.arrival_ps + round(first_token_s * PS_PER_S)


def test_most_of_a_prompt_known_is_exploited_half_of_it_explored():
    replicas, found = [replica(0), replica(1)], router()
    assert found.choose(about(A, 64, 10), replicas) == 0  # both idle: the first
    assert found.choose(about(A, 144, 11), replicas) == 0  # 160 known, 144 not, although replica 1 is idle
    half = about(A, 160, 12)
    assert costs_s(found, half, replicas) == pytest.approx([0.224 + 0.144 + 0.160, 0.320])
    assert found.choose(half, replicas) == 1
    assert found.choose(about(A, 64, 13), replicas) == 1  # of two that have it the less loaded: 368, 320 ms
    assert found.choose(about(A, 64, 14), replicas) == 0  # 368, 384 ms


def test_what_is_evicted_costs_its_computation_by_the_share_of_requests_that_had_it():
    """Room for 20 blocks: replica 0 has 20 that both of its requests had, replica 1 has 16 of one request."""
    replicas, found = [replica(0, 320), replica(1, 320)], router()
    assert [found.choose(text(stream, 320 - 64 * at), replicas) for stream, at in ((7, 0), (8, 1))] == [0, 1]
    assert found.choose(text(7, 320), replicas) == 0
    new = text(9, 160)
    assert costs_s(found, new, replicas) == pytest.approx([0.320 + 0.160 + 0.160, 0.256 + 0.096 + 0.160])
    found.choose(text(10, 160), replicas[:1])  # it evicts half of what replica 0 has, the end of the text
    assert costs_s(found, new, replicas)[0] == pytest.approx(0.320 + 0.160 + 0.160 * 2 / 3 + 0.160)
    assert found.choose(text(7, 320), replicas) == 1  # 160 tokens of it are known, not more than half


def test_load_counts_the_mean_answer_for_each_request_of_the_window():
    replicas, found = [replica(0), replica(1)], router(preble_window=60.0)
    sent = [about(A, 64, 10), about(A, 64, 11)]
    assert [found.choose(each, replicas) for each in sent] == [0, 0]
    answer(sent[0], 0.3)
    found.choose(text(7, 160, 30.0), replicas[1:])  # here it sees that one has ended, with 10 tokens
    new = text(8, 160, 30.0)
    assert costs_s(found, new, replicas) == pytest.approx([0.288 + 2 * 0.1 + 0.160, 0.160 + 0.1 + 0.160])
    found.choose(text(9, 160, 60.5), replicas[1:])  # the first two have left the window
    assert costs_s(found, new, replicas) == pytest.approx([0.160, 0.320 + 0.160])


def test_a_prefix_moves_from_the_most_loaded_replica_with_its_load():
    replicas, found = [replica(0), replica(1)], router(preble_warm_up=0)
    for own, document in enumerate((A, A, B, B)):
        found.choose(about(document, 64, own), replicas[:1])
    assert found.choose(about(A, 64, 10), replicas) == 0  # only one came after the first
    moved = about(A, 64, 11)  # 640 ms of load, of which two requests with 64 ms are its prefix's
    assert found.choose(moved, replicas) == 1
    new = text(7, 160)
    assert costs_s(found, new, replicas) == pytest.approx([0.512 + 0.160, 0.128 + 0.224 + 0.160])
    assert found.choose(about(A, 64, 12), replicas) == 1
    assert found.choose(about(B, 64, 13), replicas) == 0  # 512 ms are not more than 1.5 x 416


def test_no_prefix_moves_before_enough_requests_or_if_loads_are_even_enough():
    for options in ({"preble_warm_up": 3}, {"preble_warm_up": 0, "preble_balance": 100.0}):
        replicas, found = [replica(0), replica(1)], router(**options)
        found.choose(text(9, 16), replicas[1:])
        for own, document in enumerate((A, A, B, B)):
            found.choose(about(document, 64, own), replicas[:1])
        assert found.choose(about(A, 64, 10), replicas) == 0
    assert found.choose(about(A, 64, 11), replicas) == 0


def test_a_prefix_too_heavy_to_move_is_replicated_when_its_first_tokens_take_twice_as_long():
    replicas, found = [replica(0), replica(1)], router(preble_warm_up=0, preble_window=100.0)
    early = [about(A, 0, 10), about(A, 64, 11, 1.0)]
    assert [found.choose(each, replicas) for each in early] == [0, 0]
    for each in early:
        answer(each, 1.0)
    late = about(A, 64, 12, 40.0)
    assert found.choose(late, replicas) == 0
    answer(late, 2.0)
    assert found.choose(about(A, 64, 13, 60.0), replicas) == 0  # all three were seen to end since second 10
    assert found.choose(about(A, 64, 14, 89.0), replicas) == 0
    assert found.choose(about(A, 64, 15, 91.0), replicas) == 1  # two of 1 s before second 41, then one of 2 s
    assert costs_s(found, text(7, 16, 91.0), replicas) == pytest.approx(
        [0.416 + 0.5 + 0.016, 0.224 + 0.1 + 0.016]
    )
    following = [about(A, 64, own, 92.0) for own in range(16, 21)]  # the less loaded of both
    assert [found.choose(each, replicas) for each in following] == [1, 1, 1, 1, 0]


def test_a_replica_that_goes_loses_its_prefixes():
    replicas, found = [replica(0), replica(1)], router()
    assert found.choose(about(A, 64, 10), replicas) == 0
    assert found.choose(about(A, 64, 11), replicas[1:]) == 0
    assert found.choose(about(A, 64, 12), replicas) == 1
