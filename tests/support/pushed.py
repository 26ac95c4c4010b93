"""A random case whose prompts are pushed from SGLang's prefill servers to its decode servers."""

from support.apart import in_pools


def pushed(rng, case, prefill, decode):
    """The same case with separate servers, each side with its own memory."""
    size = case.engine.block_size
    budget = -(-case.engine.max_num_batched_tokens // size) * size
    settings = {
        "allocator": "sglang",
        "policy": "fcfs",
        "reserve": None,
        "max_num_batched_tokens": budget,
        "enable_prefix_caching": rng.random() < 0.7,
        "enable_chunked_prefill": rng.random() < 0.8,
        "preemption_threshold": None,
        "kv_transfer_link": rng.choice(["0.02", "0.3", "2", "400gb"]),
        "num_reserved_decode_tokens": rng.choice([0, 2, 8, 40]),
        "disaggregation_decode_enable_radix_cache": rng.random() < 0.4,
    }
    return in_pools(rng, case, settings, {"prefill": prefill, "decode": decode}, (80, 128, 400))
