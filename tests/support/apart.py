"""A random case whose prompts are computed on separate servers."""

from dataclasses import replace

from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Pool
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S
from support.cases import COSTS
from support.settings import with_settings


def apart(rng, case, prefill, decode):
    """The same case with separate prefill and decode servers, each side with its own memory."""
    settings = {
        "allocator": "paged",
        "policy": "fcfs",
        "reserve": None,
        "kv_transfer_link": rng.choice(["0.02", "0.3", "2", "400gb"]),
    }
    return in_pools(rng, case, settings, {"prefill": prefill, "decode": decode}, (128, 400))


def in_pools(rng, case, settings, replicas, kv_tokens):
    """The same case with these settings, in a pool per role, of memories of these sizes or its own."""
    case = replace(case, engine=with_settings(case.engine, **settings), samples=False)
    case = replace(case, rows=[replace(row, answers=row.answers[:1]) for row in case.rows])
    router = rng.choice(["round-robin", "least-requests", "least-kv", "prefix"])
    fleet = FleetConfig(replicas=sum(replicas.values()), router=router)
    pools = tuple(
        Pool(
            role,
            role,
            n,
            replace(
                case.scenario,
                fleet=FleetConfig(replicas=n, router=router),
                kv_tokens=rng.choice([case.kv_tokens, *kv_tokens]),
            ),
        )
        for role, n in replicas.items()
    )
    return replace(pools[0].server, fleet=fleet, pools=pools), case


def run(deployment, case, max_span, watch=None, events=False):
    """The engine after its run; every step was recounted."""
    engine = build_engine(deployment, case.work, max_span=max_span, check=True, events=events)
    make = engine.lives._make

    def same_cost(place):
        replica = make(place)
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
        return replica

    engine.lives._make = same_cost
    for replica in engine.replicas:
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
    if watch is not None:
        watch(engine)
    return engine, engine.run()


def deaths(rng, replicas, end_ps):
    """Deaths during the run; some replicas never come back."""
    found = []
    for place in range(replicas):
        at_s = 0.0
        for _ in range(rng.randrange(3)):
            at_s += rng.random() * end_ps / PS_PER_S / 2 + 1e-6
            for_s = rng.random() * end_ps / PS_PER_S / 3 + 1e-6
            if rng.random() < 0.15:
                found.append(f"replica={place}:at={at_s:.12f}")
                break
            found.append(f"replica={place}:at={at_s:.12f}:for={for_s:.12f}")
            at_s += for_s
    return " ".join(found)


def all_free(engine):
    """No request is left anywhere, and no block is held."""
    for replica in engine.replicas:
        server = replica.server
        assert not (server.waiting or server.running or server.batch.loading)
        assert (server.allocator.used_slots, server.prefill_held, server.memory.internal) == (0, 0, 0)
    assert not engine.hand_over.whole
