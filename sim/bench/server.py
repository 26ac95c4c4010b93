"""The server of a measured run: what its user says, else its start-up log, else vLLM's defaults.

--max-num-seqs 64        the user's word goes first
--log server.log         flags, and the KV cache's size in tokens or blocks
vLLM's defaults          seats and budget of `vllm serve` on that GPU, in that release
"""

from dataclasses import dataclass, replace

from kvsim.sim.bench.measured import MeasuredRun
from kvsim.sim.classes import name_of
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.log import StartupLog
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.scenario.registry import allocator_class
from kvsim.sim.scenario.vllm_defaults import RELEASES, Asked, vllm_defaults

NEWEST = list(RELEASES)[-1]
ASYNCHRONOUS = (0, 14)
"""From this release on vLLM schedules asynchronously unless it is told not to."""
FLAGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "async_scheduling", "block_size")
"""Settings that a log may state, and that None leaves open."""
PLAIN = ("tensor_parallel_size", "kv_cache_dtype", "gpu_memory_utilization", "enforce_eager")
"""Those whose default is a value: a log's word replaces the default only."""


@dataclass(frozen=True)
class Server:
    """A server with nothing open that a log or a default says, and where each setting is from."""

    scenario: Scenario
    told: tuple[str, ...]


def server_of(asked: Scenario, run: MeasuredRun, log: StartupLog | None = None) -> Server:
    """The server that a run was measured on.

    Raises
    ------
    KvsimError
        A log of another model.
    """
    told: list[str] = []
    found = asked
    release = NEWEST
    if log is not None:
        release = _release(log)
        found, said = _logged(found, log)
        told.append(f"The log says: {', '.join(said) or 'nothing of the settings'}.")
        if log.release and not log.release.startswith(release):
            told.append(f"The log is of vLLM {log.release}, simulated as {release}.")
    of_vllm = asked.scheduler is None or str(asked.scheduler).startswith("vllm-v1")
    if allocator_class(name_of(asked.allocator)).has_blocks and of_vllm:
        found, said = _defaults(found, release)
        if said:
            told.append(f"Defaults of vllm serve {release}: {', '.join(said)}.")
    meant = f"{run.model} served, {_name(asked.model)} simulated"
    if run.model and _differ(run.model, asked.model):
        told.append(f"The models' names differ: {meant}.")
    return Server(found, tuple(told))


def _logged(asked: Scenario, log: StartupLog) -> tuple[Scenario, list[str]]:
    usual, changes = Scenario(), {}
    for name in (*FLAGS, *PLAIN):
        stated = getattr(log, name)
        if stated is not None and getattr(asked, name) == getattr(usual, name) and stated != "auto":
            changes[name] = stated
    if changes.get("enforce_eager") and asked.cost == "roofline":
        del changes["enforce_eager"]
    if asked.kv_tokens is None and asked.num_gpu_blocks is None:
        if log.kv_tokens is not None:
            changes["kv_tokens"] = log.kv_tokens
        elif log.num_gpu_blocks is not None:
            changes["num_gpu_blocks"] = log.num_gpu_blocks
    said = [
        f"{name} {value:,}" if type(value) is int else f"{name} {value}" for name, value in changes.items()
    ]
    return replace(asked, **changes), said


def _defaults(asked: Scenario, release: str) -> tuple[Scenario, list[str]]:
    """The scenario with the settings that vLLM starts with, where they are open."""
    model = asked.model if isinstance(asked.model, ModelSpec) else model_named(asked.model)
    gpu = asked.gpu if isinstance(asked.gpu, GpuSpec) else gpu_and_cost(asked.gpu, asked.cost)[0]
    given = Asked(
        max_num_batched_tokens=asked.max_num_batched_tokens,
        max_num_seqs=asked.max_num_seqs,
        max_model_len=asked.max_model_len,
        enable_chunked_prefill=asked.enable_chunked_prefill,
    )
    usual = vllm_defaults(release, gpu, model, use="server", asked=given)
    changes: dict[str, object] = {}
    for name in ("max_num_seqs", "max_num_batched_tokens", "async_scheduling"):
        if getattr(asked, name) is None:
            changes[name] = getattr(usual, name)
    if asked.gpu_memory_utilization == Scenario().gpu_memory_utilization:
        changes["gpu_memory_utilization"] = usual.gpu_memory_utilization
    said = [
        f"{name} {value:,}" if type(value) is int else f"{name} {value}" for name, value in changes.items()
    ]
    if asked.scheduler is None:
        changes["scheduler"] = f"vllm-v1@{release}"
    return replace(asked, **changes), said  # type: ignore[arg-type]


def _release(log: StartupLog) -> str:
    """The release that is simulated for that of a log: the nearest before it that schedules as it does."""
    try:
        numbers = tuple(map(int, (log.release or NEWEST).split(".")[:2]))
    except ValueError:
        return NEWEST
    if log.async_scheduling or numbers >= ASYNCHRONOUS:
        return NEWEST
    oldest = next(iter(RELEASES))
    known = [each for each in RELEASES if tuple(map(int, each.split(".")[:2])) <= numbers]
    return known[-1] if known else oldest


def _name(model: str | ModelSpec) -> str:
    return model.name if isinstance(model, ModelSpec) else model


def _differ(served: str, simulated: str | ModelSpec) -> bool:
    """Whether a name on the hub is another model's; names that are not known say nothing."""
    if isinstance(simulated, ModelSpec):
        return False
    try:
        return model_named(served).name != model_named(simulated).name
    except KvsimError:
        return False
