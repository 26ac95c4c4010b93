"""Compares measured servers with the same servers in simulation.

    Point   a closed loop: model, GPUs, lengths, clients -> mean TTFT and TPOT
    Run     requests with arrivals and lengths           -> TTFT and E2E per request

Engine settings that a source omits are assumed and reported (sim/bench/assumed.py). Points that are
physically impossible are refused, with the arithmetic (`against_physics`). Sources: sim/measured (ships), a
table of points in CSV with the columns of `Point`, or a benchmark's result with every request
(sim/bench/read.py).
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib import resources
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.allocators.base import Content
from kvsim.sim.bench.assumed import (
    SEQS,
    TOKENS,
    asynchronous,
    cache_of,
    flags_of,
    fused,
    precision_of,
)
from kvsim.sim.bench.compared import Compared
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.workload import workload_of as replayed_workload
from kvsim.sim.cost.older_experts import of_release
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.counted import several
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import text_of, understood
from kvsim.sim.models.catalog import GIB, gpu_named, model_named
from kvsim.sim.models.spec import ModelSpec
from kvsim.sim.record.instants import FEWEST_ROWS
from kvsim.sim.record.metrics import Column
from kvsim.sim.run import prepare
from kvsim.sim.workload import PS_PER_S, Clients, Workload

Floats = npt.NDArray[np.float64]

RANGE = 0.8
ROUNDS, INFERENCEMAX_ROUNDS = 6, 10
"""Requests per client, up to MOST_TOKENS in total: as in InferenceMAX's scripts, since sources do not say."""
INFERENCEMAX = ("meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b", "MiniMaxAI/MiniMax-M2.5")
"""Models with points from InferenceMAX."""
MOST_TOKENS = 8_000_000
PRECISIONS = {"fp8": ("fp8", 8.0), "fp4": ("nvfp4", 4.5)}
MODELS = {
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
GPUS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300"}


@dataclass(frozen=True)
class Point:
    """A measured closed loop: each of `clients` clients sends a request when it has its last answer."""

    name: str
    model: str
    gpu: str
    precision: str
    version: str
    tp: int
    dp: int
    ep: int
    input_tokens: int
    output_tokens: int
    clients: int
    ttft_s: float
    tpot_s: float


# -- points ---------------------------------------------------------------------------------------


TEXTS = ("name", "model", "gpu", "precision", "version")
WHOLE = ("tp", "dp", "ep", "input_tokens", "output_tokens", "clients")


def points(text: str | None = None) -> list[Point]:
    """The points of a CSV table; by default the shipped points."""
    rows = csv.DictReader(io.StringIO(_shipped("points") if text is None else text))
    with understood("a table of points"):
        lacking = [each.name for each in fields(Point) if each.name not in (rows.fieldnames or ())]
        if lacking:
            raise KvsimError(f"a table of points must have the columns {', '.join(lacking)}")
        try:
            return [_point(row) for row in rows]
        except csv.Error as error:
            raise KvsimError(f"a table of points is no CSV: {error}") from error


LIMITS = {
    **dict.fromkeys(("tp", "dp", "ep"), (1, 4096)),
    **dict.fromkeys(("input_tokens", "output_tokens"), (1, 10_000_000)),
    "clients": (1, 100_000),
    **dict.fromkeys(("ttft_s", "tpot_s"), (1e-9, 1e6)),
}
"""The least and greatest value of each number of a point."""


def _point(row: Mapping[str, str | None]) -> Point:
    found: dict[str, Any] = {name: row[name] or "" for name in TEXTS}
    for name, (least, most) in LIMITS.items():
        said = row[name]
        if said == "" and name in WHOLE:
            said = "1"
        try:
            value = float(said or "nothing")
        except ValueError:
            value = nan
        if not least <= value <= most:
            raise KvsimError(
                f"{name} must be from {least:,} to {most:,}, got {said!r:.60} at point {found['name']!r:.60}"
            )
        found[name] = int(value) if name in WHOLE else value
    return Point(**found)


def model_of(point: Point) -> ModelSpec:
    """The model in the precision in which it was served."""
    model = model_named(MODELS.get(point.model, point.model))
    if point.precision not in PRECISIONS or model.quantization == "mxfp4":
        return model
    name, bits = PRECISIONS[point.precision]
    if model.quantization == name:
        return model
    return replace(model, quantization=name, weight_bits=bits, quantized_parameters=model.body_parameters)


def deployment_of(point: Point, cost: str | None = None) -> Deployment:
    """The server of a point; settings that the point does not give are assumed."""
    gpu, cost, profile = gpu_and_cost(GPUS.get(point.gpu, point.gpu), cost)
    profile = of_release(profile, point.version, gpu, point.tp)
    model = model_of(point)
    longest = min(model.max_model_len, 2 * (point.input_tokens + point.output_tokens))
    overlapped = asynchronous(point.version)
    flags = flags_of(point.model, point.gpu, point.version)
    options: dict[str, object] = {}
    if cost == "measured-elsewhere":
        options["fuse_allreduce_rms"] = fused(point.model, point.gpu, point.version)
        options["float32_matmul_precision"] = precision_of(point.model, point.gpu, point.version)
    engine = EngineConfig(
        scheduler="vllm-v1@0.33.0" if overlapped else "vllm-v1",
        max_num_seqs=flags.max_num_seqs or point.clients,
        max_num_batched_tokens=flags.max_num_batched_tokens or 2 * point.input_tokens,
        max_model_len=longest,
        async_scheduling=overlapped,
        disable_hybrid_kv_cache_manager=True,
        options=options,
    )
    specs = {"model": model, "gpu": gpu, "cost": cost, "profile": profile}
    specs["gpu_memory_utilization"] = flags.gpu_memory_utilization
    specs["enable_expert_parallel"] = point.ep > 1 or flags.enable_expert_parallel
    specs["kv_cache_dtype"] = cache_of(point.model, point.gpu, point.version)
    ranks = point.dp if flags.data_parallel else 1
    gpus = {"tensor_parallel_size": point.tp // ranks, "data_parallel_size": ranks}
    return Deployment(engine=engine, **gpus, **specs)  # type: ignore[arg-type]


def workload_of(point: Point, seed: int = 0) -> Workload:
    """The requests of a point's clients."""
    rng = np.random.default_rng(seed)
    most = MOST_TOKENS // (point.input_tokens + point.output_tokens)
    rounds = INFERENCEMAX_ROUNDS if point.model in INFERENCEMAX else ROUNDS
    n = max(min(rounds * point.clients, most), 2 * point.clients, 16)
    lengths = [
        rng.integers(max(int(RANGE * nominal), 1), nominal + 1, n)
        for nominal in (point.input_tokens, point.output_tokens)
    ]
    none = np.zeros(n, dtype=np.int64)
    return Workload(point.name, none, lengths[0], lengths[1], waits=Clients(point.clients, none))


def _served(deployment: Deployment, workload: Workload) -> dict[str, Column]:
    """The requests as simulated."""
    return prepare(deployment, workload, {}, timeline_rows=FEWEST_ROWS).outcome().requests


def compare_point(point: Point, cost: str | None = None) -> list[Compared]:
    """Mean TTFT, TPOT and E2E of a point, and its throughput, by the same closed-loop arithmetic."""
    done = _served(deployment_of(point, cost), workload_of(point))
    ttft, tpot = (float(np.nanmean(done[name].astype(np.float64))) for name in ("ttft_s", "tpot_s"))
    steps = (1 + RANGE) / 2 * point.output_tokens - 1
    e2e = point.ttft_s + steps * point.tpot_s, ttft + steps * tpot
    return [
        Compared("TTFT", "mean", point.ttft_s, ttft),
        Compared("TPOT", "mean", point.tpot_s, tpot),
        Compared("E2E", "mean", *e2e),
        Compared("throughput", "mean", *(point.clients / each for each in e2e)),
    ]


def not_simulated(point: Point) -> str | None:
    """The property of a point that kvsim does not support; None if there is none."""
    if point.tp % point.dp or point.ep not in (1, point.tp, point.tp * point.dp):
        return "experts over other GPUs than attention"
    if not point.ttft_s > 0 or not point.tpot_s > 0:
        return "no times"
    return None


def against_physics(point: Point) -> str | None:
    """Why a point is physically impossible; None if it is possible."""
    deployment = deployment_of(point, "roofline")
    model, gpu = deployment.model, deployment.gpu
    held = (model.weight_bytes + (point.dp - 1) * (model.weight_bytes - model.expert_bytes)) / point.tp
    if held > gpu.memory_bytes:
        return (
            f"{model.weight_bytes / GIB:.0f} GiB of weights on {several(point.tp, 'GPU')} of "
            f"{gpu.memory_bytes / GIB:.0f} GiB"
        )
    read = (model.body_weight_bytes - model.expert_bytes) / (point.tp // point.dp)
    least = read / gpu.bandwidth_bytes_per_s
    if point.tpot_s < least:
        return (
            f"TPOT {1e3 * point.tpot_s:.2f} ms: reading {read / 1e9:.1f} GB of dense weights a GPU at "
            f"{gpu.bandwidth_bytes_per_s / 1e9:,.0f} GB/s takes {1e3 * least:.2f} ms"
        )
    return None


# -- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Requests of a server, measured one by one.

    Attributes
    ----------
    deployment : Deployment
        The server.
    workload : Workload
        The requests.
    ttft_s, e2e_s : arrays of float
        Measured times.
    assumed : tuple of str
        Assumptions about what the source does not say.
    """

    name: str
    deployment: Deployment
    workload: Workload
    ttft_s: Floats
    e2e_s: Floats
    assumed: tuple[str, ...] = ()


def runs(cost: str | None = None) -> list[Run]:
    """The shipped runs: vLLM 0.19 AsyncLLM, called directly, on two GPUs, the same 300 requests."""
    rows = list(csv.DictReader(io.StringIO(_shipped("requests"))))
    names = dict.fromkeys(row["run"] for row in rows)
    return [_run(name, [row for row in rows if row["run"] == name], cost) for name in names]


def _run(name: str, rows: Sequence[Mapping[str, str]], cost: str | None) -> Run:
    rows = sorted(rows, key=lambda row: float(row["arrival_s"]))
    gpu, cost, profile = gpu_and_cost(name, cost)
    small = name == "rtx-4090"  # its log says 2,588 blocks
    engine = EngineConfig(
        scheduler="vllm-v1@0.33.0",
        max_num_seqs=256 if small else 128,
        max_num_batched_tokens=2048,
        enable_prefix_caching=True,
        async_scheduling=True,
    )
    deployment = Deployment(
        model=model_named("llama-3.1-8b"), gpu=gpu, engine=engine, cost=cost, profile=profile,
        num_gpu_blocks=2588 if small else None, frontend_latency=0.0,
    )  # fmt: skip
    column = {
        key: np.array([float(row[key]) for row in rows])
        for key in ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s")
    }
    workload = Workload(
        name,
        np.round(column["arrival_s"] * PS_PER_S).astype(np.int64),
        column["input_tokens"].astype(np.int64),
        column["output_tokens"].astype(np.int64),
        content=_contents(rows),
    )
    return Run(f"{name} llama-3.1-8b vLLM 0.19", deployment, workload, column["ttft_s"], column["e2e_s"])


def _contents(rows: Sequence[Mapping[str, str]]) -> list[Content]:
    """The prefixes that each request shares with an earlier one, as streams."""
    texts: dict[int, list[tuple[int, int, int]]] = {}
    most: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: int(row["request"])):
        number, tokens, shared = (int(row[key]) for key in ("request", "input_tokens", "shared_tokens"))
        begun: list[tuple[int, int, int]] = []
        if shared:
            parent = int(row["shared_with"])
            begun = _cut(texts[parent], shared)
            most[parent] = max(most.get(parent, 0), shared)
            most[number] = shared
        texts[number] = [*begun, (number, shared, tokens - shared)] if tokens > shared else begun
    numbers = [int(row["request"]) for row in rows]
    return [tuple(_cut(texts[number], most.get(number, 0))) for number in numbers]


def _cut(text: Sequence[tuple[int, int, int]], tokens: int) -> list[tuple[int, int, int]]:
    """The first `tokens` tokens of a text."""
    found = []
    for stream, first, length in text:
        if tokens <= 0:
            break
        found.append((stream, first, min(length, tokens)))
        tokens -= length
    return found


def measured(path: Path, deployment: Deployment) -> Run:
    """A benchmark tool's record of every request, for a server that the user describes."""
    found = read_result(path)
    if found.requests is None:
        raise KvsimError(
            f"measurement {path} holds no requests (vllm bench serve: --save-detailed); sim replay reads it"
        )
    known = ~np.isnan(found.requests.e2e_s) & ~np.isnan(found.requests.ttft_s)
    workload = replayed_workload(found)
    if not known.all():
        raise KvsimError(f"measurement {path} lacks the times of some requests; sim replay reads it")
    notes = (*found.notes, *workload.notes)
    return Run(found.name, deployment, workload, found.requests.ttft_s, found.requests.e2e_s, notes)


def compare_run(run: Run) -> tuple[list[Compared], dict[str, tuple[Floats, Floats]]]:
    """Mean, p50 and p99 of a run, and both columns of each quantity, request by request."""
    done = _served(run.deployment, run.workload)
    columns = {name: done[name].astype(np.float64) for name in ("ttft_s", "tpot_s", "e2e_s")}
    tokens = np.maximum(run.workload.output_tokens - 1, 1)
    pairs = {
        "TTFT": (run.ttft_s, columns["ttft_s"]),
        "TPOT": ((run.e2e_s - run.ttft_s) / tokens, columns["tpot_s"]),
        "E2E": (run.e2e_s, columns["e2e_s"]),
    }
    found = [
        Compared(what, name, float(statistic(measured)), float(statistic(simulated)))
        for what, (measured, simulated) in pairs.items()
        for name, statistic in (("mean", np.mean), ("p50", np.median), ("p99", _p99))
    ]
    ends = [float(np.max(run.workload.arrival_ps / PS_PER_S + e2e)) for e2e in (run.e2e_s, columns["e2e_s"])]
    if run.workload.waits is None:
        rates = [float(run.workload.output_tokens.sum()) / end for end in ends]
        found.append(Compared("throughput", "mean", *rates))
    return found, pairs


def _p99(values: Floats) -> float:
    return float(np.quantile(values, 0.99))


def _shipped(name: str) -> str:
    data = resources.files("kvsim.sim.measured").joinpath(f"{name}.csv.gz").read_bytes()
    return gzip.decompress(data).decode()


def _chosen(
    some: Sequence[Point], others: Sequence[Run], model: str | None, gpu: str | None
) -> tuple[list[Point], list[Run]]:
    """The points and runs of a model and a GPU, by any of their names."""
    wanted_model = None if model is None else model_named(model).name
    wanted_gpu = None if gpu is None else gpu_named(GPUS.get(gpu, gpu)).name

    def wanted(model: str, gpu: str) -> bool:
        return wanted_model in (None, model) and wanted_gpu in (None, gpu)

    def named(point: Point) -> tuple[str, str]:
        with suppress(KvsimError):  # a table may hold models that kvsim does not know
            return model_named(MODELS.get(point.model, point.model)).name, GPUS.get(point.gpu, point.gpu)
        return point.model, GPUS.get(point.gpu, point.gpu)

    measured = [named(each) for each in some]
    measured += [(each.deployment.model.name, each.deployment.gpu.name) for each in others]
    if not any(wanted(*each) for each in measured):
        names = "; ".join(" on ".join(each) for each in dict.fromkeys(measured))
        raise KvsimError(
            f"no server of {model or 'any model'} on {gpu or 'any GPU'} was measured, but {names}"
        )
    kept = [each for each in some if wanted(*named(each))]
    return kept, [each for each in others if wanted(each.deployment.model.name, each.deployment.gpu.name)]


def sources(
    source: str | None, model: str | None, gpu: str | None, tensor_parallel_size: int, cost: str | None
) -> tuple[list[Point], list[Run]]:
    """The points and runs of a name or a file; by default all shipped ones."""
    if source in (None, "points", "requests"):
        some = points() if source != "requests" else []
        return _chosen(some, runs(cost) if source != "points" else [], model, gpu)
    path = Path(str(source)).expanduser()
    if path.suffix == ".csv":
        return _chosen(points(text_of(path, f"measurement {path}")), [], model, gpu)
    if path.suffix not in (".json", ".jsonl"):
        kinds = "points, requests, a .csv of points or a .json of a benchmark"
        raise KvsimError(f"source must be {kinds}, got {source!r}")
    if model is None or gpu is None:
        raise KvsimError("a .json of a benchmark needs --model and --gpu, which it does not hold")
    spec, cost, profile = gpu_and_cost(gpu, cost)
    engine = EngineConfig(
        scheduler="vllm-v1@0.33.0",
        max_num_seqs=SEQS,
        max_num_batched_tokens=TOKENS,
        async_scheduling=True,
    )
    deployment = Deployment(
        model=model_named(model),
        gpu=spec,
        engine=engine,
        tensor_parallel_size=tensor_parallel_size,
        cost=cost,
        profile=profile,
    )
    return [], [measured(path, deployment)]
