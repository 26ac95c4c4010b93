"""Laws of policies: what each must do if its rule leaves no choice, and what theory says of it."""

from collections import Counter
from heapq import heappop, heappush
from itertools import combinations
from math import exp, log
from random import Random

import numpy as np
import pytest
from support.cases import GPU, MODEL
from support.settings import engine_config

from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.policies import columns
from kvsim.sim.policies.andes import Andes
from kvsim.sim.policies.queue import Turning
from kvsim.sim.predictors.base import predictor_of
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import PS_PER_S, Workload


def work(seed, count=250, gap_s=0.15, longest=60, clients="a"):
    """Requests that arrive a little faster than they can be served."""
    rng = Random(seed)
    arrival = np.cumsum([round(rng.expovariate(1 / gap_s) * PS_PER_S) for _ in range(count)])
    prompts = np.array([rng.randint(1, longest) for _ in range(count)])
    answers = np.array([1 + min(round(rng.expovariate(1 / 20)), longest) for _ in range(count)])
    owner = np.array([rng.choice(clients) for _ in range(count)], dtype=object)
    return Workload("laws", arrival, prompts, answers, labels={"client": owner})


def engine_for(requests, kv_tokens=240, step_s=0.05, **settings):
    usual = {"scheduler": "vllm-v1", "max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": 4}
    engine = engine_config(**{**usual, "max_model_len": 256, **settings})
    where = Deployment(model=MODEL, gpu=GPU, engine=engine, kv_tokens=kv_tokens, cost=f"constant:{step_s}")
    return build_engine(where, requests)


def times(requests, **settings):
    """(first token, finish) of each request, in picoseconds; and preemptions."""
    result = engine_for(requests, **settings).run()
    columns = (result.requests[name].tolist() for name in ("first_token_ps", "finish_ps"))
    return *columns, result.preemptions


# -- where a rule leaves no choice --------------------------------------------------------------


@pytest.mark.parametrize("scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "ssjf", "predictor": "constant:9"},
        {"policy": "ssjf", "predictor": "none"},
        {"policy": "pars", "predictor": "none", "starvation": 1e6},
        {"policy": "vtc"},
        {"policy": "dlpm"},
        {"policy": "edf", "usual_slo": 1e6},
        {"policy": "qlm", "usual_slo": 1e6, "slo_granularity": 1e6},
        {"policy": "ewsjf", "ewsjf_step": 1 << 20, "ewsjf_weight": 0.0},
        {"policy": "early-rejection", "usual_slo": 1e6},
        {"policy": "slo-annealing", "usual_slo": 1e6, "predictor": "constant:9", "annealing_steps": 0},
    ],
    ids=str,
)
def test_where_all_are_equal_who_came_first_is_first(settings, scheduling):
    """With equal predictions, one client and distant deadlines each policy is fcfs, preemptions included."""
    for seed in range(3):
        requests = work(seed)
        plain = times(requests, async_scheduling=scheduling)
        assert times(requests, async_scheduling=scheduling, **settings) == plain
        assert plain[2] > 10


def test_one_endless_quantum_is_first_come_first_served():
    for seed in range(3):
        requests = work(seed)
        endless = {"policy": "mlfq", "mlfq_quantum": 1e6, "mlfq_promotion": 1e6}
        assert times(requests, **endless) == times(requests)


def test_sarathi_with_a_budget_of_all_tokens_is_iteration_level_batching():
    for seed in range(3):
        requests = work(seed)
        ample = {"kv_tokens": 40_000, "max_num_batched_tokens": 4096}
        sarathi = times(requests, scheduler="sarathi@osdi24", watermark=0.0, **ample)
        assert sarathi == times(requests, scheduler="orca", **ample)


def test_a_displaced_request_comes_back_and_ends():
    requests = work(1)
    result = engine_for(requests, policy="srpt", kv_tokens=40_000).run()
    assert result.preemptions > 10  # for seats alone: there is memory for all
    assert result.finished.all()


def test_splitfuse_fills_the_budget_while_anybody_waits():
    engine = engine_for(work(2, gap_s=0.03), scheduler="splitfuse", kv_tokens=40_000, max_num_seqs=64)
    full, decide = [], engine.replica.decide

    def watched(server):
        step = decide(server)
        tokens = step.decodes + (step.prompts.tokens if step.prompts else 0)
        assert tokens <= 64
        if server.waiting:
            full.append(tokens)
        return step

    engine.replica.decide = watched
    engine.run()
    assert len(full) > 50
    assert set(full) == {64}


def test_who_is_not_refused_early_meets_the_goal_that_an_oracle_foresaw():
    """One seat, steps of equal length: predictions come true, so no served request is late by a step."""
    requests = work(3, gap_s=0.4)
    settings = {"policy": "early-rejection", "usual_slo": 4.0, "max_num_seqs": 1, "async_scheduling": False}
    result = engine_for(requests, kv_tokens=8192, **settings).run()
    first = result.requests["first_token_ps"]
    waited = (first - requests.arrival_ps)[result.finished] / PS_PER_S
    assert 20 < sum(result.rejected.values()) < 230
    assert waited.max() <= 4.0 + 0.1


def test_annealing_meets_more_goals_than_the_order_of_arrival():
    requests, met = work(4, gap_s=0.1), {}
    for settings in ({}, {"policy": "slo-annealing", "usual_slo": 3.0}):
        found = engine_for(requests, kv_tokens=8192, **settings).run()
        waited = found.requests["first_token_ps"] - requests.arrival_ps
        met[len(settings)] = int((waited <= 3 * PS_PER_S).sum())
    assert met[2] > met[0] + 10


def test_nobody_is_displaced_more_often_than_andes_allows():
    for cap in (0, 1, 3):
        result = engine_for(work(5), policy="andes", kv_tokens=40_000, andes_preemptions=cap).run()
        assert bool(cap) <= result.requests["num_preemptions"].max() <= cap


@pytest.mark.parametrize("few", [1, 5, 1 << 12])
def test_andes_finds_the_same_head_however_many_stand_in_its_heap(few, monkeypatch):
    """Also the head that it finds by computing each key separately."""
    requests = work(6, gap_s=0.01)
    settings = {"policy": "andes", "andes_preemptions": 2, "max_num_seqs": 4, "kv_tokens": 2000}
    plain = times(requests, **settings)
    monkeypatch.setattr(columns, "FEW", few)
    assert times(requests, **settings) == plain
    monkeypatch.setattr(Andes, "queue", lambda self: Turning(self))
    monkeypatch.setattr(Andes, "turns_ps", lambda self, request: self.next_ps(self.server.now_ps))
    assert times(requests, **settings) == plain
    assert plain[2] > 3


# -- one seat: queueing theory ------------------------------------------------------------------

STEP_S = 0.001
SEAT = {"max_num_seqs": 1, "max_num_batched_tokens": 256}  # what is computed anew takes one step


def one_seat(requests, **settings):
    """Response times in seconds, one request at a time; prompts of one token, so k tokens take k steps."""
    result = engine_for(requests, kv_tokens=8192, step_s=STEP_S, **SEAT, **settings).run()
    return (result.requests["finish_ps"] - requests.arrival_ps) / PS_PER_S


def poisson(seed, count, load, mean):
    rng = np.random.default_rng(seed)
    answers = np.minimum(1 + rng.exponential(mean, count).astype(np.int64), 200)
    gaps = rng.exponential(answers.mean() * STEP_S / load, count)
    arrival = (np.cumsum(gaps) * PS_PER_S).astype(np.int64)
    return Workload("queue", arrival, np.ones(count, dtype=np.int64), answers)


def shortest_first(requests):
    """SRPT by hand: in each step the request with the fewest steps left has the seat; ties: the running."""
    step_ps = round(STEP_S * PS_PER_S)
    waiting, finish, at, now_ps = [], {}, 0, 0
    arrivals, answers = requests.arrival_ps.tolist(), requests.output_tokens.tolist()
    running = None
    while at < len(arrivals) or waiting or running:
        if not waiting and running is None:
            now_ps = max(now_ps, arrivals[at])
        while at < len(arrivals) and arrivals[at] <= now_ps:
            heappush(waiting, (answers[at], at))
            at += 1
        if running is None:
            running = heappop(waiting)
        elif waiting and waiting[0][0] < running[0]:
            heappush(waiting, running)
            running = heappop(waiting)
        now_ps += step_ps
        running = (running[0] - 1, running[1])
        if not running[0]:
            finish[running[1]], running = now_ps, None
    return [finish[row] for row in range(len(arrivals))]


def test_srpt_with_one_seat_is_srpt():
    """Step by step: an answer that is recomputed after a preemption loses no step."""
    for seed in range(3):
        requests = poisson(seed, 400, 0.8, 12)
        result = engine_for(
            requests, kv_tokens=8192, step_s=STEP_S, **SEAT, async_scheduling=False, policy="srpt"
        ).run()
        assert result.requests["finish_ps"].tolist() == shortest_first(requests)
        assert result.preemptions > 20


def schrage_and_miller(sizes, load):
    """The mean response time of M/G/1 under SRPT, sizes in steps; service in whole steps (1966, eq. 5).

    E T(x) = rate (sum of s^2 p up to x + x^2 P(S > x)) / (2 (1 - rho(x-)) (1 - rho(x)))
             + sum over t up to x of 1 / (1 - rho(t-))
    """
    count, total = Counter(sizes), len(sizes)
    rate = load / (sum(sizes) / total)
    below = squares = served = response = 0.0
    tail = 1.0
    for x in range(1, max(count) + 1):
        share = count.get(x, 0) / total
        served += 1 / (1 - below)  # from x - 1 to x left, with all shorter ones before it
        squares += x * x * share
        tail -= share
        through = below + rate * x * share
        wait = rate * (squares + x * x * tail) / (2 * (1 - below) * (1 - through))
        response += share * (wait + served)
        below = through
    return response * STEP_S


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.7])
def test_the_mean_response_time_of_srpt_is_that_of_schrage_and_miller(load):
    means, theory = [], []
    for seed in range(6):
        requests = poisson(seed, 12_000, load, 40)
        means.append(one_seat(requests, policy="srpt", async_scheduling=False).mean())
        theory.append(schrage_and_miller(requests.output_tokens.tolist(), load))
    error = np.mean(means) / np.mean(theory) - 1
    spread = np.std(np.array(means) / np.array(theory), ddof=1) / 6**0.5
    assert abs(error) < 3 * spread + 0.5 / 40  # arrivals wait for the end of a step of 1/40 of the mean size


def test_no_policy_has_a_smaller_mean_response_time_than_srpt():
    requests = poisson(7, 600, 0.85, 12)
    best = one_seat(requests, policy="srpt").mean()
    assert best < one_seat(requests, policy="ssjf").mean() < one_seat(requests).mean()
    assert best < one_seat(requests, policy="mlfq", mlfq_quantum=0.004).mean()


# -- fairness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_service_of_backlogged_clients_differs_by_at_most_vtcs_bound(seed):
    """Theorem 4.4: 2 max(w_p L, w_q M) between backlogged clients; one asks twice as often, for longer."""
    rng = Random(seed)
    count, longest = 400, 40
    owner = np.array(["a" if rng.random() < 2 / 3 else "b" for _ in range(count)], dtype=object)
    prompts = np.array([rng.randint(1, longest) for _ in range(count)])
    answers = np.array([rng.randint(1, 60 if who == "a" else 20) for who in owner])
    requests = Workload("fair", np.zeros(count, dtype=np.int64), prompts, answers, labels={"client": owner})
    memory = 400
    engine = engine_for(
        requests, policy="vtc", kv_tokens=memory, async_scheduling=False, reserve_full_prompt=True
    )
    policy, server, apart = engine.replica.scheduler.policy, engine.replica.server, []
    decide = engine.replica.decide

    def watched(server):
        step = decide(server)
        policy._settle()
        if {"a", "b"} <= policy._queue.waiting.keys():
            apart.append(abs(policy.counters["a"] - policy.counters["b"]) / 1e6)
        return step

    engine.replica.decide = watched
    engine.run()
    assert not server.waiting
    assert len(apart) > 100
    assert 0 < max(apart) <= 2 * max(1 * longest, 2 * memory)


# -- predictors ---------------------------------------------------------------------------------


def said(name, lengths, longest=1 << 30):
    predictor = predictor_of(name, longest)
    return [predictor.tokens(Request(row, 1, length), 0) for row, length in enumerate(lengths)]


@pytest.mark.parametrize("tau", [0.3, 0.6, 0.9])
def test_ranks_have_the_kendall_tau_that_they_name(tau):
    rng = Random(3)
    lengths = [1 + round(200 * exp(rng.gauss(0, 1))) for _ in range(700)]
    ranks = said(f"ranks:{tau}", lengths)
    signs = [
        np.sign((a - b) * (x - y))
        for (a, x), (b, y) in combinations(zip(lengths, ranks, strict=True), 2)
        if a != b
    ]
    assert np.mean(signs) == pytest.approx(tau, abs=0.04)


def test_a_lognormal_error_has_the_deviation_that_it_names():
    lengths = [1000] * 3000
    errors = [log(each / 1000) for each in said("lognormal:0.5", lengths)]
    assert np.std(errors) == pytest.approx(0.5, rel=0.05)
    assert said("lognormal:0", [1, 7, 90]) == said("oracle", [1, 7, 90]) == [1, 7, 90]


def test_the_right_bucket_is_named_as_often_as_it_says():
    lengths = [1 + row % 1000 for row in range(4000)]
    right = [
        length <= each < length + 100
        for length, each in zip(lengths, said("buckets:10:0.7", lengths, 1000), strict=True)
    ]
    assert 0.66 < np.mean(right) < 0.76  # at the ends a wrong neighbour may be the right one again


def test_a_histogram_says_the_mean_of_the_longer_answers_so_far():
    predictor = predictor_of("histogram", 500)
    assert predictor.tokens(Request(0, 1, 7), 0) == 500
    for row, length in enumerate((10, 20, 60)):
        predictor.finished(Request(row, 1, length))
    assert [predictor.tokens(Request(9, 1, 7), done) for done in (0, 10, 30, 60)] == [30, 40, 60, 500]
