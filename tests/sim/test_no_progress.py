"""What cannot be served is refused with its reason, also when that shows only after it was evicted."""

import pytest

import kvsim

MADE_ANEW = {
    **{"allocator": "dynamic-cache", "scheduler": "vllm-v1@0.11.0", "model": "qwen2.5-7b", "gpu": "b200"},
    **{"kv_tokens": 2000, "max_num_batched_tokens": 256, "max_model_len": 2048, "request_rate": float("inf")},
    **{"num_prompts": 20, "seed": 190, "cost": "constant:0.03"},
}
"""A copy needs room beside what it copies: a request that fits may not grow, with all memory to itself."""

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
