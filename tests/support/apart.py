"""A random case whose prompts are computed on separate servers."""

from dataclasses import replace

from kvsim.sim.deployment.deployment import Pool
from kvsim.sim.serving.fleet import FleetConfig
from support.settings import with_settings


def apart(rng, case, prefill, decode):
    """The same case with separate prefill and decode servers, each side with its own memory."""
    settings = {
        "allocator": "paged",
        "policy": "fcfs",
        "reserve": None,
        "kv_transfer_link": rng.choice(["0.02", "0.3", "2", "400gb"]),
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
                kv_tokens=rng.choice([case.kv_tokens, 128, 400]),
            ),
        )
        for role, n in (("prefill", prefill), ("decode", decode))
    )
    return replace(pools[0].server, fleet=fleet, pools=pools), case
