"""How fast the engine is, in CPU seconds of one core; all in one run, so that ratios are meaningful.

    python benchmarks/engine.py                     about three minutes
    python benchmarks/engine.py --million           also a million requests, in their own process
    python benchmarks/engine.py --parts speed,reference --out engine.json
    python benchmarks/engine.py --parts trace --trace conversation_trace.jsonl
    python benchmarks/engine.py --parts calibrated --profile tests/data/calibrated-example.json

Run it where kvsim is installed (`pip install -e .[test]`). Parts: `speed` (the default paged deployment near
saturation), `reference` (the model in 200 lines, kvsim/reference.py, over some of the same requests),
`linearity` (growing numbers of requests), `prefix` (prompts with shared prefixes, with and without the prefix
cache), `engines` (other schedulers, forks, beams), `windows` (Gemma-3, whose layers are kept in groups),
`map` (with the events and the memory map of `--record-map`), `fleet` (16 replicas behind `least-requests`,
equal and in two pools), `others` (allocators x schedulers), `zoo` (every allocator of `sim allocators` on the
default deployment; a hundredth of the requests if runs are known to be slow), `drafts` (requests with and
without drafts, in alternation), `policies` (every policy with keys and fcfs in alternation, at saturation and
far beyond), `trace` (only with --trace: a file with long shared prompts, such as Mooncake's, on Llama-3.1-8B
and an H200, prefix cache on), `tier` (the same above host memory), `calibrated` (only with --profile: its
step times and the roofline's in alternation, on Llama-3.1-8B and an H200). Times include building and running
the engine, but not drawing the workload.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from kvsim import workloads
from kvsim.allocators import ALLOCATORS
from kvsim.allocators.paged import Paged
from kvsim.reference import Continuous, Request
from kvsim.sim.build import build_engine, engine_defaults
from kvsim.sim.cost.profile_files import read_profile
from kvsim.sim.cost.roofline import Roofline
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.memory import kv_capacity
from kvsim.sim.deployment.registry import allocator_class
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.policies import POLICIES
from kvsim.sim.record.recorder import Result
from kvsim.sim.serving.fleet import ONE, FleetConfig
from kvsim.sim.workload import Workload

MAP_INSTANTS = 240
"""The default of `--record-map`."""

OTHERS = (
    *(("contiguous", "orca", reserve) for reserve in ("max", "pow2", "oracle")),
    *(("buddy", "orca", reserve) for reserve in ("max", "pow2", "oracle")),
    *(("dynamic", "orca", None), ("paged", "orca", None)),
    *(("contiguous", "static", "max"), ("buddy", "static", "max"), ("paged", "static", None)),
    *(("contiguous", "vllm-v1", "oracle"), ("dynamic", "vllm-v1", None), ("paged", "vllm-v1", None)),
)


def deployment(allocator="paged", scheduler=None, reserve=None, **settings) -> Deployment:
    """The default deployment: OPT-13B on an A100-40GB, 984 blocks of 16."""
    engine = EngineConfig(allocator=allocator, scheduler=scheduler, reserve=reserve, **settings)
    return Deployment(model=model_named("opt-13b"), gpu=gpu_named("a100-40gb"), engine=engine)


def sharegpt(requests: int, rate: float) -> Workload:
    """The built-in trace with Poisson arrivals."""
    return workloads.build("sharegpt", num_prompts=requests, request_rate=rate, burstiness=1.0, seed=0)


def timed(where: Deployment, work: Workload, fleet: FleetConfig = ONE) -> tuple[float, Result]:
    """CPU seconds of one run, and its result."""
    start = time.process_time()
    result = build_engine(replace(where, fleet=fleet), work).run()
    return time.process_time() - start, result


def measured(where: Deployment, work: Workload, repeat: int, fleet: FleetConfig = ONE) -> dict[str, object]:
    """The median of several runs, and how busy the simulated servers were."""
    runs = [timed(where, work, fleet) for _ in range(repeat)]
    cpu_s, result = median(cpu_s for cpu_s, _ in runs), runs[0][1]
    whole_ps = result.saturated.time_ps + result.unsaturated.time_ps
    return {
        "requests": len(work),
        "cpu_s": cpu_s,
        "cpu_s_least": min(cpu_s for cpu_s, _ in runs),
        "requests_per_cpu_s": len(work) / cpu_s,
        "mean_running": (result.saturated.running + result.unsaturated.running) / whole_ps,
        "saturated_share": result.saturated.time_ps / whole_ps,
        "steps": result.step_count,
        "preemptions": result.preemptions,
    }


def beginning_alike(work: Workload, groups: int, tokens: int) -> Workload:
    """The same requests, each after one of `groups` shared system prompts, drawn at random."""
    chosen = np.random.default_rng(1).integers(groups, size=len(work)).tolist()
    prompts = [((group, 0, tokens),) for group in range(groups)]
    longer = {"prompt_tokens": work.prompt_tokens + tokens, "content": [prompts[group] for group in chosen]}
    return replace(work, **longer)


def with_prefixes(requests: int, rate: float, repeat: int) -> list[dict[str, object]]:
    """10 groups with 200 shared tokens: paged with and without its prefix cache, and radix."""
    work = beginning_alike(sharegpt(requests, rate), 10, 200)
    rows = []
    for name, where in {
        "paged": deployment(),
        "paged, prefix cache": deployment(enable_prefix_caching=True),
        "radix": deployment("radix", "vllm-v1"),
    }.items():
        rows.append({"allocator": name} | measured(where, work, repeat))
    return rows


def other_engines(requests: int) -> list[dict[str, object]]:
    """vLLM V0, with forks and beams, and nano-vLLM."""
    drawn = {"num_prompts": requests, "burstiness": 1.0, "seed": 0}
    v0 = engine_defaults("vllm-v0", 2048)
    nano = {"enable_prefix_caching": True, "max_num_batched_tokens": 16_384}
    rows = []
    for name, where, rate, traffic in (
        ("vllm-v0", deployment(scheduler="vllm-v0", **v0), 2.0, {}),
        ("vllm-v0, n = 4", deployment(scheduler="vllm-v0", **v0), 0.6, {"n": 4}),
        ("vllm-v0, 4 beams", deployment(scheduler="vllm-v0", **v0), 0.6, {"beam_width": 4}),
        ("nano-vllm", deployment(scheduler="nano-vllm", **nano), 2.0, {}),
    ):
        work = workloads.build("sharegpt", request_rate=rate, **drawn, **traffic)
        rows.append({"engine": name} | measured(where, work, 1))
    return rows


def with_windows(requests: int, repeat: int) -> dict[str, object]:
    """Gemma-3-27B on an H100: one full-attention and six sliding-window groups of layers."""
    where = Deployment(model=model_named("gemma-3-27b"), gpu=gpu_named("h100"), engine=EngineConfig())
    return measured(where, sharegpt(requests, 4.0), repeat)


def with_map(requests: int, rate: float, repeat: int) -> dict[str, object]:
    """The default deployment with everything that `--record-map` records."""
    where, work = deployment(), sharegpt(requests, rate)
    runs = []
    for _ in range(repeat):
        start = time.process_time()
        build_engine(where, work, events=True, map_instants=MAP_INSTANTS).run()
        runs.append(time.process_time() - start)
    return {"requests": requests, "cpu_s": median(runs), "requests_per_cpu_s": requests / median(runs)}


def in_pools(requests: int, rate: float, repeat: int) -> list[dict[str, object]]:
    """Sixteen equal replicas and two pools of eight, in alternation: the minimum CPU time of each."""
    work, fleet = sharegpt(requests, rate), FleetConfig(replicas=16, router="least-requests")
    alike = replace(deployment(), fleet=fleet)
    eight = replace(alike, fleet=replace(fleet, replicas=8))
    larger = replace(eight, engine=replace(eight.engine, max_num_seqs=300))
    pools = (Pool("a", "both", 8, eight), Pool("b", "both", 8, larger))
    runs: dict[str, list[float]] = {"equal": [], "two pools": []}
    for _ in range(repeat):
        for name, where in (("equal", alike), ("two pools", replace(alike, pools=pools))):
            runs[name].append(timed(where, work, fleet)[0])
    least = {name: min(times) for name, times in runs.items()}
    return [
        {"fleet": name, "cpu_s_least": cpu_s, "speed_of_equal": least["equal"] / cpu_s}
        for name, cpu_s in least.items()
    ]


def every_allocator(requests: int, rate: float) -> Iterator[dict[str, object]]:
    """Every allocator of `sim allocators`: how fast it is, and how often the engine decides."""
    for name in ALLOCATORS:
        where = deployment(name)
        work = sharegpt(max(requests // 100, 1) if allocator_class(name).slow else requests, rate)
        yield {"allocator": name, "scheduler": where.scheduler_name} | measured(where, work, 1)


def long_prompts(trace: Path, repeat: int) -> dict[str, object]:
    """A trace with long shared prompts: tokens and blocks per CPU second."""
    work = workloads.build(str(trace), num_prompts=None, request_rate=None, burstiness=None, seed=0)
    engine = EngineConfig(enable_prefix_caching=True, scheduler="vllm-v1")
    where = Deployment(model=model_named("llama-3.1-8b"), gpu=gpu_named("h200"), engine=engine)
    found = measured(where, work, repeat)
    tokens = int(work.prompt_tokens.sum() + work.output_tokens.sum())
    hits = timed(where, work)[1].hit_tokens
    return found | {
        "prompt_tokens_per_cpu_s": int(work.prompt_tokens.sum()) / found["cpu_s"],
        "blocks_per_cpu_s": tokens / where.engine.block_size / found["cpu_s"],
        "hit_share": hits / int(work.prompt_tokens.sum()),
    }


def above_a_tier(trace: Path, repeat: int) -> list[dict[str, object]]:
    """The same with 1 TiB of host memory as a tier, in chunks of 1 and 16 blocks, and without."""
    work = workloads.build(str(trace), num_prompts=None, request_rate=None, burstiness=None, seed=0)
    settings = [{}, *({"kv_offloading_size": "1TiB", "blocks_per_chunk": blocks} for blocks in (1, 16))]
    model, gpu = model_named("llama-3.1-8b"), gpu_named("h200")
    where = [
        Deployment(
            model=model,
            gpu=gpu,
            engine=EngineConfig(enable_prefix_caching=True, scheduler="vllm-v1", options=options),
        )
        for options in settings
    ]
    runs = [[timed(each, work)[0] for each in where] for _ in range(repeat)]
    alone_s, *tiers_s = (median(column) for column in zip(*runs, strict=True))
    return [
        {**options, "cpu_s": tier_s, "times_without": tier_s / alone_s}
        for options, tier_s in zip(settings[1:], tiers_s, strict=True)
    ]


def with_drafts(requests: int, repeat: int) -> list[dict[str, object]]:
    """Llama-3.1-8B on an H100 with and without EAGLE-3, in alternation: the minimum CPU seconds of each."""
    said = {"speculative_method": "eagle3", "num_speculative_tokens": 3, "acceptance_length": 2.4}
    model, gpu = model_named("llama-3.1-8b"), gpu_named("h100")
    engines = [EngineConfig(scheduler="vllm-v1", options=options) for options in ({}, said)]
    by_clock = {
        "roofline": [Deployment(model=model, gpu=gpu, engine=engine) for engine in engines],
        "measured": [Scenario(model=model.name, gpu=gpu.name, options=own).deployed() for own in ({}, said)],
    }
    rows = []
    for (clock, where), rate in product(by_clock.items(), (8.0, 20.0, 50.0)):
        work = sharegpt(requests, rate)
        runs = [[timed(each, work)[0] for each in where] for _ in range(repeat)]
        plain_s, drafts_s = (min(column) for column in zip(*runs, strict=True))
        row = {"clock": clock, "request_rate": rate, "plain_cpu_s": plain_s, "drafts_cpu_s": drafts_s}
        rows.append(row | {"times_plain": drafts_s / plain_s})
    return rows


def by_policy(requests: int, repeat: int) -> list[dict[str, object]]:
    """Policies with keys and fcfs, in alternation: minimum CPU seconds; 32 seats serve 11 per second."""
    model, gpu = model_named("llama-3.1-8b"), gpu_named("h100")
    clients, rows = "A:0.8:ttft=4,B:0.2:ttft=1", []
    for rate in (11.0, 20.0):
        work = workloads.build(
            "sharegpt", num_prompts=requests, request_rate=rate, burstiness=1.0, seed=0, clients_mix=clients
        )
        runs: dict[str, list[tuple[float, Result]]] = {name: [] for name in ("fcfs", *POLICIES)}
        for _ in range(repeat):
            for name, own in runs.items():
                engine = EngineConfig(scheduler="vllm-v1", policy=name, max_num_seqs=32)
                own.append(timed(Deployment(model=model, gpu=gpu, engine=engine), work))
        least = {name: min(cpu_s for cpu_s, _ in own) for name, own in runs.items()}
        for name, own in runs.items():
            row = {"policy": name, "request_rate": rate, "cpu_s_least": least[name]}
            rows.append(
                row | {"times_fcfs": least[name] / least["fcfs"], "preemptions": own[0][1].preemptions}
            )
    return rows


def by_profile(path: Path, requests: int, repeat: int) -> list[dict[str, object]]:
    """A profile's step times and the roofline's, in alternation: CPU seconds, and how they compare."""
    profile = read_profile(path).settings()
    chunks = {"enable_chunked_prefill": True, "max_num_batched_tokens": 512}
    rows = []
    for rate, settings in ((5.0, {}), (30.0, {}), (30.0, chunks)):
        engine, work = EngineConfig(**settings), sharegpt(requests, rate)
        plain = Deployment(model=model_named("llama-3.1-8b"), gpu=gpu_named("h200"), engine=engine)
        both = plain, replace(plain, cost="calibrated", profile=profile)
        runs = [[timed(where, work)[0] for where in both] for _ in range(repeat)]
        roofline_s, calibrated_s = (median(column) for column in zip(*runs, strict=True))
        rows.append(
            {
                "request_rate": rate,
                "chunk_tokens": engine.max_num_batched_tokens,
                "roofline_cpu_s": roofline_s,
                "calibrated_cpu_s": calibrated_s,
                "speed_of_the_roofline": median(one / other for one, other in runs),
            }
        )
    return rows


def run_reference(where: Deployment, work: Workload) -> float:
    """CPU seconds of the reference simulator."""
    rows = zip(
        work.arrival_ps.tolist(), work.prompt_tokens.tolist(), work.output_tokens.tolist(), strict=True
    )
    requests = [Request(number, *row) for number, row in enumerate(rows)]
    memory = Paged(kv_capacity(where).tokens, where.engine.block_size)
    cost, config = Roofline(where.model, where.gpu), where.engine
    most = {"seats": config.max_num_seqs, "budget": config.max_num_batched_tokens}
    start = time.process_time()
    Continuous(requests, memory, cost.step_ps, bound=lambda _: where.max_model_len, **most).run()
    return time.process_time() - start


def against_reference(requests: int, rate: float, repeat: int) -> dict[str, object]:
    """Both simulators, in alternation, on the first requests of the trace."""
    where, work = deployment(), sharegpt(requests, rate)
    naive, engine = [], []
    for _ in range(repeat):
        naive.append(run_reference(where, work))
        engine.append(median(timed(where, work)[0] for _ in range(3)))
    return {
        "requests": requests,
        "reference_cpu_s": median(naive),
        "engine_cpu_s": median(engine),
        "reference_requests_per_cpu_s": requests / median(naive),
        "ratio": median(naive) / median(engine),
    }


def more_and_more(sizes: str, rate: float, repeat: int) -> list[dict[str, object]]:
    """Growing numbers of requests, and the cost per request."""
    runs = [measured(deployment(), sharegpt(int(size), rate), repeat) for size in sizes.split(",")]
    return [run | {"us_per_request": 1e6 * run["cpu_s"] / run["requests"]} for run in runs]


def pairs(requests: int, rate: float) -> list[dict[str, object]]:
    """Allocators under schedulers, on the same requests."""
    work = sharegpt(requests, rate)
    return [
        {"allocator": allocator, "scheduler": scheduler, "reserve": reserve or "-"}
        | measured(deployment(allocator, scheduler, reserve), work, 1)
        for allocator, scheduler, reserve in OTHERS
    ]


def one_alone(requests: int, rate: float) -> dict[str, object]:
    """The same in a fresh process: CPU seconds and peak memory of the whole process, including imports."""
    command = [sys.executable, __file__, "--alone", str(requests), "--request-rate", str(rate)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def alone(requests: int, rate: float) -> dict[str, object]:
    """Run in the fresh process."""
    found = measured(deployment(), sharegpt(requests, rate), 1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return found | {"process_cpu_s": used.ru_utime + used.ru_stime, "peak_rss_mb": used.ru_maxrss / 1024}


def show(title: str, rows: list[dict[str, object]]) -> None:
    """Print a small table."""
    print(f"\n{title}")
    names = list(rows[0])
    cells = [[_text(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for line in (names, *cells):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    sys.stdout.flush()


def _text(value) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.3g}" if isinstance(value, float) and value < 1_000 else f"{value:,.0f}"


def parts_of(given: argparse.Namespace) -> dict[str, tuple[str, Callable[[], object]]]:
    """Name of each part -> its title, and the function that measures it."""
    rate, repeat, others, trace = given.request_rate, given.repeat, given.other_requests, given.trace
    file, pools = getattr(trace, "name", None), f"16 replicas, least-requests, {16 * rate:g} requests/s"
    return {
        "speed": (
            f"paged, vllm-v1, {rate:g} requests/s",
            lambda: measured(deployment(), sharegpt(given.requests, rate), repeat),
        ),
        "reference": (
            "the naive reference",
            lambda: against_reference(given.reference_requests, rate, repeat),
        ),
        "linearity": ("more and more requests", lambda: more_and_more(given.sizes, rate, repeat)),
        "prefix": (
            f"10 groups of 200 shared tokens, {given.prefix_rate:g} requests/s",
            lambda: with_prefixes(given.requests, given.prefix_rate, repeat),
        ),
        "engines": ("other engines", lambda: other_engines(others)),
        "windows": ("Gemma-3-27B on an H100, 4 requests/s", lambda: with_windows(others, repeat)),
        "map": ("with --record-map, 2 requests/s", lambda: with_map(1_000, 2.0, repeat)),
        "fleet": (
            f"{pools}, equal and in two pools",
            lambda: in_pools(given.requests, 16 * rate, repeat),
        ),
        "drafts": (
            "Llama-3.1-8B on an H100: three drafts of EAGLE-3, by turns without",
            lambda: with_drafts(others, repeat),
        ),
        "policies": (
            "Llama-3.1-8B on an H100, 32 seats: who is served next, by turns",
            lambda: by_policy(min(others, 3_000), repeat),
        ),
        "trace": (
            f"{file}: Llama-3.1-8B on an H200, prefix cache on",
            lambda: long_prompts(trace, repeat),
        ),
        "tier": (f"{file}: the same above 1 TiB of host memory", lambda: above_a_tier(trace, repeat)),
        "calibrated": (
            f"step times of {getattr(given.profile, 'name', None)} against the roofline",
            lambda: by_profile(given.profile, others, max(repeat, 5)),
        ),
        "million": (
            "a million requests, in a process of their own",
            lambda: one_alone(1_000_000, rate),
        ),
        "others": ("allocators and schedulers", lambda: pairs(others, rate)),
        "zoo": ("every allocator", lambda: list(every_allocator(others, rate))),
    }


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", help="which, by commas; unless given, all that need no file")
    parser.add_argument("--requests", type=int, default=100_000, help="of the part speed")
    parser.add_argument("--request-rate", type=float, default=2.5, help="requests per simulated second")
    parser.add_argument("--reference-requests", type=int, default=1_000)
    parser.add_argument("--other-requests", type=int, default=10_000, help="of the part others")
    parser.add_argument("--prefix-rate", type=float, default=2.0, help="requests/s of the part prefix")
    parser.add_argument("--trace", type=Path, help="file of the parts trace and tier")
    parser.add_argument("--profile", type=Path, help="file of the part calibrated")
    parser.add_argument("--sizes", default="25000,50000,100000,200000", help="of the part linearity")
    parser.add_argument("--repeat", type=int, default=3, help="medians of so many runs")
    parser.add_argument("--million", action="store_true", help="also 1,000,000 requests")
    parser.add_argument("--out", type=Path, help="write JSON here")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Measure the requested parts."""
    parser = arguments()
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(alone(given.alone, given.request_rate)))
        return
    parts = parts_of(given)
    asked = {*parts} - {"million"} if given.parts is None else {*given.parts.split(",")} - {""}
    if unknown := asked - {*parts}:
        parser.error(f"parts must be of {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    asked |= {"million"} if given.million else set()
    asked -= ({"trace", "tier"} if not given.trace else set()) | (
        {"calibrated"} if not given.profile else set()
    )
    found: dict[str, Any] = {"python": sys.version.split()[0], "request_rate": given.request_rate}
    for name, (title, measure) in parts.items():
        if name in asked:
            found[name] = rows = measure()
            if name == "reference" and "speed" in found:  # its cost does not depend on the number of requests
                speeds = found["speed"]["requests_per_cpu_s"], rows["reference_requests_per_cpu_s"]
                rows["ratio_at_full_length"] = speeds[0] / speeds[1]
            show(title, rows if isinstance(rows, list) else [rows])
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
