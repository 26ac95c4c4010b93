"""Builds an engine from a deployment and a workload: looks up names and puts the parts together.

    Deployment --resolve--> Resolved: classes, defaults, groups of layers, capacity --build_engine--> Engine

result = build_engine(deployment, workload).run()
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kvsim.allocators.base import Allocator
from kvsim.allocators.options import Groups, Options
from kvsim.sim.classes import class_named
from kvsim.sim.cost.calibrated.needed import needed
from kvsim.sim.cost.host import measured
from kvsim.sim.cost.named import check_cost, cost_class, cost_of
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.draft import of_draft_alone, with_modules
from kvsim.sim.deployment.kinds import kinds_in_words
from kvsim.sim.deployment.memory import KvCapacity, kv_capacity
from kvsim.sim.deployment.registry import Classes, usual_scheduler
from kvsim.sim.deployment.sharing import SharedTiers
from kvsim.sim.deployment.tier_words import OF_TIERS
from kvsim.sim.deployment.vllm_defaults import FAMILY, OF_ANY_ENGINE, Asked, release_settings
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB
from kvsim.sim.models.kv_groups import KvGroups, kv_groups
from kvsim.sim.models.kv_layers import EVERY_TOKEN
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.option import taken
from kvsim.sim.parts import Part, check_taken, defaults_of
from kvsim.sim.policies.base import Policy
from kvsim.sim.policies.named import policy_class
from kvsim.sim.record.events import Events
from kvsim.sim.record.instants import TIMELINE_ROWS
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.routers.base import Router
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.fleet import router_class
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.serving.scale_groups import Scaled, scaled_of
from kvsim.sim.workload import PS_PER_S, Workload

if TYPE_CHECKING:
    from kvsim.sim.deployment.hybrid import HybridMemory
    from kvsim.sim.serving.hand_over import HandOver
    from kvsim.sim.serving.migration import Migrations

Settings = Mapping[str, object]

SWAP_SPACE_BYTES = 4 * GIB
"""Host memory per GPU for swapped sequences: vLLM's default."""


def scheduler_class(name: str) -> type[Scheduler]:
    """The scheduler of that name, with or without a release, or the user's own class."""
    base = name if ":" in name else name.partition("@")[0]
    return class_named("scheduler", base, SCHEDULERS, Scheduler)  # type: ignore[type-abstract]


def _scheduler_among(classes: Classes, name: str) -> type[Scheduler]:
    base = name if ":" in name else name.partition("@")[0]
    return classes.of("scheduler", base, scheduler_class)


def engine_defaults(scheduler: str | None, max_model_len: int, among: Classes | None = None) -> Settings:
    """Settings in which a scheduler differs from `EngineConfig`, apart from those of allocators."""
    if scheduler is None:
        return {}
    found = _scheduler_among(among or Classes(), scheduler)
    return found.defaults(scheduler.partition("@")[2], max_model_len)


def server_defaults(  # noqa: PLR0917 - what a server is
    allocator: str,
    scheduler: str | None,
    gpu: GpuSpec,
    model: ModelSpec,
    asked: Asked | None = None,
    among: Classes | None = None,
) -> Settings:
    """A server's settings if its user chooses none: one rule for every command.

    For vLLM, those of its release on that GPU; for other engines, their own, or else seats, budget and
    utilisation of vLLM's newest release, so that engines are compared on one server. Other settings are those
    of `EngineConfig`; the scheduler's release decides whether scheduling is asynchronous.
    """
    among = among or Classes()
    found = among.allocator(allocator)
    engine = scheduler or usual_scheduler(found)
    of_vllm = engine.partition("@")[0] == FAMILY
    longest = (asked and asked.max_model_len) or model.max_model_len
    own = engine_defaults(scheduler, longest, among)
    if own and not of_vllm:
        return own
    settings = dict(release_settings(engine if of_vllm else None, gpu, model, asked))
    if settings and not found.keeps_prefixes:
        settings["enable_prefix_caching"] = False
    names = [*OF_ANY_ENGINE, "enable_chunked_prefill", "enable_prefix_caching"] if of_vllm else OF_ANY_ENGINE
    return {each: settings[each] for each in names if settings}


@dataclass(frozen=True)
class Kept:
    """How the layers of a run are kept, and how much fits.

    Attributes
    ----------
    hybrid : HybridMemory or None
        Given if unlike layers of every kind share a pool.
    groups : KvGroups or None
        Otherwise given if memory behind a sliding window is freed.
    capacity : KvCapacity
    """

    hybrid: "HybridMemory | None"
    groups: KvGroups | None
    capacity: KvCapacity


@dataclass(frozen=True)
class Resolved:
    """What a run needs: all names looked up, all defaults filled in.

    Attributes
    ----------
    deployment : Deployment
        As in `config.json`.
    scheduler : Scheduler
        The first replica's.
    cost, router : type
    pools : tuple of Resolved
        For a fleet of unlike servers, one per pool; empty: all servers are equal.
    """

    deployment: Deployment
    scheduler: Scheduler
    cost: type[CostModel]
    router: type[Router]
    pools: "tuple[Resolved, ...]" = ()

    @property
    def every_pool(self) -> "tuple[Resolved, ...]":
        """The pools; a list of itself alone if all servers are equal."""
        return self.pools or (self,)

    @cached_property
    def kept(self) -> Kept:
        """How its layers are kept, and how much fits; KvsimError if nothing fits."""
        return kept(self.deployment, self.scheduler)


def resolve(deployment: Deployment) -> Resolved:
    """Fill in the deployment's defaults, take the needed part of its profile, and derive the rest.

    Raises
    ------
    KvsimError
        For a name or an option that no part knows.
    """
    for name in ("direct_decode", "mixed_pool"):
        given = getattr(deployment.fleet, name)
        if given and not deployment.apart:
            raise KvsimError(f"{name} must be left out without prefill and decode pools, got {given}")
    if deployment.fleet.scale:
        scaled_of(deployment.fleet.scale, deployment.sizes)
    if deployment.pools:
        return _resolve_pools(deployment)
    deployment = with_modules(deployment)
    parts, engine = parts_of(deployment), deployment.engine
    declared = {kind: (name, found.declares) for kind, (name, found) in parts.items()}
    check_taken(deployment.options, declared)
    cost, router = cost_class_of(deployment), router_class_of(deployment)
    check_cost(cost, deployment)
    own: dict[str, object] = {}
    for _, options in declared.values():
        own |= defaults_of(options)
    scheduler = build_scheduler(deployment)
    reserves = deployment.allocator.reserves or scheduler.reserves
    named = replace(
        engine,
        scheduler=deployment.scheduler_name,
        reserve=engine.reserve or ("max" if reserves else None),
        async_scheduling=scheduler.asynchronous if scheduler.overlaps else engine.async_scheduling,
        options=own | {name: value for name, value in engine.options.items() if value is not None},
    )
    profile = (
        None
        if deployment.profile is None
        else needed(deployment.profile, deployment, of_draft_alone(deployment))
    )
    found = replace(deployment, engine=named, profile=profile)
    if any(named.options[name] != own[name] for name in OF_TIERS if name in own):
        from kvsim.sim.deployment.offloading import check_tier  # late: most runs do not need it

        check_tier(found)
    return Resolved(found, scheduler, cost, router)


def _resolve_pools(deployment: Deployment) -> Resolved:
    """Resolve each pool by itself; the first pool stands for the whole fleet."""
    fleet = deployment.fleet
    found = tuple(
        resolve(replace(pool.server, fleet=fleet.of_pool(pool.replicas))) for pool in deployment.pools
    )
    pools = tuple(
        replace(pool, server=each.deployment) for pool, each in zip(deployment.pools, found, strict=True)
    )
    whole = replace(found[0].deployment, fleet=fleet, pools=pools)
    if whole.apart:
        from kvsim.sim.deployment.hand_over import check_apart  # late: most fleets do not need it

        check_apart(whole, [each.scheduler for each in found])
    return replace(found[0], deployment=whole, pools=found)


def parts_of(deployment: Deployment) -> dict[str, tuple[str, Part]]:
    """The parts of a run that declare options: kind -> (name, class)."""
    return {
        "allocator": (deployment.engine.allocator, deployment.allocator),
        "scheduler": (deployment.scheduler_name, scheduler_class_of(deployment)),
        "policy": (deployment.engine.policy, policy_class_of(deployment)),
        "cost": (deployment.cost, cost_class_of(deployment)),
        "router": (deployment.fleet.router, router_class_of(deployment)),
    }


def scheduler_class_of(deployment: Deployment) -> type[Scheduler]:
    """The class of its scheduler."""
    return _scheduler_among(deployment.classes, deployment.scheduler_name)


def policy_class_of(deployment: Deployment) -> type[Policy]:
    """The class of its policy."""
    return deployment.classes.of("policy", deployment.engine.policy, policy_class)


def cost_class_of(deployment: Deployment) -> type[CostModel]:
    """The class of its cost."""
    return deployment.classes.of("cost", deployment.cost, cost_class)


def router_class_of(deployment: Deployment) -> type[Router]:
    """The class of its router."""
    return deployment.classes.of("router", deployment.fleet.router, router_class)


def build_scheduler(deployment: Deployment) -> Scheduler:
    """The scheduler, with the rules of the requested release."""
    config = replace(deployment.served_engine, scheduler=deployment.scheduler_name)
    return scheduler_class_of(deployment)(config, deployment.max_model_len)


def kept(deployment: Deployment, scheduler: Scheduler) -> Kept:
    """How the deployment's layers are kept under that scheduler."""
    hybrid = hybrid_groups(deployment, scheduler)
    if hybrid:
        return Kept(hybrid, None, hybrid.capacity)
    groups = windowed_groups(deployment)
    return Kept(None, groups, kv_capacity(deployment, groups))


def windowed_groups(deployment: Deployment) -> KvGroups | None:
    """The groups of layers if memory behind a sliding window is freed and no pool of pages serves them."""
    groups = kv_groups(deployment.served_model, deployment.engine.disable_hybrid_kv_cache_manager)
    return groups if groups.window_groups and deployment.allocator.frees_behind_windows else None


def hybrid_groups(deployment: Deployment, scheduler: Scheduler) -> "HybridMemory | None":
    """The groups of unlike layers that share one pool; None if none do."""
    found = deployment.allocator
    alike = all(layers.kind in EVERY_TOKEN for layers in deployment.served_model.kv_layers)
    if alike and not found.keeps_groups:
        return None
    from kvsim.sim.deployment.hybrid import hybrid_memory, is_hybrid  # late: most models do not need it

    may_be = is_hybrid(deployment.served_model) and found.frees_behind_windows and not found.pools_windows
    if not (found.keeps_groups or (may_be and scheduler.keeps_groups)):
        return None
    return hybrid_memory(deployment, scheduler.asynchronous)


def _allocator_groups(groups: KvGroups, deployment: Deployment, scheduler: Scheduler) -> Groups:
    """The groups as an allocator takes them; KvsimError for what does not work with windows."""
    advice = "; or use --disable-hybrid-kv-cache-manager" if groups.full_groups else ""
    model = f"model {deployment.model.name}, which frees memory behind its sliding window"
    if scheduler.forks:
        raise KvsimError(
            f"scheduler must be vllm-v1, orca or static for {model}, got {deployment.scheduler_name}{advice}"
        )
    if scheduler.cache is not None and not deployment.allocator.caches_windows:
        raise KvsimError(
            f"enable_prefix_caching must be off for {model}, got on "
            f"(scheduler {deployment.scheduler_name}){advice}"
        )
    assert groups.window is not None
    return Groups(groups.full_groups, groups.window_groups, groups.window, scheduler.max_chunk)


def build_allocator(deployment: Deployment, scheduler: Scheduler, layers: Kept | None = None) -> Allocator:
    """The allocator over the deployment's KV capacity, set up as in the scheduler's engine."""
    engine, found = deployment.engine, deployment.allocator
    if engine.reserve and not (found.reserves or scheduler.reserves):
        raise KvsimError(f"reserve must be left out for allocator {engine.allocator}, which reserves nothing")
    if scheduler.cache and not found.keeps_prefixes:
        raise KvsimError(
            f"enable_prefix_caching must be off for allocator {engine.allocator}, which keeps no prefixes"
        )
    host_slots = _host_blocks(deployment, scheduler) * engine.block_size if scheduler.forks else 0
    layers = layers or kept(deployment, scheduler)
    hybrid, groups = layers.hybrid, layers.groups
    windowed = _allocator_groups(groups, deployment, scheduler) if groups else None
    model, tp = deployment.served_model, deployment.tensor_parallel_size
    bytes_per_token = model.kv_bytes_per_token_per_gpu(tp)
    if groups:
        bytes_per_token = bytes_per_token * groups.layers_per_group // model.caching_layers
    options = Options(
        block_size=engine.block_size,
        order=scheduler.order,
        cache=scheduler.cache,
        host_slots=host_slots,
        groups=windowed,
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
        return found.from_options(layers.capacity.slots, options)
    except ValueError as error:
        raise KvsimError(f"allocator {engine.allocator}: {error}") from error


def _host_blocks(deployment: Deployment, scheduler: Scheduler) -> int:
    """Blocks of the host pool: as given, or as many as fit in vLLM's default swap space."""
    if scheduler.host_blocks is not None:
        return scheduler.host_blocks
    model, tp = deployment.served_model, deployment.tensor_parallel_size
    return SWAP_SPACE_BYTES // (deployment.engine.block_size * model.kv_bytes_per_token_per_gpu(tp))


def build_engine(
    deployment: Deployment | Resolved,
    workload: Workload,
    *,
    max_span: int = 1 << 20,
    step_log: bool = False,
    check: bool = False,
    events: bool = False,
    map_instants: int = 0,
    timeline_rows: int = TIMELINE_ROWS,
) -> Engine:
    """The engine of a deployment, ready to run the workload once; `map_instants`: 0 for no memory map."""
    found = deployment if isinstance(deployment, Resolved) else resolve(deployment)
    deployment, fleet = found.deployment, found.deployment.fleet
    log = RequestLog(workload, fleet.replicas)
    map_tokens = -(-workload.tokens // fleet.replicas) if map_instants else 0
    makers: list[_Maker] = []
    hand_over = _hand_over(found, workload) if deployment.apart else None
    shared = SharedTiers()
    roles = [pool.role for pool in deployment.every_pool]
    for pool, role in zip(found.every_pool, roles, strict=True):
        hidden = replace(pool.deployment.engine, async_scheduling=pool.scheduler.hides_host)
        cost = cost_of(pool.cost, replace(pool.deployment, engine=hidden))
        side = None if hand_over is None else (hand_over, role)
        watched = step_log, check, events, map_instants, map_tokens, timeline_rows
        maker = _Maker(pool, cost, log, max_span, *watched, shared, bool(fleet.fail), side)
        makers += [maker] * pool.deployment.fleet.replicas

    def put(place: int, maker: _Maker, scheduler: Scheduler | None = None) -> Replica:
        shared.place = place
        replica = maker.another() if scheduler is None else maker.replica(scheduler)
        # they act on each other: same order in every mode
        if hand_over is not None or fleet.migrate or workload.waits is not None:
            replica.place = place
        return shared.join(place, replica)

    replicas = [
        put(place, maker, maker.found.scheduler if not maker.side and maker not in makers[:place] else None)
        for place, maker in enumerate(makers)
    ]
    return Engine(
        workload,
        log,
        replicas,
        [maker.found.deployment.max_model_len for maker in makers],
        router=fleet.router_of(found.router, deployment.options) if fleet.replicas > 1 else None,
        pools=[(pool.name, pool.role) for pool in deployment.every_pool for _ in range(pool.replicas)],
        sticky=fleet.sticky,
        faults=fleet.faults,
        scaling=_scaling(deployment, [maker.found.deployment for maker in makers], log)
        if fleet.scale
        else None,
        make=lambda place: put(place, makers[place]),
        migrations=_migrations(found, workload) if fleet.migrate else None,
        hand_over=None
        if hand_over is None
        else (hand_over, fleet.router_of(found.router, deployment.options)),
    )


def _hand_over(found: Resolved, workload: Workload) -> "HandOver":
    """Takes prompts from prefill to decode servers."""
    from kvsim.sim.deployment.hand_over import check_work, hand_over_of  # late: most fleets do without

    check_work(workload)
    return hand_over_of(found.deployment, found.scheduler)


def _migrations(found: Resolved, workload: Workload) -> "Migrations":
    """The migrations of running requests; None if there are none."""
    from kvsim.sim.deployment.migration import migrations_of  # late: most fleets do not need it

    return migrations_of(found.deployment, [pool.scheduler for pool in found.every_pool], workload)


def _scaling(
    whole: Deployment, servers: Sequence[Deployment], log: RequestLog
) -> tuple[list[Scaled], list[int]]:
    """The scaling policies, and each server's start time in ps: a constant, plus weights over bandwidth."""
    fleet = whole.fleet
    startup_s = [
        fleet.startup_time + server.served_model.weight_bytes / (1e9 * fleet.load_bandwidth)
        for server in servers
    ]
    return scaled_of(fleet.scale, whole.sizes, log), [round(each * PS_PER_S) for each in startup_s]


@dataclass(frozen=True, eq=False)
class _Maker:
    """Makes the replicas of a pool. They share a cost and a log; all pools share some tiers."""

    found: Resolved
    cost: CostModel
    log: RequestLog
    max_span: int
    step_log: bool
    check: bool
    events: bool
    map_instants: int
    map_tokens: int
    timeline_rows: int
    shared: SharedTiers
    mortal: bool
    side: "tuple[HandOver, str] | None" = None

    def another(self) -> Replica:
        """Make a replica with a new scheduler."""
        deployment = self.found.deployment
        if self.side is None:
            return self.replica(build_scheduler(deployment))
        from kvsim.sim.deployment.hand_over import scheduler_of  # late: most fleets do without

        config = replace(deployment.served_engine, scheduler=deployment.scheduler_name)
        return self.replica(scheduler_of(config, deployment.max_model_len, *self.side))

    def replica(self, scheduler: Scheduler) -> Replica:
        """Make a replica with its own scheduler."""
        deployment, workload, kept = self.found.deployment, self.log.workload, self.found.kept
        scheduler.follow(workload)
        if workload.beam is not None:
            scheduler.search(workload.beam)
        allocator = build_allocator(deployment, scheduler, kept)
        bound = reservation(deployment.engine.reserve or "max", deployment.max_model_len)
        server = scheduler.new_server(allocator, bound)
        marks = allocator.idles, server.holds
        map_of = MemoryMap(self.map_tokens, self.map_instants, *marks) if self.map_instants else None
        scheduler.put_below(server, deployment, self.shared)
        if self.side is not None:
            from kvsim.sim.deployment.hand_over import connect  # late: most fleets do not need it

            connect(deployment, scheduler, server, *self.side)
        return Replica(
            server,
            scheduler,
            self.cost,
            self.log,
            kinds_in_words=kinds_in_words(kept.hybrid, kept.groups, deployment.served_model),
            max_span=self.max_span,
            step_log=self.step_log,
            timeline_rows=self.timeline_rows,
            check=self.check,
            hears_late=scheduler.asynchronous and measured(deployment.cost),
            events=Events(self.log if self.mortal else None) if self.events else None,
            memory_map=map_of,
        )
