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
    """SGLang's priorities are a switch of its policies fcfs and lof; kvsim's are separate policies."""
    by_priority = {"fcfs": "priority", "lof": "priority-lof"} if config["enable_priority_scheduling"] else {}
    return by_priority.get(config["policy"], config["policy"])


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


def test_priorities_come_before_the_longest_answer():
    """SGLang sorts by (priority, -max_new_tokens), and keeps the order of equal ones."""
    answers = [5, 9, 9, 7, 30]
    requests = [Request(row, 10, output) for row, output in enumerate(answers)]
    for request, number in zip(requests, [0, 1, 1, 0, 2], strict=True):
        request.priority = number
    cached = memory_of({"page_size": 1, "tree_disabled": True})
    waiting = Entered({request: request.index for request in requests})
    Orders("priority-lof", lambda request: answers[request.index]).sort(waiting, SglangMemory(cached))
    assert [request.index for request in waiting] == [3, 0, 1, 2, 4]


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
