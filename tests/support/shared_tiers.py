"""Fleets that share a tier: drawn cases, both modes, and what they find."""

from dataclasses import replace

from kvsim.allocators.eviction import EVICTION
from kvsim.sim.build import build_engine
from kvsim.sim.serving.fleet import FleetConfig
from support.cases import COSTS, told
from support.settings import with_settings
from support.tiered import hits, mib

EVICTS = [name for name in EVICTION if name != "belady"]
ROUTERS = ("round-robin", "random", "least-requests", "least-kv", "prefix", "llm-d")


def above_shared(rng, case, shared=":shared"):
    """The same case with a tier, often too small for a text, and one or two below it, one of them shared."""
    count = rng.choice([1, 1, 2, 3])
    chunk = count * case.engine.block_size
    remote = f"remote:{mib(rng.choice([4, 40, 400, 400]), chunk)}:{rng.choice(['0.05', '1/0.2', '20'])}"
    tiers = [f"{remote}:{rng.choice(EVICTS)}{shared}"]
    if rng.random() < 0.4:
        tiers.insert(rng.randint(0, 1), f"ssd:{mib(rng.choice([4, 40]), chunk)}:{rng.choice(['0.3', '5'])}")
    settings = {
        "allocator": "paged",
        "policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "reserve": None,
        "kv_offloading_size": mib(rng.choice([2, 4, 8, 8]), chunk),
        "kv_offloading_link": rng.choice(["0.02", "0.3:0.1", "2", "pcie"]),
        "kv_offloading_policy": rng.choice(["lru", "arc"]),
        "offload_prompt_only": rng.random() < 0.6,
        "blocks_per_chunk": count,
        "sync_load_budget_bytes": rng.choice([0, 0, 50_000_000]),
        "secondary_tiers": "+".join(tiers),
        "enable_prefix_caching": rng.random() < 0.3,
    }
    case = replace(case, engine=with_settings(case.engine, **settings), samples=False)
    rows = [
        replace(row, answers=row.answers[:1], kind=rng.choice(["same", "same", row.kind]))
        for row in case.rows * 2
    ]
    return replace(case, rows=rows)


def run(case, max_span, fleet=None, late=False):
    where = replace(case.scenario, fleet=fleet or FleetConfig())
    engine = build_engine(where, case.work, max_span=max_span, check=True)
    for replica in engine.replicas:
        replica.input_queue.late = late and replica.scheduler.asynchronous
        replica.pricing.cost = COSTS[case.cost]()
        replica.recorder.timeline.most_rows = case.timeline_rows
    result = engine.run()
    for replica in engine.replicas:
        assert not (replica.server.waiting or replica.server.running or replica.server.batch.loading)
    return result


def of_one(told_of):
    """The same, with the columns of shared tiers named as those of a server's own."""
    timeline = {name.replace("_of_all", ""): column for name, column in told_of["timeline"].items()}
    return told_of | {"timeline": timeline}


def differences(one, other):
    told_one, told_other = of_one(told(one)), of_one(told(other))
    return {name for name in told_one if told_one[name] != told_other[name]}


def found(work, replicas, below):
    """Prompt tokens found below servers that keep next to nothing themselves."""
    settings = {"kv_offloading_size": mib(14), "kv_offloading_link": "1000000", "secondary_tiers": below}
    return hits(work, 32, FleetConfig(replicas=replicas), enable_prefix_caching=False, **settings)
