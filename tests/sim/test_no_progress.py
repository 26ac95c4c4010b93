"""Requests that cannot be served are refused with a reason, even if that shows only after an eviction."""

import pytest

import kvsim

MADE_ANEW = {
    **{"allocator": "dynamic-cache", "scheduler": "vllm-v1@0.11.0", "model": "qwen2.5-7b", "gpu": "b200"},
    **{"kv_tokens": 2000, "max_num_batched_tokens": 256, "max_model_len": 2048, "request_rate": float("inf")},
    **{"num_prompts": 20, "seed": 190, "cost": "constant:0.03"},
}
"""A copy needs room beside its source: a request that fits may be unable to grow, even with all memory."""

GROWN = {
    **{
        "scheduler": "nano-vllm",
        "model": "gemma-3-12b",
        "gpu": "b200",
        "kv_tokens": 1000,
        "cost": "constant:0.03",
    },
    **{"max_model_len": 300, "clients": 3, "num_prompts": 60},
}
"""Answers that end beyond `max_model_len`: evicted, they come back longer than they came."""


def served(**options):
    fast, slow = (kvsim.simulate(**options, step_mode=step_mode) for step_mode in (False, True))
    assert fast.requests.equals(slow.requests)
    assert fast.summary["requests"] == slow.summary["requests"]
    return fast.summary["requests"]


def test_a_request_that_evicts_itself_alone_is_refused_and_the_others_are_served():
    found = served(**MADE_ANEW)
    assert found["rejected_reasons"] == {
        "finds no room to grow in an empty arena of 112,000 slots": found["rejected"]
    }
    assert found["finished"] + found["rejected"] == 20 and found["rejected"] and found["finished"]


@pytest.mark.parametrize("allocator", ["hybrid", "split", "jenga"])
def test_a_request_that_came_back_too_long_is_refused_and_the_others_are_served(allocator):
    found = served(**GROWN, allocator=allocator)
    assert any(reason.startswith("finds no room in an empty arena") for reason in found["rejected_reasons"])
    assert found["finished"] + found["rejected"] == 60 and found["finished"] > 30


@pytest.mark.parametrize("scheduler", ["lightllm", "past-future"])
@pytest.mark.parametrize("kv_tokens", [4096, 4097, 4100, 4200])
def test_a_memory_about_as_large_as_the_longest_request_serves_or_refuses_each(scheduler, kv_tokens):
    """LightLLM admits strictly below its memory: a head that may need all of it waited forever at step 0."""
    options = {"allocator": "lightllm", "scheduler": scheduler, "model": "llama-2-7b", "gpu": "h200"}
    found = served(**options, kv_tokens=kv_tokens, num_prompts=60)
    assert found["finished"] + found["rejected"] == 60
    assert bool(found["finished"]) == (kv_tokens > 4102)


def test_a_memory_about_as_large_as_the_longest_request_is_enough_in_the_middle_of_a_run():
    """Two waited forever from step 1,076 on."""
    options = {"allocator": "lightllm", "scheduler": "lightllm", "model": "llama-2-7b", "gpu": "h200"}
    lengths = {"input_len": "uniform:3900:4100", "output_len": "uniform:1:200", "reserve": "oracle"}
    found = served(**options, **lengths, kv_tokens=4100, num_prompts=200, seed=897017)
    assert found["finished"] == 84
    assert found["finished"] + found["rejected"] == 200


def test_a_replica_without_a_request_is_a_replica():
    found = served(replicas=2, n=2, num_prompts=1, allocator="paged")
    assert found["finished"] == 1
