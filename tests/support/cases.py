"""Random work on tiny memories, for every scheduler: tests of modes, map and lives draw from it."""

from dataclasses import dataclass, field, replace
from operator import mul
from random import Random

import numpy as np

from kvsim.allocators.option import declared_by
from kvsim.allocators.sglang.eviction import STRATEGIES
from kvsim.sim.content import TextBuilder, shared_content
from kvsim.sim.cost.constant import Constant
from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.policies.named import policy_class
from kvsim.sim.workload import Beam, Samples, Workload
from support.serving import everything
from support.settings import engine_config, with_settings

MODEL, GPU = model_named("opt-13b"), gpu_named("h100")
TICK_PS = 20_000_000_000
CACHING = ("vllm-v1", "vllm-v0", "tensorrt-llm")


class Uneven(CostModel):
    """Every part of the shape counts, with odd numbers, so that no two mistakes cancel."""

    source = "test"
    WEIGHTS = (
        *(1_000_003, 1_009, 7_001_111, 2_000_029, 30_011, 50_021, 70_001, 90_001),
        *(110_017, 130_021, 150_011, 170_003),
    )

    def step_ps(self, shape: StepShape) -> int:
        *parts, spread, drafts, passes = shape
        parts += [drafts, passes]
        assert spread is None and len(parts) == len(self.WEIGHTS)  # nobody asked for the spread
        return 900_000_001 + sum(map(mul, self.WEIGHTS, parts))


COSTS = {"constant": lambda: Constant(0.02), "uneven": Uneven}


@dataclass
class Row:
    """A request to be: `kind` says what its text has in common with others."""

    gap: int
    prompt: int
    answers: list[int]
    kind: str
    group: int
    priority: int


def workload(rows: list[Row], beam: Beam | None, samples: bool, gap_ps: int, tick_ps: int) -> Workload:
    """Requests with texts: system prompts, copies, conversations whose turns may overlap in time."""
    builder, said, prompts = TextBuilder(), {}, []
    for row in rows:
        name, answer = f"{row.kind}-{row.group}", row.answers[0]
        prompt = row.prompt
        if row.kind == "alone":
            builder.add(prompt, answer)
        elif row.kind == "system":  # 24 tokens that all of the group begin with
            builder.add(prompt, answer, segments=[(name, min(prompt, 24))])
        elif row.kind == "same":  # the same prompt, and the same answer as far as both go
            builder.add(prompt, answer, session=name, turn=0)
        elif row.kind == "turn":  # all that was said before, and a little more
            prompt = said.get(name, 0) + 1 + row.prompt % 8
            if prompt + max(row.answers) > 120:
                said[name], prompt = 0, row.prompt
                builder.add(prompt, answer)
            else:
                builder.add(prompt, answer, segments=[(name, prompt)], session=name)
                said[name] = prompt + answer
        elif row.kind == "chat":  # a conversation behind a system prompt, sometimes cut short
            before = said.get(name, 0)
            own = max(1, before - row.prompt % 5) + row.prompt % 9
            if own + max(row.answers) > 100:
                own = said[name] = 1 + row.prompt % 9
            prompt = 10 + own
            segments = [(f"system-{row.group}", 10), (name, own)]
            builder.add(prompt, answer, segments=segments, session=name)
            said[name] = own + answer
        prompts.append(prompt)
    several = np.array([len(row.answers) > 1 or beam is not None for row in rows])
    counts = np.cumsum([0] + [len(row.answers) for row in rows])
    arrival = np.cumsum([row.gap * gap_ps for row in rows]).astype(np.int64) // tick_ps * tick_ps
    longest = np.array([max(row.answers) for row in rows])
    table = Samples(counts, np.concatenate([row.answers for row in rows])) if samples else None
    return Workload(
        "test",
        arrival,
        np.array(prompts),
        longest,
        samples=table,
        beam=beam,
        content=shared_content(builder.texts(), np.array(prompts), several),
        priority=np.array([row.priority for row in rows]),
    )


@dataclass
class Case:
    """Settings and work; `rows` and the rest make the workload."""

    engine: EngineConfig
    kv_tokens: int
    cost: str
    timeline_rows: int
    rows: list[Row]
    beam: Beam | None
    samples: bool
    labels: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def scenario(self) -> Deployment:
        return Deployment(
            model=MODEL, gpu=GPU, engine=self.engine, kv_tokens=self.kv_tokens, cost="constant:0.02"
        )

    @property
    def work(self) -> Workload:
        gap_ps, tick_ps = (TICK_PS // 7, 1) if self.cost == "uneven" else (TICK_PS, TICK_PS)
        return replace(workload(self.rows, self.beam, self.samples, gap_ps, tick_ps), labels=self.labels)


def own_settings(rng: Random, base: str, allocator: str, caches: bool) -> dict[str, object]:
    """Random settings of the engines and allocators that have some of their own."""
    settings: dict[str, object] = {}
    if base in ("lightllm", "past-future"):
        settings = {
            "allocator": allocator or rng.choice(["paged", "radix", "lightllm"]),
            "enable_chunked_prefill": False,
            "enable_prefix_caching": False,
            "max_num_batched_tokens": rng.choice([128, 200, 500]),
            "reserve": rng.choice(["oracle", "oracle", "pow2", "max"]),
            "router_max_wait_tokens": rng.choice([None, 0, 1, 3]),
        }
        if base == "lightllm":
            settings["router_token_ratio"] = rng.choice([None, 0.5, 1.1])
            settings["router_max_new_token_len"] = rng.choice([None, 0, 5])
    elif base == "tensorrt-llm":
        settings = {
            "allocator": allocator or rng.choice(["paged", "tensorrt-llm", *(["radix"] if caches else [])]),
            "max_num_batched_tokens": rng.choice([30, 64, 500]),
            "enable_chunked_prefill": rng.random() < 0.8,
            "capacity_policy": rng.choice([None, "max-utilization", "max-utilization", "static-batch"]),
            "reserve": rng.choice(["oracle", "oracle", "pow2", "max"]),
        }
    elif base in ("sarathi", "vtc-artifact"):
        settings = {"enable_prefix_caching": False, "policy": "fcfs"}
        settings["enable_chunked_prefill"] = True
        if base == "sarathi":
            settings["chunk_sizes"] = rng.choice([None, "30,9", "64,40,12"])
            settings["tokens_per_stage"] = rng.choice([None, 10])
        else:
            settings["max_num_batched_tokens"] = rng.choice([128, 200])
            settings["vtc_wait"] = rng.choice([1, 3, 10])
            settings["vtc_lengths"] = rng.choice(["none", "oracle", "predict"])
            settings["vtc_cost"] = rng.choice(["linear", "profile"])
    elif base == "s3":
        allocator = rng.choice(["paged", "dynamic", "buddy", "contiguous"])
        reserve = rng.choice(["predicted:noise-0.3", "oracle", "pow2"])
        settings = {
            "allocator": allocator,
            "enable_prefix_caching": False,
            "policy": "fcfs",
            "reserve": reserve if allocator in ("contiguous", "buddy") else None,
        }
    elif allocator:
        reserve = rng.choice(["oracle", "pow2"]) if allocator == "tgi" else None
        settings = {"allocator": allocator, "reserve": reserve}
        settings |= {"enable_prefix_caching": False} if allocator == "mlc" else {}
    return settings


def draw_case(rng: Random, scheduler: str) -> Case:
    """A scheduler with random settings, and work that is too much for its memory.

    `SCHEDULER+ALLOCATOR` names both.
    """
    scheduler, _, own = scheduler.partition("+")
    base = scheduler.partition("@")[0]
    caches = base == "nano-vllm" or (base in CACHING and rng.random() < 0.6)
    caches = caches and scheduler not in ("vllm-v0@0.1.0", "vllm-v0@0.1.7")
    size = rng.choice([1, 4, 4, 16])
    seats = rng.choice([2, 3, 5, 8, 30])
    chunked = base != "vllm-v0" or (scheduler == "vllm-v0" and not caches and rng.random() < 0.4)
    budget = max(seats, rng.choice([9, 30, 64, 500] if chunked else [60, 120, 500]))
    v0, v033 = base == "vllm-v0", scheduler == "vllm-v1@0.33.0"
    if base == "vllm-v1" and rng.random() < 0.2:
        chunked, budget = False, 200
    beams = v0 and rng.random() < 0.3
    samples = not beams and rng.random() < 0.5
    allocator = "paged"
    if base in ("orca", "static") or (base == "vllm-v1" and not caches and rng.random() < 0.2):
        allocator = rng.choice(["paged", "dynamic", "buddy", "contiguous"])
    elif base == "vllm-v1" and caches and rng.random() < 0.25:
        allocator = "radix"
    engine = engine_config(
        allocator=allocator,
        scheduler=scheduler,
        block_size=size,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        enable_chunked_prefill=chunked,
        max_model_len=128,
        watermark=rng.choice([0.0, 0.01, 0.1]) if v0 or v033 else None,
        reserve_full_prompt=rng.choice([None, True, False]) if v033 else None,
        enable_prefix_caching=caches,
        async_scheduling=v033 and rng.random() < 0.4,
        policy=rng.choice(["fcfs", "fcfs", "priority", "sjf"]),
        preemption=rng.choice([None, "swap", "recompute"]) if v0 else None,
        num_cpu_blocks=rng.choice([0, 3 * 16 // size, 1000, 1000, 1000]) if v0 else None,
        reserve=rng.choice(["pow2", "oracle"]) if allocator in ("buddy", "contiguous") else None,
    )
    if base == "sglang":
        engine = with_settings(engine, **sglang_settings(rng, size, budget))
    elif own or base not in ("orca", "static", "vllm-v1", "vllm-v0", "nano-vllm"):
        engine = with_settings(engine, **own_settings(rng, base, own, caches))
    width = rng.randint(2, min(4, seats)) if beams else 1
    most = min(4, seats) if samples else 1
    kind = rng.sample(["alone", "system", "same", "turn", "chat"], rng.randint(1, 3))
    length = rng.choice([8, 30])
    burst = rng.choice([0.3, 0.8, 1.0])
    rows = [
        Row(
            gap=0 if rng.random() < burst else rng.randint(0, 40),
            prompt=rng.randint(1, 40) if rng.random() < 0.8 else size * rng.randint(1, 3),
            answers=[
                1 if rng.random() < 0.2 else min(60, 1 + int(rng.expovariate(1 / length)))
                for _ in range(rng.randint(1, most))
            ],
            kind=rng.choice(kind),
            group=rng.randrange(3),
            priority=rng.randrange(3),
        )
        for _ in range(rng.randint(2, 16))
    ]
    cost = rng.choice(sorted(COSTS))
    for row in rows:  # so large that it is refused when it comes, most often while others wait
        if rng.random() < 0.06:
            row.prompt, row.kind = rng.choice([60, 90, 127]), "alone"
    process = rng.choice(["uniform", "replace:0.3", "replace:1"])
    kv_tokens = rng.choice([64, 80, 100, 128, 128, 160, 240]) if rng.random() < 0.95 else 20_000
    timeline_rows = rng.choice([8, 64, 1024])
    beam = Beam(width, process, rng.randrange(99)) if beams else None
    if base == "vllm-v1" and rng.random() < 0.2:
        engine = with_settings(engine, long_prefill_token_threshold=rng.choice([3, 16]))
    return Case(
        engine,
        kv_tokens=kv_tokens,
        cost=cost,
        timeline_rows=timeline_rows,
        rows=rows,
        beam=beam,
        samples=samples,
    )


def sglang_settings(rng: Random, size: int, budget: int) -> dict[str, object]:
    """What only SGLang's scheduler and its memory know; most often over its own memory."""
    rng = Random(rng.random())  # one draw, so that the work is that of other schedulers
    allocator = rng.choice(["sglang", "sglang", "sglang", "paged", "radix", "dynamic"])
    caches = allocator == "radix" or (allocator != "dynamic" and rng.random() < 0.8)
    policies = ["fcfs", "priority", "sjf", "lof", "lpm"] + ["dfs-weight"] * (allocator == "sglang")
    policies += ["hrrn", "random"] + ["shortest-prefill-first"] * caches
    policy = rng.choice(policies)
    settings = {
        "allocator": allocator,
        "enable_prefix_caching": caches,
        "enable_chunked_prefill": rng.random() < 0.6 and budget % size == 0,
        "policy": policy,
        "schedule_conservativeness": rng.choice([0.01, 0.1, 0.5, 1.0]),
        "enable_mixed_chunk": rng.random() < 0.4,
        "max_tokens": rng.choice([None, None, 20, 70]),
        "preemption_threshold": rng.choice([None, 0, 1]),
        "eviction": rng.choice(sorted(STRATEGIES)) if allocator == "sglang" else None,
    }
    return {**settings, "ignore_eos": settings["max_tokens"] is None and rng.random() < 0.5}


POLICY_SETTINGS = {
    "predictor": ("oracle", "none", "lognormal:0.5", "buckets:8:0.8", "ranks:0.4", "histogram", "constant:9"),
    "srpt_limit": (1.0, 0.5),
    "starvation": (0.1, 0.5, 30.0),
    "starvation_quantum": (1, 5),
    "mlfq_quantum": (0.02, 0.05, 0.3),
    "mlfq_promotion": (0.2, 1.0, 30.0),
    "mlfq_displaced": ("keep", "recompute"),
    "client_weights": ("", "b=2"),
    "output_price": (1.0, 2.5),
    "deficit_quantum": (5, 40, 400),
    "usual_slo": (0.2, 2.0),
    "age_doubling": (0.05, 1.0),
    "aging": (0.0, 0.3, 30.0),
    "ewsjf_step": (8, 40),
    "ewsjf_weight": (0.0, 0.5),
    "slo_granularity": (0.05, 1.0),
    "andes_interval": (0.03, 0.3),
    "andes_preemptions": (1, 4),
    "reading_speed": (5.0, 60.0),
    "annealing_steps": (0, 30),
}
"""Options of policies -> what random cases choose from; times as long as a few steps are."""


def draw_keyed(rng: Random, policy: str) -> Case:
    """A case under a policy with keys: its clients, goals and the policy's options at random."""
    case = draw_case(Random(rng.random()), rng.choice(["vllm-v1@0.33.0", "vllm-v1@0.11.0"]))
    rows = len(case.rows)
    case.labels = {
        "client": np.array([rng.choice("abc") for _ in range(rows)], dtype=object),
        "slo_ttft_s": np.array([rng.choice([0.04, 0.3, 2.0, np.nan]) for _ in range(rows)]),
        "deadline_s": np.array([rng.choice([1.0, np.nan]) for _ in range(rows)]),
    }
    own = declared_by(policy_class(policy).declares)
    options = {name: rng.choice(values) for name, values in POLICY_SETTINGS.items() if name in own}
    case.engine = with_settings(case.engine, policy=policy, **options)
    return case


def events_of(engine) -> dict[str, list]:
    """What happened to each request: columns of numbers, and of texts with the order they stand in."""
    numbers, texts = engine.replica.server.events.table()
    return {name: column.tolist() for name, column in numbers.items()} | {
        name: [column.codes.tolist(), column.texts] for name, column in texts.items()
    }


def told(result) -> dict[str, object]:
    found = everything(result)
    if result.samples is not None:
        found["samples"] = {name: column.tolist() for name, column in result.samples.items()}
    return found


HAPPENS = {
    "vllm-v1@0.11.0": ("preemptions", "hit_tokens", "cached"),
    "vllm-v1@0.33.0": ("preemptions", "hit_tokens", "cached"),
    "vllm-v0": ("preemptions", "hit_tokens", "cached", "swap_outs", "swapped_in_blocks", "cow_copies"),
    "vllm-v0+mlc": ("preemptions", "swap_outs", "swapped_in_blocks"),
    "vllm-v0@0.1.0": ("preemptions", "swap_outs", "swapped_in_blocks", "cow_copies"),
    "vllm-v0@0.1.7": ("preemptions", "swap_outs", "swapped_in_blocks", "cow_copies"),
    "nano-vllm": ("preemptions", "hit_tokens", "cached"),
    "lightllm": ("preemptions", "hit_tokens", "cached"),
    "past-future": ("preemptions", "hit_tokens", "cached"),
    "tensorrt-llm": ("preemptions", "hit_tokens", "cached"),
    "vllm-v1@0.11.0+lightllm": ("preemptions", "hit_tokens", "cached"),
    "vllm-v1@0.33.0+tgi": ("hit_tokens", "cached"),
    "sglang": ("preemptions", "hit_tokens", "cached"),
    "vllm-v1@0.33.0+tensorrt-llm": ("preemptions", "hit_tokens", "cached"),
    "orca": ("preemptions",),
    "s3": ("preemptions",),
    "sarathi@96f99117": ("preemptions",),
    "sarathi@osdi24": ("preemptions",),
    "vtc-artifact": ("preemptions",),
    "static": (),
}
"""What the random work of each engine must be full of, or the test below says nothing."""


def of_one_digit(case: Case) -> Case:
    """The first ten requests: of equals vllm-v1 takes the lower number as a text, so "10" before "9"."""
    return replace(case, rows=case.rows[:10])
