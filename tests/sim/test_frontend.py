"""The front end of a request: what it adds to TTFT and E2E, by prompt and by requests in flight."""

import numpy as np
import pytest

from kvsim import workloads
from kvsim.sim.cost.frontend import FRONTENDS, NOTHING, Frontend, frontend_of, frontend_words
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.run import prepare
from kvsim.sim.scenario.deployment import Deployment
from kvsim.sim.scenario.engine import EngineConfig
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S, Chain, Workload

USUAL = FRONTENDS["vllm-v1"]


def scenario(cost="roofline", model="llama-3.1-8b", **facts):
    gpu, cost, profile = gpu_and_cost("h100", cost)
    return Deployment(
        model=model_named(model), gpu=gpu, engine=EngineConfig(), cost=cost, profile=profile, **facts
    )


def requests_of(where, replicas=1, **how):
    usual = {"num_prompts": 50, "seed": 1, "request_rate": None, "burstiness": None}
    work = workloads.build("sharegpt", **usual | how)
    return prepare(where, work, {}, fleet=FleetConfig(replicas=replicas)).outcome().requests


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
    words = "front end 1 ms + 3 us a prompt token + 0.5 ms a request in flight"
    assert frontend_words(scenario(frontend_latency=0.001, frontend_load="3+500")) == words


def test_ranks_of_a_server_have_a_process_each():
    spread = scenario("measured-elsewhere", model="gpt-oss-120b", data_parallel_size=2)
    assert frontend_of(spread).per_stream_s == USUAL.per_stream_s / 2
    assert frontend_of(spread).per_token_s == USUAL.per_token_s


def test_it_is_in_ttft_and_e2e_but_not_in_tpot():
    bare, behind = (requests_of(scenario(frontend_latency=s), request_rate=3.0) for s in (None, 0.25))
    for name in ("ttft_s", "e2e_s"):
        assert np.allclose(behind[name] - bare[name], 0.25)
    assert np.allclose(behind["tpot_s"], bare["tpot_s"])
    assert np.array_equal(behind["finish_s"], bare["finish_s"])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_request_pays_for_its_prompt_and_for_those_in_flight(replicas):
    bare = requests_of(scenario(), replicas, request_rate=6.0)
    behind = requests_of(scenario(frontend_load="40+3000"), replicas, request_rate=6.0)
    came, left, where = bare["arrival_s"], bare["finish_s"], bare.get("replica", np.zeros(50))
    beside = [
        sum((came <= now) & (left > now) & (where == place)) for now, place in zip(came, where, strict=True)
    ]
    assert max(beside) > 3
    added = 40e-6 * bare["prompt_tokens"] + 3e-3 * np.array(beside)
    assert np.allclose(behind["ttft_s"] - bare["ttft_s"], added)
    assert np.allclose(behind["e2e_s"] - bare["e2e_s"], added)


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
    with pytest.raises(KvsimError, match=r"frontend_load must be auto, none, or us a prompt token"):
        frontend_of(scenario(frontend_load=text))


def test_a_front_end_is_at_least_0():
    with pytest.raises(KvsimError, match="frontend_latency must be a finite number above 0"):
        scenario(frontend_latency=-1)
