"""The server of a measured run: from the user's settings, else from its startup log, else vLLM's defaults.

--max-num-seqs 64        the user's settings come first
--log server.log         flags, and the KV cache's size in tokens or blocks
vLLM's defaults          seats and budget of `vllm serve` on that GPU, in that release
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from kvsim.sim.bench.measured import MeasuredRun
from kvsim.sim.classes import name_of
from kvsim.sim.cost.logged import LOGGED
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.deployment.registry import allocator_class
from kvsim.sim.deployment.vllm_defaults import (
    FAMILY,
    NEWEST,
    RECORDED,
    Asked,
    known_release,
    rules_of,
    scheduled_as,
    vllm_defaults,
)
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import fitted
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.fit.capacity import blocks_printed
from kvsim.sim.fit.log import StartupLog, logged
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.quantization import quantized
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.options.scenario import Scenario

LAUNCHES = ("calibrated", "measured-elsewhere")
"""Costs that model launching kernels one by one."""


@dataclass(frozen=True)
class Server:
    """A server completed from a log or defaults, notes on their origin, and the user's own settings."""

    scenario: Scenario
    told: tuple[str, ...]
    asked: Scenario


def server_of(asked: Scenario, run: MeasuredRun, log: StartupLog | None = None) -> Server:
    """The server on which a run was measured.

    Raises
    ------
    KvsimError
        The log is from another model.
    """
    told: list[str] = []
    found = asked
    release = started = NEWEST
    if log is not None:
        release = _release(log)
        started = known_release(log.release)
        found, taken = _logged(found, log)
        told += taken
        if log.release and not log.release.startswith(scheduled_as(release)):
            told.append(f"The log is of vLLM {log.release}, simulated as {scheduled_as(release)}.")
    if of_vllm(asked):
        found, said = _defaults(found, release, started)
        if said:
            told.append(f"Defaults of vllm serve {started}: {said}.")
    elif found.async_scheduling is None and not rules_of(started).async_scheduling:
        found = replace(found, async_scheduling=False)
        told.append(f"vLLM {started} schedules a step only after the previous one ends: so does this server.")
    meant = f"{run.model} served, {_name(asked.model)} simulated"
    if run.model and _differ(run.model, asked.model):
        told.append(f"The models' names differ: {meant}.")
    return Server(found, tuple(told), asked)


def _logged(asked: Scenario, log: StartupLog) -> tuple[Scenario, list[str]]:
    """The scenario completed from the log, and, in words, what was taken and what was left out."""
    gpu_cost, model = _gpu(asked)[1], _model(asked)
    leave = {"quantization"} if model.quantization else set()
    leave |= set() if model.experts else {"data_parallel_size", "enable_expert_parallel"}
    leave |= set() if gpu_cost in LAUNCHES else {"enforce_eager"}
    if not of_vllm(asked):
        leave |= {"block_size", "enable_prefix_caching"}
        leave |= {"async_scheduling"} if log.async_scheduling is not False else set()
    found, changes = logged(asked, log, leave)
    changes = dict(changes)
    if asked.kv_tokens is None and asked.num_gpu_blocks is None:
        size = _size(found, log)
        found, changes = replace(found, **size), changes | size  # type: ignore[arg-type]
    said = [f"The log says: {_in_words(changes) or 'nothing about the settings'}."]
    if "num_gpu_blocks" in changes:
        said.append(f"Of {found.num_gpu_blocks + 1:,} blocks one is vLLM's null block.")  # type: ignore[operator]
    left = log.enforce_eager and asked.enforce_eager is None and "enforce_eager" in leave
    if left and not gpu_cost.startswith(LOGGED):  # a log's own step times include it
        said.append(f"The log's enforce_eager is left out: cost {gpu_cost} knows no launches.")
    if log.device not in (None, "cuda"):
        said.append(f"The log is of a server on {str(log.device).upper()}.")
    return found, said


def _size(server: Scenario, log: StartupLog) -> dict[str, object]:
    """The KV cache size that the log states: in blocks without the null block, if vLLM allocates them."""
    if log.kv_tokens is None and log.num_gpu_blocks is None:
        return {}
    if not of_vllm(server):
        return {} if log.kv_tokens is None else {"kv_tokens": log.kv_tokens}
    options = {
        each.name: getattr(server, each.name) for each in fields(FitOptions) if hasattr(server, each.name)
    }
    pool = fitted(
        _model(server),
        _gpu(server)[0],
        FitOptions(**options, engine=f"{FAMILY}@{known_release(log.release)}"),
        kv_memory_bytes=0,
    )
    blocks = log.num_gpu_blocks
    if blocks is None:
        assert log.kv_tokens is not None
        blocks = blocks_printed(pool.groups, log.kv_tokens, pool.request)
    found: dict[str, object] = {"num_gpu_blocks": max(blocks - 1, 1)}
    if server.block_size is None and pool.paged.aligned_from is None:
        found["block_size"] = pool.paged.block_size
    return found


def _defaults(asked: Scenario, release: str, started: str) -> tuple[Scenario, str]:
    """The scenario with the release's defaults for open settings, and these defaults in words."""
    given = Asked(
        max_num_batched_tokens=asked.max_num_batched_tokens,
        max_num_seqs=asked.max_num_seqs,
        max_model_len=asked.max_model_len,
        enable_chunked_prefill=asked.enable_chunked_prefill,
    )
    usual = vllm_defaults(started, _gpu(asked)[0], _model(asked), use="server", asked=given)
    changes: dict[str, object] = {}
    for name in ("max_num_seqs", "max_num_batched_tokens", "async_scheduling"):
        if getattr(asked, name) is None:
            changes[name] = getattr(usual, name)
    if asked.gpu_memory_utilization == Scenario().gpu_memory_utilization:
        changes["gpu_memory_utilization"] = usual.gpu_memory_utilization
    chosen: dict[str, object] = dict(changes)
    if asked.scheduler is None:
        changes["scheduler"] = f"{FAMILY}@{release}"
    found = replace(asked, **changes)  # type: ignore[arg-type]
    engine = found.deployed().engine
    for name in ("enable_chunked_prefill", "enable_prefix_caching"):
        if getattr(asked, name) is None:
            chosen[name] = getattr(engine, name)
    return found, _in_words(chosen)


def _in_words(settings: Mapping[str, object]) -> str:
    """`max_num_seqs 64, enforce_eager True`."""
    return ", ".join(
        f"{name} {value:,}" if type(value) is int else f"{name} {value}" for name, value in settings.items()
    )


def of_vllm(asked: Scenario) -> bool:
    """Whether vLLM V1 schedules this server, over blocks."""
    scheduler = asked.scheduler is None or str(asked.scheduler).startswith(FAMILY)
    return scheduler and allocator_class(name_of(asked.allocator)).has_blocks


def _model(asked: Scenario) -> ModelSpec:
    found = asked.model if isinstance(asked.model, ModelSpec) else model_named(asked.model)
    return quantized(found, asked.quantization)


def _gpu(asked: Scenario) -> tuple[GpuSpec, str]:
    """The GPU, and the cost model of its steps."""
    cost = None if asked.cost is None else name_of(asked.cost)
    if isinstance(asked.gpu, GpuSpec):
        return asked.gpu, cost or "roofline"
    return gpu_and_cost(asked.gpu, cost)[:2]


def _release(log: StartupLog) -> str:
    """The log's release, or the newest one if no release of that time schedules this way by default."""
    release = known_release(log.release)
    return RECORDED[-1] if log.async_scheduling and scheduled_as(release) == RECORDED[0] else release


def _name(model: str | ModelSpec) -> str:
    return model.name if isinstance(model, ModelSpec) else model


def _differ(served: str, simulated: str | ModelSpec) -> bool:
    """Whether two hub names are of different models; unknown names count as equal."""
    if isinstance(simulated, ModelSpec):
        return False
    try:
        return model_named(served).name != model_named(simulated).name
    except KvsimError:
        return False
