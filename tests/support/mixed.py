"""Random servers with tiers, drafts, policies, pools, deaths and scaling, mixed freely.

Most of their tests compare one of them with step mode. Here any may be combined with any other that the
product allows: invalid combinations are refused in one line, whatever the mode.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from kvsim.allocators.eviction import EVICTION
from kvsim.allocators.sglang.host_tree import HITS
from kvsim.allocators.tiers.lmcache import ORDERS
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.speculation import METHODS, SHORT
from kvsim.sim.errors import KvsimError, NoProgress
from kvsim.sim.link_summary import link_shares
from kvsim.sim.parts import declared_everywhere
from kvsim.sim.policies import POLICIES
from kvsim.sim.routers import ROUTERS
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import Workload
from support.attack import Told
from support.cases import HAPPENS, Case, draw_case, draw_keyed, told
from support.drawn import option_value
from support.event_rows import rows
from support.settings import with_settings

TOKEN_BYTES = 819_200
"""Bytes per token of the keys and values of the random cases' model."""
STEP_S = 0.02
OWN = [f"support.own_policies:{name}" for name in ("Mine", "Displacing", "Turning", "Restless")]
BELOW = ["nothing", "nothing", "tier", "stack", "second pool", "lmcache", "drafts", "hicache"]
AROUND = ["alone", "alone", "fleet", "deaths", "scaling", "pools"]
LINKS = ["0.02", "0.3:0.1", "2", "pcie"]


@dataclass
class Mixture:
    """A deployment with its workload, and the names of what was mixed."""

    deployment: Deployment
    work: Workload
    words: tuple[str, ...]


def draw_mixture(rng: Random) -> Mixture:
    """A random engine, often with something below it, often one of several."""
    below, around = rng.choice(BELOW), rng.choice(AROUND)
    if below == "nothing" or rng.random() < 0.05:
        around = rng.choice([around, around, "apart"])
    if around == "fleet" and rng.random() < 0.3:
        below, around = "nothing", "migrating"
    alike = around in ("apart", "migrating")
    plain = (below == "nothing" and not alike) or rng.random() < 0.05
    base = rng.choice(sorted([*POLICIES, *HAPPENS, *OWN])) if plain else "vllm-v1@0.33.0"
    base = "sglang" if below == "hicache" and not plain else base
    case = draw_keyed(rng, base) if base in (*POLICIES, *OWN) else draw_case(rng, base)
    if below != "nothing" or alike:
        case = replace(case, engine=put_below(rng, case.engine, below), samples=False)
        case.rows = [replace(row, answers=row.answers[:1]) for row in case.rows]
    case.labels["session"] = np.array([rng.randrange(4) for _ in case.rows])
    router = None if around == "alone" else rng.choice(sorted(ROUTERS))
    case.engine = with_settings(case.engine, **draw_options(rng, case.engine, router))
    return Mixture(draw_around(rng, case, around, router), case.work, (base, below, around))


def put_below(rng: Random, engine: EngineConfig, kind: str) -> EngineConfig:
    """The same engine with this below its memory, sometimes with two of them."""
    if kind == "hicache":
        return with_settings(engine, **draw_hicache(rng))
    settings = {"allocator": "paged", "reserve": None, **draw_below(rng, engine, kind)}
    if rng.random() < 0.03:
        settings |= draw_below(rng, engine, rng.choice(BELOW))
    if rng.random() < 0.95:
        settings |= {"long_prefill_token_threshold": 0}
        settings |= {"policy": "fcfs"} if kind != "drafts" else {}
    return with_settings(engine, **settings)


def draw_below(rng: Random, engine: EngineConfig, kind: str) -> dict[str, object]:
    """Settings for the memory below an engine's own, or for drafts."""
    if kind in ("tier", "stack"):
        return draw_tier(rng, engine.block_size, kind == "stack")
    if kind == "second pool":
        return {
            "enable_prefix_caching": True,
            "kv_offloading_link": rng.choice(LINKS),
            "kv_offloading_size": mib(1 + rng.choice([1, 4, 30, 200]), engine.block_size),
            "kv_offloading_backend": "simple",
            "lazy_offload": rng.random() < 0.5,
        }
    if kind == "lmcache":
        tokens = engine.block_size * rng.choice([1, 1, 2, 4])
        return {
            "kv_offloading_link": rng.choice(LINKS),
            "kv_offloading_size": mib(rng.choice([1, 3, 30, 200]), tokens),
            "kv_offloading_backend": "lmcache",
            "kv_offloading_policy": rng.choice(list(ORDERS)),
            "lmcache_chunk_size": tokens,
        }
    return draw_drafts(rng) if kind == "drafts" else {}


def mib(chunks: int, tokens: int) -> str:
    """Memory for `chunks` chunks of `tokens` tokens."""
    return f"{(chunks * tokens * TOKEN_BYTES + 1) / 2**20}MiB"


def draw_tier(rng: Random, block_size: int, stacked: bool) -> dict[str, object]:
    """A tier in the host's memory, small if there are others below it."""
    count = rng.choice([1, 1, 2, 3])
    tokens = count * block_size
    found: dict[str, object] = {
        "kv_offloading_link": rng.choice(LINKS),
        "kv_offloading_size": mib(rng.choice([3, 20, 40, 40, 60] if stacked else [1, 3, 8, 30, 200]), tokens),
        "kv_offloading_policy": rng.choice(["lru", "arc"]),
        "offload_prompt_only": rng.random() < 0.6,
        "blocks_per_chunk": count,
        "store_threshold": 0 if stacked else rng.choice([0, 0, 2]),
        "sync_load_budget_bytes": rng.choice([0, 0, 50_000_000]),
    }
    if stacked:
        evicts = [name for name in EVICTION if name != "belady"]
        found["secondary_tiers"] = "+".join(
            f"{name}:{mib(rng.choice([1, 4, 40, 400]), tokens)}"
            f":{rng.choice(['0.05', '1/0.2', '20', 'nvme'])}:{rng.choice(evicts)}"
            f"{rng.choice(['', '', ':shared', ':shared=2'])}"
            for name in ("ssd", "remote", "far")[: rng.randint(1, 3)]
        )
    return found


def draw_hicache(rng: Random) -> dict[str, object]:
    """A host's memory below SGLang's, sometimes smaller than the GPU's."""
    keeps = rng.random() < 0.95
    storage = {
        "hicache_storage_backend": f"file:{mib(rng.choice([20, 400, 4000]), 1)}"
        f":{rng.choice(['0.05', '1/0.2', '20', 'nvme'])}"
        f":{rng.choice([name for name in EVICTION if name != 'belady'])}",
        "hicache_storage_prefetch_policy": rng.choice(["best_effort", "wait_complete", "timeout"]),
        "hicache_prefetch_threshold": rng.choice([1, 8, 30]),
        "hicache_storage_prefetch_retry_poll_interval": rng.choice([0, 1, 8]),
        "hicache_storage_prefetch_retry_max_attempts": rng.choice([0, 1, 8]),
    }
    return (storage if rng.random() < 0.5 else {}) | {
        "allocator": "sglang" if keeps else "paged",
        "enable_prefix_caching": keeps or rng.random() < 0.5,
        "enable_hierarchical_cache": True,
        "hicache_ratio": rng.choice([0.1, 0.5, 1.0, 2.0, 5.0]),
        "hicache_size": rng.choice([0, 0, 0, 1]),
        "hicache_write_policy": rng.choice(sorted(HITS)),
        "hicache_link": rng.choice(LINKS),
    }


def draw_drafts(rng: Random) -> dict[str, object]:
    """Speculative decoding, configured in JSON or in short form."""
    most, method = rng.randint(1, 4), rng.choice(METHODS)
    found: dict[str, object] = {"async_scheduling": method != "ngram" and rng.random() < 0.5}
    length = round(1 + rng.random() * most, 2)
    if method != "draft_model" and rng.random() < 0.2:
        short = {"speculative_method": method, "num_speculative_tokens": most, "acceptance_length": length}
        return found | short
    said: dict[str, object] = {"method": method, "num_speculative_tokens": most}
    if rng.random() < 0.7:
        said["synthetic_acceptance_length"] = length
    else:
        said["synthetic_acceptance_rates"] = [rng.choice([0, 0.3, 0.9, 1]) for _ in range(most)]
    if method in ("mtp", "deepseek_mtp"):
        said["num_nextn_predict_layers"] = rng.randint(1, 2)
    if method == "draft_model":
        said["model"] = "opt-13b"
    if rng.random() < 0.3:
        first = rng.randint(1, 3)
        ranges = [[1, first, rng.randint(0, most)], [first + 1, 8, rng.randint(0, most)]]
        said["num_speculative_tokens_per_batch_size"] = ranges
    if rng.random() < 0.2:
        said[rng.choice(["disable_lookahead_block_hashes", "disable_eagle_block_drop"])] = True
    return found | {"speculative_config": json.dumps(said)}


def draw_options(rng: Random, engine: EngineConfig, router: str | None) -> dict[str, object]:
    """Sometimes an option that the scheduler, the policy, the allocator or the router declares."""
    if rng.random() < 0.7:
        return {}
    chosen = {engine.scheduler.partition("@")[0], engine.policy, engine.allocator, router}
    known = [each.named for each in declared_everywhere().values() if chosen.intersection(each.parts)]
    few = [named for named in known if named.name not in SAID and rng.random() < 0.15]
    return {named.name: option_value(rng, named) for named in few}


SAID = {
    *("speculative_config", *SHORT, "kv_offloading_size", "kv_offloading_backend", "kv_offloading_link"),
    *("kv_offloading_policy", "secondary_tiers", "kv_transfer_link", "blocks_per_chunk"),
    "lmcache_chunk_size",
    *("enable_hierarchical_cache", "hicache_ratio", "hicache_size", "hicache_write_policy", "hicache_link"),
    *("hicache_storage_backend", "hicache_storage_prefetch_policy", "hicache_prefetch_threshold"),
}
"""Options that `put_below` and `_of_pool` set, together with their requirements."""


def draw_around(rng: Random, case: Case, kind: str, router: str | None) -> Deployment:
    """One server, several of which some may die or rest, or pools."""
    alone = replace(case.scenario, cost=rng.choice([f"constant:{STEP_S}", "roofline"]))
    if rng.random() < 0.1:
        ways = [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"time_scale": 2.7}]
        alone = replace(alone, **rng.choice(ways))
    if router is None:
        return alone
    count = rng.randint(2, 3)
    fleet = FleetConfig(replicas=count, router=router, seed=rng.randrange(9), sticky=rng.random() < 0.2)
    if kind == "deaths" or (kind in ("pools", "apart") and rng.random() < 0.2):
        fleet = replace(fleet, fail=_deaths(rng, count))
    if kind == "scaling" or (kind == "apart" and rng.random() < 0.4):
        of = rng.choice(["", "decode=", "prefill="]) if kind == "apart" else ""
        most = count if kind == "scaling" else count - 1 if of == "decode=" else 1
        scale = rng.choice([
            f"{of}schedule:0={rng.randint(1, most)},{0.001 + rng.random():.3f}=1,2={most}",
            f"{of}threshold:queue={rng.randint(1, 3)},kv=0.5,every={rng.choice([0.05, 0.4])},cool=0",
            f"{of}slo:{_goals(rng, of)}look=0.05,every=0.2",
        ])  # fmt: skip
        fleet = replace(fleet, scale=scale, startup_time=rng.choice([0.01, 0.5]), load_bandwidth=1e9)
        if kind == "scaling" and rng.random() < 0.3:
            fleet = replace(fleet, fail=_deaths(rng, count))
    if kind == "migrating":
        source, last, link = rng.choice([-48, 16, 200]), rng.choice([1, 4, 16]), rng.choice(["0.01", "400gb"])
        words = f"every={rng.choice([0.01, 0.05])},source={source},target={source},last={last},link={link}"
        fleet = replace(fleet, migrate=f"llumnix:{words}")
        if rng.random() < 0.3:
            fleet = replace(fleet, fail=_deaths(rng, count))
        if rng.random() < 0.4:
            steps = f"{rng.random() + 0.001:.3f}=1,{rng.random() + 1.1:.3f}={count}"
            fleet = replace(fleet, scale=f"schedule:0={count},{steps}", startup_time=0.1, load_bandwidth=1e9)
    if kind == "apart":
        fleet = replace(fleet, direct_decode=rng.choice([0, 0, 20]), mixed_pool=rng.choice([0, 0, 8]))
    if kind not in ("pools", "apart"):
        return replace(alone, fleet=fleet)
    roles = ("both", "both") if kind == "pools" else ("prefill", "decode")
    pools = tuple(
        Pool(
            name,
            role,
            replicas,
            replace(
                alone,
                engine=_of_pool(rng, alone.engine, role),
                kv_tokens=rng.choice([alone.kv_tokens, 128, 400]),
                fleet=FleetConfig(replicas=replicas, router=router),
            ),
        )
        for name, role, replicas in (("one", roles[0], 1), ("other", roles[1], count - 1))
    )
    return replace(pools[0].server, fleet=fleet, pools=pools)


def _goals(rng: Random, of: str) -> str:
    """Goals of a planner, without those of the other side."""
    goals = {"prefill=": f"ttft={rng.choice([0.01, 0.2])},", "decode=": f"tpot={rng.choice([0.001, 0.05])},"}
    return goals[of] if of else "".join(goals.values())


def _of_pool(rng: Random, engine: EngineConfig, role: str) -> EngineConfig:
    """The engine of a pool: the same, or with its own settings, or with something else below it."""
    if rng.random() < 0.3:
        engine = with_settings(engine, max_num_seqs=rng.choice([2, 5, 9]))
    if role != "both":
        return with_settings(engine, kv_transfer_link=rng.choice(LINKS)) if role == "decode" else engine
    if rng.random() < 0.3 and engine.scheduler == "vllm-v1@0.33.0":
        return put_below(rng, engine, rng.choice(BELOW))
    return engine


def _deaths(rng: Random, replicas: int) -> str:
    """Deaths of all replicas but the last, which may come back or not; always at least one."""
    found, longest_s = [], 60 * STEP_S
    for place in range(replicas - 1):
        at_s = 1e-6
        for _ in range(rng.randint(not found, 2)):
            at_s += rng.random() * longest_s
            for_s = rng.random() * longest_s + 1e-6
            found.append(f"replica={place}:at={at_s:.9f}:for={for_s:.9f}")
            at_s += for_s + 1e-6
    return " ".join(found)


def run(mixture: Mixture, max_span: int) -> dict[str, object] | str:
    """All results of a run, or the error that refused it."""
    try:
        engine = build_engine(
            mixture.deployment,
            mixture.work,
            max_span=max_span,
            check=True,
            events=True,
        )
        result = engine.run()
    except NoProgress as error:
        return str(error)
    except KvsimError as error:
        assert re.fullmatch(r".{9,600}", str(error)), "an error of one line"
        return str(error)
    replicas = getattr(engine, "replicas", None) or [engine.replica]
    for server in (replica.server for replica in replicas):
        assert not (server.waiting or server.running or server.swapped)
        assert not (server.batch.parked() or server.wakes.loaded)
        assert (server.allocator.used_slots, server.prefill_held, server.memory.internal) == (0, 0, 0)
    found = told(result)
    assert len(mixture.work) <= answered(result) <= len(mixture.work) * (1 + (result.samples is not None))
    lives = engine.lives
    events = [rows(life.server.events) for life in lives.every]
    return found | {"events": events, "links": link_shares(lives.lives, engine.absences(), result.end_ps)}


def agree(mixture: Mixture) -> Told:
    """Raise AssertionError unless both modes agree; a refusal is returned."""
    slow, fast = run(mixture, 1), run(mixture, 1 << 20)
    if isinstance(slow, str):
        assert slow == fast, mixture.words
        return Told(2, "", slow)
    assert not isinstance(fast, str), f"{mixture.words}: {fast}"
    assert [name for name in slow if slow[name] != fast[name]] == [], mixture.words
    return Told(0, "", "")


def answered(result: object) -> int:
    """How many requests were answered or rejected."""
    return int(np.count_nonzero(result.finished)) + sum(result.rejected.values())


def digests(first: int, end: int) -> None:
    """For each of these cases print a short hash of its results, and whether both modes agree."""
    for number in range(first, end):
        slow, fast = (run(draw_mixture(Random(f"mixed work {number}")), most) for most in (1, 1 << 20))
        said = fast if isinstance(fast, str) else repr(sorted(fast.items()))
        agreed = "agree" if slow == fast else "differ"
        print(number, hashlib.sha256(said.encode()).hexdigest()[:16], isinstance(fast, dict), agreed)
