"""Random servers with tiers, drafts, policies, pools, deaths and scaling, mixed freely.

Most tests of these hold one of them against step mode. Here any may meet any other that the product lets it
meet: what it refuses is refused in one line, whatever the mode.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.errors import KvsimError, NoProgress
from kvsim.sim.policies import POLICIES
from kvsim.sim.routers import ROUTERS
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import Workload
from support.attack import Told
from support.cases import HAPPENS, Case, draw_case, draw_keyed, events_of, told
from support.settings import with_settings

BLOCK_BYTES = 819_200
"""Of a token of the model that random cases have."""
STEP_S = 0.02


@dataclass
class Mixture:
    """A deployment with its work, and the words that say what was mixed."""

    deployment: Deployment
    work: Workload
    words: tuple[str, ...]


def draw_mixture(rng: Random) -> Mixture:
    """A random engine, often with something below it, often one of several."""
    below = rng.choice(["nothing", "tier", "second pool", "drafts"])
    around = rng.choice(["alone", "alone", "fleet", "deaths", "scaling", "pools"])
    if below == "nothing" or rng.random() < 0.05:
        around = rng.choice([around, "apart"])
    plain = (below == "nothing" and around != "apart") or rng.random() < 0.05
    base = rng.choice(sorted([*POLICIES, *HAPPENS]) if plain else ["vllm-v1@0.33.0"])
    case = draw_keyed(rng, base) if base in POLICIES else draw_case(rng, base)
    if below != "nothing" or around == "apart":
        settings = {"allocator": "paged", "reserve": None, **draw_below(rng, case, below)}
        if rng.random() < 0.9:
            settings |= {"policy": "fcfs", "long_prefill_token_threshold": 0}
        case = replace(case, engine=with_settings(case.engine, **settings), samples=False)
        case.rows = [replace(row, answers=row.answers[:1]) for row in case.rows]
    case.labels["session"] = np.array([rng.randrange(4) for _ in case.rows])
    return Mixture(draw_around(rng, case, around), case.work, (base, below, around))


def draw_below(rng: Random, case: Case, kind: str) -> dict[str, object]:
    """Settings of what lies below the engine's memory, or of drafts for it."""
    size = case.engine.block_size
    link = rng.choice(["0.02", "0.3:0.1", "2", "pcie"])
    if kind == "tier":
        count = rng.choice([1, 1, 2, 3])
        chunks = rng.choice([1, 3, 8, 30, 200])
        return {
            "kv_offloading_link": link,
            "kv_offloading_size": f"{(chunks * count * size * BLOCK_BYTES + 1) / 2**20}MiB",
            "kv_offloading_policy": rng.choice(["lru", "arc"]),
            "offload_prompt_only": rng.random() < 0.6,
            "blocks_per_chunk": count,
            "store_threshold": rng.choice([0, 0, 2]),
        }
    if kind == "second pool":
        blocks = 1 + rng.choice([1, 4, 30, 200])
        return {
            "enable_prefix_caching": True,
            "kv_offloading_link": link,
            "kv_offloading_size": f"{(blocks * size * BLOCK_BYTES + 1) / 2**20}MiB",
            "kv_offloading_backend": "simple",
            "lazy_offload": rng.random() < 0.5,
        }
    if kind == "drafts":
        most, method = rng.randint(1, 4), rng.choice(["ngram", "ngram_gpu", "eagle3", "mtp"])
        said = {"method": method, "num_speculative_tokens": most}
        said["synthetic_acceptance_length"] = round(1 + rng.random() * most, 2)
        said |= {"num_nextn_predict_layers": rng.randint(1, 2)} if method == "mtp" else {}
        return {
            "speculative_config": json.dumps(said),
            "async_scheduling": method != "ngram" and rng.random() < 0.5,
        }
    return {}


def draw_around(rng: Random, case: Case, kind: str) -> Deployment:
    """One server, several of them, of which some may die or rest, or pools."""
    alone = replace(case.scenario, cost=rng.choice([f"constant:{STEP_S}", "roofline"]))
    if kind == "alone":
        return alone
    router, count = rng.choice(sorted(ROUTERS)), rng.randint(2, 3)
    fleet = FleetConfig(replicas=count, router=router, seed=rng.randrange(9))
    if kind == "deaths":
        fleet = replace(fleet, fail=_deaths(rng, count))
    if kind == "scaling":
        scale = rng.choice([
            f"schedule:0={rng.randint(1, count)},{0.001 + rng.random():.3f}=1,2={count}",
            f"threshold:queue={rng.randint(1, 3)},kv=0.5,every={rng.choice([0.05, 0.4])},cool=0",
        ])  # fmt: skip
        fleet = replace(fleet, scale=scale, startup_time=rng.choice([0.01, 0.5]), load_bandwidth=1e9)
    if kind not in ("pools", "apart"):
        return replace(alone, fleet=fleet)
    roles = ("both", "both") if kind == "pools" else ("prefill", "decode")
    pools = tuple(
        Pool(name, role, replicas, replace(alone, kv_tokens=rng.choice([alone.kv_tokens, 128, 400]),
             fleet=replace(fleet, replicas=replicas)))
        for name, role, replicas in (("one", roles[0], 1), ("other", roles[1], count - 1))
    )  # fmt: skip
    return replace(pools[0].server, fleet=fleet, pools=pools)


def _deaths(rng: Random, replicas: int) -> str:
    """Deaths of each replica but the last, which come back or do not; always one."""
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
    """All that a run found out, or the error that refused it."""
    try:
        engine = build_engine(
            mixture.deployment,
            mixture.work,
            max_span=max_span,
            check=True,
            events=mixture.words[2] == "alone",
        )
        result = engine.run()
    except NoProgress as error:
        return str(error)
    except KvsimError as error:
        assert re.fullmatch(r".{9,600}", str(error)), "an error of one line"
        return str(error)
    replicas = getattr(engine, "replicas", None) or [engine.replica]
    for server in (replica.server for replica in replicas):
        assert not (server.waiting or server.running or server.swapped or server.batch.loading)
        assert (server.allocator.used_slots, server.prefill_held, server.memory.internal) == (0, 0, 0)
    found = told(result)
    assert len(mixture.work) <= answered(result) <= len(mixture.work) * (1 + (result.samples is not None))
    return found | (events_of(engine) if mixture.words[2] == "alone" else {})


def agree(mixture: Mixture) -> Told:
    """Raise AssertionError unless both modes find the same; what is refused is told."""
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
    """Print of each of these cases what its run found, as a short number: the same for every build."""
    for number in range(first, end):
        found = run(draw_mixture(Random(f"mixed work {number}")), 1 << 20)
        said = found if isinstance(found, str) else repr(sorted(found.items()))
        print(number, hashlib.sha256(said.encode()).hexdigest()[:16], isinstance(found, dict))
