"""One simulation of a paper: settings -> numbers, kept in a cache.

A cell is a dict in JSON's types: `model`, `gpu`, `engine`, `workload` and the rest of a Deployment. Its
numbers are kept in a file named after a hash of the cell, the version and the source of the simulator. So an
interrupted reproduction resumes, and any change of the simulator reruns everything.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from kvsim.sim import __version__
from kvsim.sim.build import build_engine, engine_defaults
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.files.whole_file import whole_file
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record import metrics
from kvsim.sim.record.instants import FEWEST_ROWS
from kvsim.sim.record.recorder import Result
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import PS_PER_S, Workload

Cell = dict[str, Any]
Numbers = dict[str, float | None]
Builder = Callable[..., Workload]
"""`kvsim.workloads.build`: passed in, as reports do not depend on traces."""

SOURCES = ("kvsim.sim", "kvsim.allocators", "kvsim.workloads")


@dataclass(frozen=True)
class Bench:
    """Runs cells."""

    build: Builder
    store: Path | None
    """The cache's directory; None keeps nothing."""

    def numbers(self, cell: Cell) -> Numbers:
        """The numbers of a cell, from the cache or from a run."""
        return self.kept(cell, partial(carry_out, cell, self.build))

    def kept(self, cell: Any, find: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """The result for a cell, from the cache or computed by `find`."""
        if self.store is None:
            return find()
        text = json.dumps([cell, __version__, fingerprint()], sort_keys=True)
        path = self.store / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))["numbers"]
        except (OSError, ValueError, KeyError, TypeError):
            numbers = find()
            with whole_file(path, force=True) as part:
                part.write_text(json.dumps({"cell": cell, "numbers": numbers}), encoding="utf-8")
            return numbers


def cache_directory() -> Path:
    """This platform's directory for data that can be recomputed."""
    return Path(platformdirs.user_cache_dir("kvsim", appauthor=False)) / "reproduce"


@cache
def fingerprint() -> str:
    """A hash of all that a run's numbers depend on besides its settings."""
    found = hashlib.sha256()
    for package in SOURCES:
        for file in sorted(Path(str(resources.files(package))).rglob("*")):
            if file.suffix in (".py", ".toml", ".json", ".parquet"):
                found.update(file.name.encode() + file.read_bytes())
    for name in ("cells.py", "disaggregated.py", "served.py"):
        found.update(Path(__file__).with_name(name).read_bytes())
    return found.hexdigest()


# -- one run --------------------------------------------------------------------------------------


def carry_out(cell: Cell, build: Builder) -> Numbers:
    """Simulate a cell."""
    deployment = deployment_of(cell)
    cpu_s = time.process_time()
    workload = workload_of(cell, build)
    engine = build_engine(
        deployment, workload, step_log=cell.get("step_log", False), timeline_rows=FEWEST_ROWS
    )
    result = engine.run()
    table = metrics.request_table(result)
    summary: Any = metrics.summary(result, table)
    waiting: Mapping[str, float] = summary["memory"]["saturated"] or {}
    numbers: Numbers = {
        "latency_s": summary["latency"]["normalized_s_per_token"]["mean"],
        "e2e_s": summary["latency"]["e2e_s"]["mean"],
        "requests": summary["requests"]["submitted"],
        "rejected": summary["requests"]["rejected"],
        "running_waiting": summary["engine"]["mean_running_saturated"],
        "preemptions": summary["engine"]["preemptions_recompute"] + summary["engine"]["preemptions_swap"],
        **{kind: waiting.get(kind) for kind in ("token", "reserved", "external", "free")},
        **_internal(deployment, result, waiting.get("internal")),
        **_by_step(result, cell.get("window_s", [0.0, math.inf])),
    }
    if cell.get("answers") == "batch":
        numbers["latency_s"] = _latency_in_batches(result)
    numbers["cpu_s"] = time.process_time() - cpu_s
    return numbers


def deployment_of(cell: Cell) -> Deployment:
    """The server of a cell; a cost with `:shared` or `:copied` gets the number of sequences per request."""
    engine = cell["engine"]
    length = cell.get("max_model_len") or model_named(cell["model"]).max_model_len
    settings = {**engine_defaults(engine.get("scheduler"), length), "max_model_len": length, **engine}
    names = ("tensor_parallel_size", "kv_tokens", "cost")
    given = {name: cell[name] for name in names if name in cell}
    if given.get("cost", "").endswith((":shared", ":copied")):
        given["cost"] += str(max(cell["workload"].get(name, 1) for name in ("n", "beam_width")))
    model, gpu = model_named(cell["model"]), gpu_named(cell["gpu"])
    return Deployment(model=model, gpu=gpu, engine=EngineConfig.of(settings), **given)


def workload_of(cell: Cell, build: Builder) -> Workload:
    """The requests of a cell, with lengths as in the paper's experiment."""
    wanted = dict(cell["workload"])
    count = wanted["num_prompts"]
    made = build(
        wanted["trace"],
        num_prompts=count,
        request_rate=math.inf if wanted["request_rate"] == "inf" else wanted["request_rate"],
        burstiness=1.0,
        seed=wanted.get("seed", 0),
        n=wanted.get("n", 1),
        beam_width=wanted.get("beam_width", 1),
        beam_process=wanted.get("beam_process", "uniform"),
    )
    rng = np.random.default_rng(wanted.get("seed", 0) + 1)
    prompts, outputs = made.prompt_tokens, made.output_tokens
    for name, columns in (("prompt_lognormal", "prompts"), ("output_lognormal", "outputs")):
        if name in wanted:
            mean, sigma = wanted[name]
            drawn = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
            lengths = np.maximum(np.rint(drawn), 1).astype(np.int64)
            prompts, outputs = (lengths, outputs) if columns == "prompts" else (prompts, lengths)
    if "prompt_bars" in wanted:
        low, high, share = np.array(wanted["prompt_bars"]).T
        bar = rng.choice(len(low), size=count, p=share / share.sum())
        prompts = rng.integers(low[bar].astype(np.int64), high[bar].astype(np.int64))
    elif "prompt_tokens" in wanted:
        prompts = np.full(count, wanted["prompt_tokens"], dtype=np.int64)
    if "output_at_most" in wanted:
        outputs = np.minimum(outputs, wanted["output_at_most"])
    prefix = wanted.get("shared_prefix", 0)
    content = [((0, 0, prefix),)] * count if prefix else made.content
    return replace(made, prompt_tokens=prompts + prefix, output_tokens=outputs, content=content)


# -- what is read off -----------------------------------------------------------------------------


def _latency_in_batches(result: Result) -> float:
    """Mean normalised latency if a batch returns all its answers together at its end.

    Requests first scheduled in the same step form one batch.
    """
    _, batch = np.unique(result.requests["first_scheduled_ps"], return_inverse=True)
    ends = np.zeros(batch.max() + 1, dtype=np.int64)
    np.maximum.at(ends, batch, result.requests["finish_ps"])
    latency_s = (ends[batch] - result.arrival_ps) / PS_PER_S
    return float((latency_s / result.output_tokens).mean())


def _by_step(result: Result, window_s: Sequence[float]) -> Numbers:
    """Means over the engine steps that begin in a window of time, each step with equal weight.

    `running_steps`: sequences per step; `saved_blocks`: the share of the blocks in all block tables that
    sharing saves, in percent, from the mean number of tables that hold a block.
    """
    steps = result.steps
    if steps is None:
        return {"running_steps": None, "saved_blocks": None}
    start_s = steps["start_ps"] / PS_PER_S
    inside = (window_s[0] <= start_s) & (start_s <= window_s[1]) & (steps["blocks_in_use"] > 0)
    if not inside.any():
        return {"running_steps": None, "saved_blocks": None}
    holders = float((steps["logical_blocks"][inside] / steps["blocks_in_use"][inside]).mean())
    return {
        "running_steps": float(steps["running"][inside].mean()),
        "saved_blocks": 100 * (1 - 1 / holders),
    }


def _internal(deployment: Deployment, result: Result, internal: float | None) -> Numbers:
    """Internal waste while requests wait, and its parts by cause, in percent of the capacity.

    `over_reserved`: the reservation beyond the request's tokens; `rounding`: the allocator's addition to
    that. All requests must arrive at once, so that the saturated time is a prefix of the run.
    """
    policy = deployment.engine.reserve
    if internal is None or policy is None or result.workload.arrival_ps[-1] > 0:
        return {"internal": internal, "over_reserved": None, "rounding": None}
    bound = reservation(policy, deployment.max_model_len)
    prompts, outputs = result.workload.prompt_tokens.tolist(), result.output_tokens.tolist()
    pairs = zip(prompts, outputs, strict=True)
    allocated = [bound(Request(row, p, o)) - (p + o - 1) for row, (p, o) in enumerate(pairs)]
    end = result.saturated.time_ps
    stay = np.minimum(result.requests["finish_ps"], end) - result.requests["first_scheduled_ps"]
    held = float((np.array(allocated) * (np.maximum(stay, 0) / PS_PER_S)).sum())
    over = 100 * held / (result.capacity_slots * end / PS_PER_S)
    return {"internal": internal, "over_reserved": over, "rounding": internal - over}
