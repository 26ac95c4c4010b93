"""kvsim's orders of who waits are those of the genuine SGLang 0.5.23, round by round."""

import pytest
from support.scheduled import names_in, recording

import kvsim
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.sglang_order import Orders
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.sglang_parts import SglangMemory, WaitingList

FOLDER = "policies/sglang"
SLOTS = 1 << 20


def runs(ids):
    """Token ids as text: consecutive ids are consecutive tokens of one stream."""
    found = []
    for token in ids:
        if found and found[-1][1] + found[-1][2] == token:
            found[-1] = (0, found[-1][1], found[-1][2] + 1)
        else:
            found.append((0, token, 1))
    return found


class Entered(WaitingList):
    """A waiting list that knows when each came."""

    def __init__(self, entries):
        super().__init__()
        self.entries = entries
        for request in entries:
            self.append(request)

    def came(self, request):
        return self.entries[request]


def policy_of(config):
    """SGLang's priorities are a switch of its policies fcfs and lof; kvsim's are a policy of their own."""
    if config["enable_priority_scheduling"] and config["policy"] == "fcfs":
        return "priority"
    return config["policy"]


def request_of(told, sign):
    answer = told.get("out", [])
    request = Request(told["id"], len(told["ids"]), len(answer) + 1)
    request.generated = len(answer)
    request.known_tokens += request.generated
    request.priority = told["priority"] * sign
    request.content = runs([*told["ids"], *answer])
    return request


def names():
    """All but routing keys, which no trace has."""
    return [name for name in names_in(FOLDER) if not name.startswith("routing-key")]


@pytest.mark.golden
@pytest.mark.parametrize("name", names())
def test_who_waits_is_sorted_as_in_sglang(name):
    case = recording(FOLDER, name)
    config = case["config"]
    if config["enable_priority_scheduling"] and config["policy"] == "lof":
        pytest.skip("kvsim has no priorities among the longest answers")
    sign = 1 if config["schedule_low_priority_values_first"] else -1
    told = {each["id"]: each for each in case["requests"]}
    requests = {number: request_of(each, sign) for number, each in told.items()}
    size = config["page_size"]
    cached = SglangCached(SLOTS, size, caches=not config["tree_disabled"])
    memory, orders = SglangMemory(cached), None
    for round_ in case["rounds"]:
        for ids in round_["insert"]:
            whole = len(ids) // size
            if cached.caches and whole:
                cached.tree.insert(runs(ids[: whole * size]), range(whole))
        if orders is None or config["policy"] == "random":
            orders = Orders(
                policy_of(config), lambda request: told[request.index]["max_new"], round_["random_seed"]
            )
        waiting = Entered({requests[number]: told[number]["entry"] for number in round_["before"]})
        orders.processed = round_["processed_tokens"]
        orders.sort(waiting, memory)
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
