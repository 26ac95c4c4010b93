"""Overload and what holds requests back, on servers whose answer is known: steps of one second.

A request of k output tokens takes exactly k steps on a server with one seat, so Poisson arrivals make it
M/D/1, and equal gaps a queue that can be counted by hand.
"""

import numpy as np
import pytest
from support.serving import serve, workload

import kvsim
from kvsim.allocators.paged import Paged
from kvsim.sim.record.load import LIMITS, load
from kvsim.sim.workload import PS_PER_S, Clients, Workload

SEEDS = range(12)
WIDE = 1 << 20


def arriving(gaps_s):
    """Requests of one token each, with these gaps between them in seconds."""
    arrival_ps = np.cumsum(np.rint(np.multiply(gaps_s, PS_PER_S)).astype(np.int64))
    ones = np.ones_like(arrival_ps)
    return Workload("test", arrival_ps, ones, ones)


def one_seat(work):
    return load(serve(work, Paged(WIDE, 16), "vllm-v1", seats=1, max_model_len=4096))


def poisson(seed, rate, n=1_000, shape=1.0):
    """Arrivals at this rate; with a shape below 1 they come in bursts."""
    rng = np.random.default_rng(seed)
    return arriving(rng.gamma(shape, 1 / (rate * shape), n))


# -- overload -----------------------------------------------------------------------------------------


def test_five_come_in_four_seconds_where_one_leaves_a_second_so_200_of_1001_wait_at_the_end():
    found = one_seat(arriving(np.append(0, np.full(1_000, 0.8))))
    assert found["overloaded"]
    assert found["arrivals"] == "open"
    assert found["arriving_requests_per_s"] == 1.25
    assert found["leaving_requests_per_s"] == 1
    assert found["waiting_at_last_arrival"] == 200


def test_a_server_that_is_as_fast_as_its_arrivals_is_not_overloaded():
    found = one_seat(arriving(np.append(0, np.full(1_000, 1.0))))
    assert not found["overloaded"]
    assert (found["arriving_requests_per_s"], found["leaving_requests_per_s"]) == (1, 1)
    assert found["waiting_at_last_arrival"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.5, 0.9, 0.95])
def test_m_d_1_below_saturation_is_never_overloaded(rho):
    assert not any(one_seat(poisson(seed, rho))["overloaded"] for seed in SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [1.25, 2.0])
def test_m_d_1_above_saturation_is_always_overloaded_and_serves_at_its_own_rate(rho):
    for seed in SEEDS:
        found = one_seat(poisson(seed, rho))
        assert found["overloaded"]
        assert found["arriving_requests_per_s"] == pytest.approx(rho, rel=0.2)
        assert found["leaving_requests_per_s"] == pytest.approx(1, abs=0.005)
        assert found["held_back_share"]["max_num_seqs"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.9, 1.0])
def test_bursts_that_a_server_can_work_off_are_no_overload(rho):
    assert not any(one_seat(poisson(seed, rho, shape=0.1))["overloaded"] for seed in SEEDS)


def test_a_queue_that_empties_between_two_crowds_is_no_overload():
    crowd = np.append(0, np.full(199, 0.1))
    found = one_seat(arriving(np.concatenate([crowd, [400], crowd[1:]])))
    assert found["waiting_at_last_arrival"] > 3 * 400**0.5
    assert not found["overloaded"]


def test_who_comes_before_the_first_one_left_is_at_no_rate_and_all_at_once_only_at_one_instant():
    for gap_s, arrivals in ((0, "all at once"), (0.001, "open")):
        found = one_seat(arriving(np.full(500, gap_s)))
        assert found["arrivals"] == arrivals
        assert not found["overloaded"]
        assert found["arriving_requests_per_s"] is found["leaving_requests_per_s"] is None


def test_a_closed_loop_is_no_overload():
    work = arriving(np.zeros(500))
    clients = Clients(50, np.zeros(500, np.int64))
    found = one_seat(Workload("test", work.arrival_ps, work.prompt_tokens, work.output_tokens, waits=clients))
    assert found["arrivals"] == "closed loop"
    assert not found["overloaded"]
    assert found["held_back_share"]["max_num_seqs"] > 0.8


def test_requests_that_can_never_be_served_neither_come_nor_wait():
    rows = [(0.8 * place, 1, 1) for place in range(1_001)] + [(0.8 * place, 63, 9) for place in range(1_001)]
    found = load(serve(workload(sorted(rows)), Paged(32, 16), "vllm-v1", seats=1))
    assert found["arriving_requests_per_s"] == 1.25
    assert found["waiting_at_last_arrival"] == 200


def test_prompts_that_wait_for_too_few_decode_servers_are_an_overload():
    """The prefill side keeps up, so no request waits long to be scheduled for the first time."""
    asked = {"model": "llama-3.1-8b", "num_prompts": 400, "request_rate": 10.0}
    short, enough = (
        kvsim.simulate(**asked, pool=f"prefill:1:gpu=h100 decode:{many}:gpu=l40s,max_num_seqs=24")
        for many in (1, 5)
    )
    queued_s = short.columns.requests["queueing_s"]
    assert queued_s.max() < 1
    assert short.summary.load.overloaded and short.summary.load.waiting_at_last_arrival > 60
    assert not enough.summary.load.overloaded and enough.summary.load.waiting_at_last_arrival < 10


# -- limits -------------------------------------------------------------------------------------------


def held_s(rows, slots=WIDE, scheduler="vllm-v1", **options):
    """Seconds for which each limit held the queue back, for limits that did."""
    result = serve(workload(rows), Paged(slots, 16), scheduler, **options)
    assert sum(result.held_ps.values()) == result.saturated.time_ps
    assert set(result.held_ps) == set(LIMITS)
    return {name: time_ps / PS_PER_S for name, time_ps in result.held_ps.items() if time_ps}


def test_one_seat_holds_the_second_request_back_until_the_first_is_done():
    assert held_s([(0, 1, 5), (0, 1, 5)], seats=1) == {"max_num_seqs": 5}


def test_memory_for_one_holds_the_second_back_until_the_first_is_done():
    assert held_s([(0, 16, 1), (0, 10, 5)], slots=16) == {"kv_memory": 1}
    assert held_s([(0, 10, 7), (0, 10, 7)], slots=16) == {"kv_memory": 7}


def test_the_token_budget_holds_the_third_prompt_back_for_one_step():
    assert held_s([(0, 20, 5)] * 3, budget=40) == {"max_num_batched_tokens": 1}


def test_a_static_batch_holds_back_who_comes_after_it_began():
    assert held_s([(0, 1, 5), (2, 1, 1)], scheduler="static") == {"batch": 3}


def test_who_is_evicted_waits_for_memory():
    # two of 16 + 16 tokens in three blocks: at 17 tokens each wants a second block, one is evicted
    assert held_s([(0, 16, 16), (0, 16, 16)], slots=48) == {"kv_memory": 15}


def test_limits_follow_each_other_in_time():
    # the second and the third prompt wait a step each for the budget, the third then until the first is done
    rows = [(0, 20, 4), (0, 20, 4), (1, 20, 2)]
    held = held_s(rows, slots=64, budget=24, chunked=False, max_model_len=24)
    assert held == {"max_num_batched_tokens": 2, "kv_memory": 2}


def test_who_waits_for_a_copy_between_tiers_is_held_back_by_that():
    asked = {"trace": "agents", "num_prompts": 40, "rate_scale": 6.0, "kv_tokens": 140_000}
    one, two = (
        kvsim.simulate(
            **asked, model="llama-3.1-8b", gpu="h100", blocks_per_chunk=16, tier=tiers
        ).summary.load.held_back_share
        for tiers in ("host:8GiB", "host:8GiB ssd:2TiB:nvme")
    )
    assert one.batch == 0 < two.batch < 0.2
    assert two.max_num_batched_tokens < one.max_num_batched_tokens
