"""From a deployment and a workload to an engine: looks names up and puts the parts together.

result = build_engine(deployment, workload).run()
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.allocators.base import Allocator
from kvsim.allocators.options import Groups, Options
from kvsim.sim.classes import class_named
from kvsim.sim.cost.named import cost_class, cost_named
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.memory import KvCapacity, kv_capacity
from kvsim.sim.deployment.registry import allocator_class, usual_scheduler
from kvsim.sim.deployment.vllm_defaults import FAMILY, OF_ANY_ENGINE, Asked, release_settings
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB
from kvsim.sim.models.kv_groups import KvGroups, kv_groups
from kvsim.sim.models.kv_layers import EVERY_TOKEN
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.option import taken
from kvsim.sim.parts import check_taken
from kvsim.sim.record.events import Events
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.fleet import router_class
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import Workload

if TYPE_CHECKING:
    from kvsim.sim.deployment.hybrid import HybridMemory

SWAP_SPACE_BYTES = 4 * GIB
"""Host memory per GPU for swapped sequences: vLLM's default."""


def scheduler_name(deployment: Deployment) -> str:
    """The scheduler asked for, else the one that belongs to the allocator."""
    return deployment.engine.scheduler or usual_scheduler(deployment.engine.allocator)


def engine_defaults(scheduler: str | None, max_model_len: int) -> Mapping[str, object]:
    """Settings in which a scheduler differs from `EngineConfig`; none for those that belong to allocators."""
    if scheduler is None:
        return {}
    return scheduler_class(scheduler).defaults(scheduler.partition("@")[2], max_model_len)


def server_defaults(
    allocator: str, scheduler: str | None, gpu: GpuSpec, model: ModelSpec, asked: Asked | None = None
) -> Mapping[str, object]:
    """The settings that a server starts from where its user chooses none: one rule for every command.

    Those of vLLM's release on that GPU; another engine's own; else seats, budget and utilisation of vLLM's
    newest release, so that engines are compared on one server. What is missing is as in `EngineConfig`, and
    whether scheduling is asynchronous as the scheduler's release says.
    """
    found = allocator_class(allocator)
    engine = scheduler or usual_scheduler(allocator)
    of_vllm = engine.partition("@")[0] == FAMILY
    own = engine_defaults(scheduler, (asked and asked.max_model_len) or model.max_model_len)
    if own and not of_vllm:
        return own
    settings = dict(release_settings(engine if of_vllm else None, gpu, model, asked))
    if settings and not found.keeps_prefixes:
        settings["enable_prefix_caching"] = False
    names = [*OF_ANY_ENGINE, "enable_chunked_prefill", "enable_prefix_caching"] if of_vllm else OF_ANY_ENGINE
    return {each: settings[each] for each in names if settings}


def scheduler_class(name: str) -> type[Scheduler]:
    """The scheduler of that name, with or without a release, or the user's own."""
    base = name if ":" in name else name.partition("@")[0]
    return class_named("scheduler", base, SCHEDULERS, Scheduler)  # type: ignore[type-abstract]


def own_options(deployment: Deployment) -> dict[str, tuple[str, type]]:
    """The parts of a run, by kind: the name of each, and the dataclass of its own options."""
    scheduler, allocator = scheduler_name(deployment), deployment.engine.allocator
    cost, router = deployment.cost, deployment.fleet.router
    return {
        "allocator": (allocator, allocator_class(allocator).declares),
        "scheduler": (scheduler, scheduler_class(scheduler).declares),
        "cost": (cost, cost_class(cost).declares),
        "router": (router, router_class(router).declares),
    }


def build_scheduler(deployment: Deployment) -> Scheduler:
    """The scheduler, in the release asked for."""
    name = scheduler_name(deployment)
    return scheduler_class(name)(replace(deployment.served_engine, scheduler=name), deployment.max_model_len)


def windowed_groups(deployment: Deployment) -> KvGroups | None:
    """How the layers are kept where memory behind a sliding window is freed; None where it is not, or where
    unlike layers of every kind share a pool (`hybrid_groups`)."""
    if hybrid_groups(deployment):
        return None
    groups = kv_groups(deployment.served_model, deployment.engine.disable_hybrid_kv_cache_manager)
    frees = allocator_class(deployment.engine.allocator).frees_behind_windows
    return groups if groups.window_groups and frees else None


def hybrid_groups(deployment: Deployment) -> "HybridMemory | None":
    """How unlike layers are kept over one pool; None where they are not."""
    found = allocator_class(deployment.engine.allocator)
    alike = all(layers.kind in EVERY_TOKEN for layers in deployment.served_model.kv_layers)
    if alike and not found.keeps_groups:
        return None
    from kvsim.sim.deployment.hybrid import hybrid_memory, is_hybrid  # late: most models do without

    may_be = is_hybrid(deployment.served_model) and found.frees_behind_windows and not found.pools_windows
    if not (found.keeps_groups or may_be):
        return None
    scheduler = build_scheduler(deployment)
    if not (found.keeps_groups or scheduler.keeps_groups):
        return None
    return hybrid_memory(deployment, scheduler.asynchronous)


def capacity_of(deployment: Deployment) -> KvCapacity:
    """The KV memory of a run."""
    hybrid = hybrid_groups(deployment)
    return hybrid.capacity if hybrid else kv_capacity(deployment, windowed_groups(deployment))


def _allocator_groups(groups: KvGroups, deployment: Deployment, scheduler: Scheduler) -> Groups:
    """The groups as an allocator knows them; refuses what does not go with windows."""
    advice = "; or use --disable-hybrid-kv-cache-manager" if groups.full_groups else ""
    model = f"model {deployment.model.name}, which frees memory behind its sliding window"
    if scheduler.forks:
        raise KvsimError(
            f"scheduler must be vllm-v1, orca or static for {model}, got {scheduler_name(deployment)}{advice}"
        )
    if scheduler.cache is not None and not allocator_class(deployment.engine.allocator).caches_windows:
        raise KvsimError(
            f"enable_prefix_caching must be off for {model}, got on "
            f"(scheduler {scheduler_name(deployment)}){advice}"
        )
    assert groups.window is not None
    return Groups(groups.full_groups, groups.window_groups, groups.window, scheduler.max_chunk)


def build_allocator(deployment: Deployment, scheduler: Scheduler) -> Allocator:
    """The allocator over the deployment's KV capacity, as the scheduler's engine has it."""
    engine = deployment.engine
    found = allocator_class(engine.allocator)
    if engine.reserve and not (found.reserves or scheduler.reserves):
        raise KvsimError(f"reserve must be left out for allocator {engine.allocator}, which reserves nothing")
    if scheduler.cache and not found.keeps_prefixes:
        raise KvsimError(
            f"enable_prefix_caching must be off for allocator {engine.allocator}, which keeps no prefixes"
        )
    host_slots = _host_blocks(deployment, scheduler) * engine.block_size if scheduler.forks else 0
    hybrid = hybrid_groups(deployment)
    groups = None if hybrid else windowed_groups(deployment)
    kept = _allocator_groups(groups, deployment, scheduler) if groups else None
    model, tp = deployment.served_model, deployment.tensor_parallel_size
    bytes_per_token = model.kv_bytes_per_token_per_gpu(tp)
    if groups:
        bytes_per_token = bytes_per_token * groups.layers_per_group // model.caching_layers
    options = Options(
        block_size=engine.block_size,
        order=scheduler.order,
        cache=scheduler.cache,
        host_slots=host_slots,
        groups=kept,
        hybrid=hybrid.layers if hybrid else None,
        token_bytes=bytes_per_token,
        layers=max(model.caching_layers, 1),
        kv_heads=1 if model.kv_latent_dim else -(-model.kv_heads // tp),
        head_dim=model.kv_latent_dim or model.head_dim,
        dtype_bytes=model.kv_dtype_bytes or model.dtype_bytes,
        max_sequences=engine.max_num_seqs,
        max_model_len=deployment.max_model_len,
        own=taken(found.declares, engine.options),
    )
    try:
        capacity = hybrid.capacity if hybrid else kv_capacity(deployment, groups)
        return found.from_options(capacity.slots, options)
    except ValueError as error:
        raise KvsimError(f"allocator {engine.allocator}: {error}") from error


def _host_blocks(deployment: Deployment, scheduler: Scheduler) -> int:
    """Blocks of the host pool: as given, else as many as fit in vLLM's default swap space."""
    if scheduler.host_blocks is not None:
        return scheduler.host_blocks
    model, tp = deployment.served_model, deployment.tensor_parallel_size
    return SWAP_SPACE_BYTES // (deployment.engine.block_size * model.kv_bytes_per_token_per_gpu(tp))


def build_engine(
    deployment: Deployment,
    workload: Workload,
    *,
    max_span: int = 1 << 20,
    step_log: bool = False,
    check: bool = False,
    events: bool = False,
    map_instants: int = 0,
) -> Engine:
    """The engine of a deployment, ready to run the workload once; 0 `map_instants`: without a map."""
    check_taken(deployment.options, own_options(deployment))
    fleet = deployment.fleet
    log = RequestLog(workload, fleet.replicas)
    schedulers = [build_scheduler(deployment) for _ in range(fleet.replicas)]
    decided = replace(deployment.engine, async_scheduling=schedulers[0].hides_host)
    cost = cost_named(deployment.cost, replace(deployment, engine=decided))
    replicas = []
    for scheduler in schedulers:
        if workload.beam is not None:
            scheduler.search(workload.beam)
        allocator = build_allocator(deployment, scheduler)
        tokens = -(-workload.tokens // fleet.replicas)
        map_of = MemoryMap(tokens, map_instants, allocator.idles) if map_instants else None
        bound = reservation(deployment.engine.reserve or "max", deployment.max_model_len)
        replicas.append(
            Replica(
                scheduler.new_server(allocator, bound),
                scheduler,
                cost,
                log,
                max_span=max_span,
                step_log=step_log,
                check=check,
                events=Events() if events else None,
                memory_map=map_of,
            )
        )
    router = None
    if fleet.replicas > 1:
        router = fleet.router_of(router_class(fleet.router), deployment.options)
    return Engine(workload, log, replicas, deployment.max_model_len, router=router, sticky=fleet.sticky)
