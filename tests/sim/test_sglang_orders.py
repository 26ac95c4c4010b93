"""kvsim's orders of the waiting queue are those of the genuine SGLang 0.5.23, round by round."""

import pytest
from support.scheduled import names_in, recording
from support.sglang_rounds import Entered, insert, memory_of, request_of

import kvsim
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.sglang_order import Orders
from kvsim.sim.serving.facts import Facts
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.sglang_parts import SglangMemory

FOLDER = "policies/sglang"


def policy_of(config):
    """SGLang's priorities are a switch of its policies fcfs and lof; kvsim's are a separate policy."""
    if config["enable_priority_scheduling"] and config["policy"] == "fcfs":
        return "priority"
    return config["policy"]


def running(told):
    """Running requests by routing key."""
    request = Request(0, 1, 1)
    request.facts = Facts(client=told["rk"] or "")
    return request


@pytest.mark.golden
@pytest.mark.parametrize("name", names_in(FOLDER))
def test_who_waits_is_sorted_as_in_sglang(name):
    case = recording(FOLDER, name)
    config = case["config"]
    if config["enable_priority_scheduling"] and config["policy"] == "lof":
        pytest.skip("kvsim has no priorities among the longest answers")
    sign = 1 if config["schedule_low_priority_values_first"] else -1
    told = {each["id"]: each for each in case["requests"]}
    requests = {number: request_of(each, sign) for number, each in told.items()}
    cached = memory_of(config)
    memory, orders = SglangMemory(cached), None
    for round_ in case["rounds"]:
        insert(cached, round_["insert"])
        if orders is None or config["policy"] == "random":
            orders = Orders(
                policy_of(config), lambda request: told[request.index]["max_new"], round_["random_seed"]
            )
        waiting = Entered({requests[number]: told[number]["entry"] for number in round_["before"]})
        orders.processed = round_["processed_tokens"]
        orders.sort(waiting, memory, map(running, round_["running"]))
        assert [request.index for request in waiting] == round_["order"]


def test_the_fewest_tokens_to_compute_need_a_prefix_cache():
    with pytest.raises(KvsimError, match="shortest-prefill-first needs enable_prefix_caching"):
        kvsim.simulate(
            scheduler="sglang",
            policy="shortest-prefill-first",
            enable_prefix_caching=False,
            num_prompts=5,
        )


def test_a_shuffled_queue_is_another_one_with_another_seed():
    def waits(**options):
        run = kvsim.simulate(
            scheduler="sglang",
            policy="random",
            num_prompts=60,
            request_rate=float("inf"),
            kv_tokens=4000,
            max_model_len=2048,
            **options,
        )
        return run.requests["ttft_s"].tolist()

    assert waits() == waits(random_seed=0) != waits(random_seed=1)
