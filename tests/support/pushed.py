"""A random case whose prompts are pushed from SGLang's prefill servers to its decode servers."""

from dataclasses import replace

from kvsim.sim.deployment.deployment import Pool
from kvsim.sim.serving.fleet import FleetConfig
from support.settings import with_settings


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
    case = replace(case, engine=with_settings(case.engine, **settings), samples=False)
    case = replace(case, rows=[replace(row, answers=row.answers[:1]) for row in case.rows])
    router = rng.choice(["round-robin", "least-requests", "least-kv", "prefix"])
    fleet = FleetConfig(replicas=prefill + decode, router=router)
    pools = tuple(
        Pool(
            role,
            role,
            n,
            replace(
                case.scenario,
                fleet=FleetConfig(replicas=n, router=router),
                kv_tokens=rng.choice([case.kv_tokens, 80, 128, 400]),
            ),
        )
        for role, n in (("prefill", prefill), ("decode", decode))
    )
    return replace(pools[0].server, fleet=fleet, pools=pools), case
