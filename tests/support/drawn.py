"""Command lines of every registered part and of every option, by the registries and the declarations."""

from pathlib import Path
from random import Random

from kvsim.allocators import ALLOCATORS
from kvsim.sim.deployment.registry import allocator_class
from kvsim.sim.option import Named, options_of
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.parts import KINDS, declared_everywhere, part_named

PARTS = [(kind, name) for kind, (registry, _) in KINDS.items() for name in registry]
"""Every part that is registered."""

LETTERS = {
    "N": "160",
    "P%": "20%",
    "MS+US": "0.8+41",
    "GxT": "2x50",
    "DIST": "uniform:5:90",
    "US+US": "20+30",
}
"""What stands for the value of an option that is a text -> a value of that form."""

PROFILE = Path(__file__).parents[1] / "data" / "calibrated-example.json"
WITH = {
    ("cost", "calibrated"): ["--gpu", str(PROFILE)],
    ("router", "consistent-hash"): ["--trace", "agents"],
    ("cost", "constant"): ["--cost", "constant:0.03"],
    ("cost", "logged"): ["--cost", "logged:12.4+720+124"],
    ("cost", "a100-40gb-sosp23"): ["--gpu", "a100-40gb", "--model", "opt-13b"],
    ("cost", "a100-80gb-osdi24"): [
        "--gpu",
        "a100-80gb",
        "--model",
        "opt-13b",
        "--cost",
        "a100-80gb-osdi24:vllm",
    ],
    ("cost", "dgx-isca24"): [
        "--gpu",
        "h100",
        "--model",
        "bloom-176b",
        "--tensor-parallel-size",
        "8",
        "--cost",
        "dgx-isca24:context",
    ],
}
"""What a part needs beside its name."""

CHOICES = {
    "--block-size": ["8", "16", "32"],
    "--kv-tokens": ["300", "800", "1500", "4000", "20000"],
    "--max-num-seqs": ["2", "8", "64"],
    "--max-num-batched-tokens": ["300", "2048", "4096"],
    "--max-model-len": ["300", "1024"],
    "--input-len": ["uniform:1:400", "lognormal:100:1"],
    "--output-len": ["1", "uniform:1:300"],
    "--request-rate": ["0.5", "4", "inf"],
    "--policy": ["priority", "sjf"],
    "--clients": ["1", "5"],
    "--shared-prefix": ["2x50", "3x200"],
    "--n": ["2"],
    "--beam-width": ["2"],
    "--enable-prefix-caching": [],
    "--async-scheduling": [],
    "--replicas": ["2", "3"],
    "--trace": ["sharegpt", "agents"],
    "--model": ["llama-2-7b", "gemma-3-12b", "deepseek-v2-lite", "falcon-h1-7b"],
    "--time-scale": ["2.7"],
    "--cost": ["roofline", "constant:0.03"],
    "--seed": ["1", "2", "3"],
}

BESIDE = {
    "reserve": "--reserve pow2 --allocator buddy",
    "gpu": "--gpu h100",
    "disable_hybrid_kv_cache_manager": "--disable-hybrid-kv-cache-manager --model gemma-3-12b",
    "data_parallel_size": "--data-parallel-size 2 --model deepseek-v2-lite",
    "num_gpu_blocks": "--num-gpu-blocks 400",
    "gpu_memory_utilization": "--gpu-memory-utilization 0.2 --model llama-3.1-8b",
    "kv_cache_dtype": "--kv-cache-dtype fp8",
    "mamba_cache_mode": "--mamba-cache-mode align --model falcon-h1-7b --enable-prefix-caching",
    "prefix_cache_retention_interval": "--prefix-cache-retention-interval 3 --enable-prefix-caching",
    "enable_expert_parallel": "--enable-expert-parallel --model deepseek-v2-lite --tensor-parallel-size 2",
    "quantization": "--quantization fp8",
    "sticky": "--sticky --replicas 2 --trace agents",
    "start": "--start 1 --trace agents --num-prompts 3",
    "duration": "--duration 900 --trace agents --num-prompts 2",
    "beam_width": "--beam-width 2 --scheduler vllm-v0",
    "arrivals": "--arrivals onoff:1:2 --request-rate 4",
    "burstiness": "--burstiness 0.5 --request-rate 4",
    "spread": "--spread 1 --trace agents --num-prompts 3",
    "think_time": "--think-time 1 --clients 3",
    "pool": "--pool both:1:gpu=h100 --pool both:1:gpu=l40s --model llama-3.1-8b",
    "fail": "--fail replica=0:at=1:for=2 --replicas 2",
    "scale": "--scale schedule:0=1,2=2 --replicas 2",
    "startup_time": "--startup-time 2 --scale schedule:0=1,2=2 --replicas 2",
    "load_bandwidth": "--load-bandwidth 4 --scale schedule:0=1,2=2 --replicas 2",
    "migrate": "--migrate llumnix:source=48,target=96 --replicas 2",
    "mixed_pool": "--mixed-pool 100 --pool prefill:1 --pool decode:1",
    "clients_mix": "--clients-mix A:0.8:ttft=1,B:0.2:deadline=30",
    "closed_sessions": "--closed-sessions --trace agents --num-prompts 3",
}
"""Option of all parts -> words with it that are accepted, where its declaration does not say enough."""
STORED = "--hicache-storage-backend file:64GiB:nvme"
RETRY = "hicache_storage_prefetch_retry"
OWN = {
    "speculative_config": "--speculative-config "
    '{"method":"ngram","num_speculative_tokens":3,"synthetic_acceptance_length":2}',
    "speculative_method": "--speculative-method ngram --num-speculative-tokens 3 --acceptance-length 2",
    "acceptance_length": "--acceptance-length 2 --speculative-method ngram --num-speculative-tokens 3",
    "kv_offloading_size": "--kv-offloading-size 4",
    "kv_offloading_backend": "--kv-offloading-backend simple --kv-offloading-size 4 --enable-prefix-caching",
    "kv_offloading_policy": "--kv-offloading-policy arc --kv-offloading-size 4",
    "lazy_offload": "--lazy-offload --kv-offloading-backend simple --kv-offloading-size 4 "
    "--enable-prefix-caching",
    "lmcache_chunk_size": "--lmcache-chunk-size 256 --kv-offloading-size 4 --kv-offloading-backend lmcache "
    "--block-size 16",
    "chunk_sizes": "--chunk-sizes 128,256",
    "vtc_weights": "--vtc-weights A=2,B=1",
    "client_weights": "--client-weights A=2,B=1",
    "tier": "--tier host:4GiB --tier ssd:64GiB:nvme",
    "secondary_tiers": "--secondary-tiers ssd:64GiB:nvme --kv-offloading-size 4",
    **{
        name: f"{flag} --enable-hierarchical-cache --allocator sglang"
        for name, flag in {
            "enable_hierarchical_cache": "",
            "hicache_ratio": "--hicache-ratio 0.5",
            "hicache_size": "--hicache-size 1",
            "hicache_write_policy": "--hicache-write-policy write_back",
            "hicache_link": "--hicache-link 6.5:4",
            "hicache_storage_backend": STORED,
            "hicache_storage_prefetch_policy": f"--hicache-storage-prefetch-policy wait_complete {STORED}",
            "hicache_prefetch_threshold": f"--hicache-prefetch-threshold 64 {STORED}",
            f"{RETRY}_poll_interval": f"--{RETRY.replace('_', '-')}-poll-interval 2 {STORED}",
            f"{RETRY}_max_attempts": f"--{RETRY.replace('_', '-')}-max-attempts 1 {STORED}",
        }.items()
    },
    "predictor": "--predictor oracle",
    "srpt_limit": "--srpt-limit 0.5",
}
"""The same for options of parts."""
AROUND = [
    *(BESIDE[name] for name in ("pool", "fail", "scale", "clients_mix")),
    *(OWN[name] for name in ("speculative_config", "kv_offloading_size", "kv_offloading_backend")),
    "--pool prefill:1 --pool decode:2",
    "--pool prefill:1 --pool decode:2 --scale decode=schedule:0=1,2=2 --fail replica=1:at=3:for=1",
]
"""What may lie around any part."""
IN_OTHER_TESTS = {*KINDS, "tokenizer", "columns"}


def options_of_part(kind: str, name: str) -> list[Named]:
    """The options that a registered part declares."""
    return [each.named for each in declared_everywhere().values() if each.kind == kind and name in each.parts]


def common_options() -> dict[str, Named]:
    """The options of a run that concern every part: its server's and its traffic's."""
    found = {each.name: each for described in (Scenario, Traffic) for each in options_of(described)}
    return {name: named for name, named in found.items() if name not in IN_OTHER_TESTS}


def plain_words(kind: str, name: str) -> list[str]:
    """A part by itself, with what it needs."""
    beside = ["--replicas", "2"] if kind == "router" else []
    return [f"--{kind}", name, *beside, *WITH.get((kind, name), [])]


def option_words(rng: Random, named: Named) -> list[str]:
    """An option with one of the values that its declaration allows."""
    about = named.about
    if named.name in OWN or CHOICES.get(named.flag):
        value = rng.choice(CHOICES.get(named.flag) or [""])
        return OWN.get(named.name, f"{named.flag} {value}").split()
    if named.type is bool:
        return [rng.choice([named.flag, named.flag.replace("--", "--no-", 1)])]
    if about.allowed:
        return [named.flag, str(rng.choice(about.allowed))]
    if named.type is str:
        return [named.flag, rng.choice([LETTERS.get(letter, letter) for letter in about.value.split("|")])]
    low = max(about.least or 0, about.above or 0)
    if named.type is int:
        found = int(low) + rng.choice([1, 2, 30, 400] if about.above is not None else [0, 1, 2, 30, 400])
        return [named.flag, str(found)]
    high = low + 3 if about.below is None else about.below
    share = rng.choice([0.01, 0.3, 0.9]) if about.above is not None else rng.choice([0, 0.01, 0.3, 0.9])
    return [named.flag, str(low + share * (high - low))]


def option_value(rng: Random, named: Named) -> object:
    """The same as a value."""
    words = option_words(rng, named)
    if named.type is bool:
        return not words[0].startswith("--no-")
    return named.type(words[1]) if named.type in (int, float) else words[1]


def part_words(rng: Random, kind: str, name: str) -> list[str]:
    """A part, or a release of it, with some of its own options; a router beside two or three replicas."""
    words = plain_words(kind, name)
    if kind == "scheduler" and (releases := part_named(kind, name).VERSIONS) and rng.random() < 0.5:
        words[1] += f"@{rng.choice(releases)}"
    for named in options_of_part(kind, name):
        if rng.random() < 0.4:
            words += option_words(rng, named)
    return words


def parts_around(rng: Random, kind: str, name: str) -> list[str]:
    """Such a part, often some of other kinds beside it, and now and then what may lie around any of them."""
    words = part_words(rng, kind, name)
    for other, (registry, _) in KINDS.items():
        if other != kind and rng.random() < 0.3:
            words += part_words(rng, other, rng.choice(list(registry)))
    return [*words, *(rng.choice(AROUND).split() if rng.random() < 0.2 else [])]


MEMORY = {"--gpu-memory-utilization", "--num-gpu-blocks"}
"""Options that say how large the KV memory is, as --kv-tokens does."""
SLOW = {name for name in ALLOCATORS if allocator_class(name).slow}


def run_of(parts: list[str], rng: Random, most: int) -> list[str]:
    """A short run of such parts, with up to so many choices that concern every part."""
    prompts = "3" if SLOW.intersection(parts) else rng.choice(["3", "20", "50"])
    words = ["run", "--no-plots", "--quiet", "--force", "--gpu", "h200", "--num-prompts", prompts, *parts]
    names = rng.sample(list(CHOICES), rng.randint(0, most))
    if "--kv-tokens" not in names and not MEMORY.intersection(parts):
        words += ["--kv-tokens", "4000"]  # larger memories take some allocators long
    for name in names:
        words += [name, *rng.sample(CHOICES[name], min(1, len(CHOICES[name])))]
    recorded = ["--record-map", rng.choice(["3", "10"])]
    return (
        words if {"--fail", "--scale", "prefill:1"}.intersection(parts) else [*words, *recorded]
    )  # no map of these
