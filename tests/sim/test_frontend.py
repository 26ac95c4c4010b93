"""The front end: what it adds to TTFT and E2E, prompt by prompt, and with clients of a closed loop."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import workloads
from kvsim.sim.cost.frontend import NOTHING, USUAL, Frontend, frontend_of, frontend_words, waiting_ps
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.run import prepare
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S, Chain, Workload


def scenario(cost="roofline", model="llama-3.1-8b", **facts):
    gpu, cost, profile = gpu_and_cost("h100", cost)
    return Deployment(
        model=model_named(model), gpu=gpu, engine=EngineConfig(), cost=cost, profile=profile, **facts
    )


def requests_of(where, replicas=1, **how):
    usual = {"num_prompts": 50, "seed": 1, "request_rate": None, "burstiness": None}
    work = workloads.build("sharegpt", **usual | how)
    return prepare(replace(where, fleet=FleetConfig(replicas=replicas)), work, {}).outcome().requests


def test_it_belongs_to_measured_gpu_times_unless_it_is_asked_for():
    assert frontend_of(scenario()) == NOTHING and not NOTHING
    assert frontend_of(scenario("measured-elsewhere")) == USUAL
    assert frontend_of(scenario("measured-elsewhere", frontend_latency=0)) == NOTHING
    assert frontend_of(scenario("measured-elsewhere", frontend_latency=0.02)) == Frontend(0.02)
    assert frontend_of(scenario(frontend_load="3+100")) == Frontend(0, 3e-6, 1e-4)
    bare = frontend_of(scenario("measured-elsewhere", frontend_load="none"))
    assert bare == Frontend(USUAL.latency_s)


def test_words_tell_what_there_is():
    assert frontend_words(scenario()) == ""
    assert frontend_words(scenario(frontend_latency=0.25)) == "front end 250 ms"
    words = "front end 1 ms + 3 us per prompt token + 0.5 ms per client of a closed loop"
    assert frontend_words(scenario(frontend_latency=0.001, frontend_load="3+500")) == words


def test_ranks_of_a_server_have_a_process_each():
    spread = scenario("measured-elsewhere", model="gpt-oss-120b", data_parallel_size=2)
    assert frontend_of(spread) == replace(USUAL, processes=2)
    of_two, of_one = (each.seconds(np.array([1000]), 64)[0] for each in (frontend_of(spread), USUAL))
    assert of_one - of_two == pytest.approx(32 * USUAL.per_client_s)


def test_it_is_in_ttft_and_e2e_but_not_in_tpot():
    bare, behind = (requests_of(scenario(frontend_latency=s), request_rate=3.0) for s in (None, 0.25))
    for name in ("ttft_s", "e2e_s"):
        assert np.allclose(behind[name] - bare[name], 0.25)
    assert np.allclose(behind["tpot_s"], bare["tpot_s"])
    assert np.array_equal(behind["finish_s"], bare["finish_s"])


def test_a_request_pays_for_its_prompt_and_for_those_before_it():
    """Prompts of 1,000, 3,000 and 500 tokens at 1 ms per token: the second waits 0.6 s, the third 3.4 s."""
    lengths, arrival_s = np.array([1000, 3000, 500, 100]), np.array([0.0, 0.4, 0.6, 9.0])
    arrival_ps = np.round(arrival_s * PS_PER_S).astype(np.int64)
    work = Workload("few", arrival_ps, lengths, np.array([1, 1, 1, 1]))
    done = prepare(scenario(frontend_load="1000"), work, {}).outcome().requests
    alone = [
        prepare(scenario(), Workload("one", none[:1], lengths[i : i + 1], none[:1] + 1), {})
        .outcome()
        .requests
        for i, none in enumerate([np.zeros(1, dtype=np.int64)] * 4)
    ]
    engine_s = np.array([each["ttft_s"][0] for each in alone])
    assert np.allclose(done["arrival_s"], arrival_s)
    assert np.allclose(done["ttft_s"] - engine_s, np.array([0, 0.6, 3.4, 0]) + lengths / 1000)
    assert np.allclose(done["e2e_s"], done["ttft_s"])


def test_who_comes_at_times_of_its_own_pays_nothing_for_streams_in_flight():
    bare, behind = (
        requests_of(scenario(frontend_load=load), request_rate=6.0) for load in ("none", "0+3000")
    )
    assert np.array_equal(bare["ttft_s"], behind["ttft_s"])


waits = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=30)


@given(waits, st.integers(1, 4))
def test_a_prompt_waits_for_the_first_process_that_is_free(gaps_and_services, processes):
    arrivals = np.cumsum([gap for gap, _ in gaps_and_services])
    services = np.array([service for _, service in gaps_and_services])
    free, expected = [0] * processes, []
    for now, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        free.sort()
        expected.append(max(free[0] - now, 0))
        free[0] = now + expected[-1] + service
    found = waiting_ps(arrivals, services, processes)
    assert found.tolist() == expected
    assert (np.diff(arrivals + found) >= 0).all()


@pytest.mark.parametrize("rate", [5.0, 60.0])
@pytest.mark.parametrize("step_mode", [False, True])
def test_the_engine_hears_of_a_request_when_its_turn_has_come(rate, step_mode):
    work = workloads.build("sharegpt", num_prompts=60, seed=1, request_rate=rate, burstiness=None)
    where = scenario(frontend_load="100")
    done = prepare(where, work, {}, step_mode=step_mode).outcome().requests
    service = np.round(1e-4 * PS_PER_S * work.prompt_tokens).astype(np.int64)
    heard_s = (work.arrival_ps + waiting_ps(work.arrival_ps, service)) / PS_PER_S
    assert (done["first_scheduled_s"] >= heard_s - 1e-9).all()
    held = Workload(
        "held", np.round(heard_s * PS_PER_S).astype(np.int64), work.prompt_tokens, work.output_tokens
    )
    assert np.allclose(done["finish_s"], prepare(scenario(), held, {}).outcome().requests["finish_s"])


def test_a_client_that_waits_for_its_answer_waits_for_the_front_end_too():
    bare, behind = (requests_of(scenario(frontend_latency=s), clients=1) for s in (0, 0.25))
    assert np.allclose(np.diff(behind["arrival_s"]) - np.diff(bare["arrival_s"]), 0.25)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_client_has_all_other_clients_of_its_server_beside_it(replicas):
    bare = requests_of(scenario(), replicas, clients=4)
    behind = requests_of(scenario(frontend_load="0+1000"), replicas, clients=4)
    beside = behind["ttft_s"] - (behind["first_token_s"] - behind["arrival_s"])
    assert np.allclose(beside, 4e-3 / replicas)
    assert behind["arrival_s"][-1] > bare["arrival_s"][-1]


def test_the_next_turn_waits_for_the_prompt_of_the_turn_before():
    lengths, none = np.array([1000, 10]), np.zeros(2, dtype=np.int64)
    work = Workload("chat", none, lengths, np.array([5, 5]), waits=Chain(np.array([-1, 0]), none))
    found = [
        prepare(scenario(frontend_load=load), work, {}).outcome().requests for load in ("none", "100+700")
    ]
    later = found[1]["arrival_s"][1] - found[0]["arrival_s"][1]
    assert later == pytest.approx(1000 * 100e-6, abs=1 / PS_PER_S)


@pytest.mark.parametrize("text", ["", "some", "1+x", "-1", "nan", "1+2+3"])
def test_a_load_that_is_none_is_refused(text):
    with pytest.raises(KvsimError, match=r"frontend_load must be auto, none, or us per prompt token"):
        frontend_of(scenario(frontend_load=text))


def test_a_front_end_is_at_least_0():
    with pytest.raises(KvsimError, match="frontend_latency must be a finite number above 0"):
        scenario(frontend_latency=-1)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "prompt"), [(20.0, 1000), (50.0, 1500), (20.0, 3500)])
def test_paced_arrivals_wait_as_m_d_1_says(rate, prompt):
    """Poisson arrivals at one process that takes s per prompt: s + rho s / (2 (1 - rho))."""
    service_s, n = USUAL.per_token_s * prompt, 4000
    rho, found = rate * service_s, []
    load = f"{1e6 * USUAL.per_token_s:g}+{1e6 * USUAL.per_client_s:g}"
    usual = {"frontend_latency": USUAL.latency_s, "frontend_load": load}
    where = replace(scenario("constant:1e-9"), **usual, kv_tokens=1 << 26)
    for seed in range(10):
        gaps = np.random.default_rng(seed).exponential(1 / rate, n)
        arrival_ps = (np.cumsum(gaps) * PS_PER_S).astype(np.int64)
        work = Workload("paced", arrival_ps, np.full(n, prompt), np.full(n, 1))
        found.append(float(prepare(where, work, {}).outcome().requests["ttft_s"].mean()))
    expected = USUAL.latency_s + service_s + rho * service_s / (2 * (1 - rho))
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert error < 0.03 * expected
    assert np.mean(found) == pytest.approx(expected, abs=3.5 * error + 1e-6)
